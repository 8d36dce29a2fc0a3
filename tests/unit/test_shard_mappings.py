"""Copying a shard into memory that is mapped, as far as it is there."""

from __future__ import annotations

import errno
import mmap
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_digest

from laggard.kvstore.checkpoints import layout as layout_module
from laggard.kvstore.checkpoints import mappings as mappings_module
from laggard.kvstore.checkpoints.bounds import MEMORY_FOLDER
from laggard.kvstore.checkpoints.layout import LeafDigests, Plan, _place, plan, sums_of
from laggard.kvstore.checkpoints.mappings import Mappings, write_parts
from laggard.kvstore.checkpoints.populate import populate
from laggard.kvstore.checkpoints.shard_file import whole_grains
from tests.waiting import DEADLINE_S, wait_until

SIZE = 1 << 20


def unnamed(folder: Path, size_bytes: int) -> int:
    descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR)
    os.ftruncate(descriptor, size_bytes)
    return descriptor


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    descriptor = unnamed(tmp_path, SIZE)
    yield descriptor
    os.close(descriptor)


def content_of(planned: Plan) -> bytes:
    content = bytearray(planned.size_bytes)
    for at, part in planned.parts:
        content[at : at + len(part)] = part
    return bytes(content)


@given(
    sizes=st.lists(st.integers(0, 5000), max_size=6).map(lambda sizes: [20, *sizes]),
    mapped=st.none() | st.integers(1, 40_000),
    ready=st.integers(0, 40_000),
    processors=st.sampled_from([1, 64]),
)
def test_all_bytes_arrive_however_much_is_mapped_and_ready(
    sizes: list[int], mapped: int | None, ready: int, processors: int
) -> None:
    digests = LeafDigests()
    planned = plan(map(os.urandom, sizes), digests)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: range(processors))
        blocks = ((module, "BLOCK_BYTES", 2500) for module in (mappings_module, layout_module))
        for module, name, size in (*blocks, (mappings_module, "_LARGE_BYTES", 100)):
            patch.setattr(module, name, size)
        descriptor = unnamed(MEMORY_FOLDER, whole_grains(planned.size_bytes))
        mapping = None if mapped is None else mmap.mmap(descriptor, mapped)
        sums = write_parts(planned, descriptor, mapping, ready)
        assert sums == sums_of(memoryview(os.pread(descriptor, planned.size_bytes, 0)))
        assert os.pread(descriptor, planned.size_bytes, 0) == content_of(planned)
        os.close(descriptor)
    for _, part in planned.parts:
        assert digests.of(part) == xxh3_64_digest(part)
        assert processors > 1 or len(part) < 100 or digests._known[_place(part)] == (part, xxh3_64_digest(part))


def test_a_digest_that_is_known_is_that_of_this_memory_and_no_other() -> None:
    digests, leaf = LeafDigests(), os.urandom(100)
    digests.note(leaf, b"known")
    assert digests.of(leaf) == b"known"
    assert digests.of(memoryview(bytearray(leaf))) == xxh3_64_digest(leaf)
    assert digests.of(memoryview(leaf)[:99]) == xxh3_64_digest(leaf[:99])


def test_what_has_no_memory_is_not_touched_through_the_mapping(descriptor: int) -> None:
    os.ftruncate(descriptor, 4096)
    mapping = mmap.mmap(descriptor, 4096)
    os.ftruncate(descriptor, 0)  # to touch it would end this process
    planned = plan([b"a" * 4000])
    write_parts(planned, descriptor, mapping, 0)
    assert os.pread(descriptor, planned.size_bytes, 0) == content_of(planned)


def no_notice(size_bytes: int, error: OSError) -> None:
    raise AssertionError((size_bytes, error))


def ready_bytes(mappings: Mappings) -> dict[int, int]:
    return {number: each.ready_bytes for number, each in mappings._mapped.items()}


def held_bytes(descriptor: int) -> int:
    """Return how much memory a file has."""
    return os.fstat(descriptor).st_blocks * 512


def test_the_next_file_gets_its_memory_and_is_mapped_in_the_background(tmp_path: Path) -> None:
    size = 20 * SIZE
    descriptor = unnamed(tmp_path, size)
    mappings = Mappings(lambda *_: (7, os.dup(descriptor)), no_notice)
    mappings.want("a", size)
    wait_until(lambda: ready_bytes(mappings) == {7: size})
    assert held_bytes(descriptor) == size
    os.ftruncate(descriptor, size + SIZE)
    planned = plan([os.urandom(size + 100)])
    mappings.write(planned, 7, descriptor, size + SIZE)
    assert os.pread(descriptor, planned.size_bytes, 0) == content_of(planned)
    assert ready_bytes(mappings) == {7: planned.size_bytes}
    mappings.keep_only([8])
    assert ready_bytes(mappings) == {}
    os.close(descriptor)


def at_hand_bytes(descriptor: int) -> int:
    """Return how much of a file is in this process's page tables."""
    status = os.fstat(descriptor)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    smaps = Path("/proc/self/smaps").read_text()
    of_file = rf"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ {device} {status.st_ino} .*?^Rss: +(\d+) kB$"
    return sum(int(kib) << 10 for kib in re.findall(of_file, smaps, re.MULTILINE | re.DOTALL))


def test_what_was_written_without_a_mapping_is_at_hand_for_the_next_time() -> None:
    size = 20 * SIZE
    descriptor = unnamed(MEMORY_FOLDER, size)
    mappings = Mappings(lambda *_: None, no_notice)
    planned = plan([os.urandom(size - SIZE)])
    mappings.write(planned, 7, descriptor, size)
    assert at_hand_bytes(descriptor) == 0
    mappings.want("a", size)
    wait_until(lambda: at_hand_bytes(descriptor) == size)
    assert os.pread(descriptor, planned.size_bytes, 0) == content_of(planned)
    os.close(descriptor)


def test_who_wants_again_meanwhile_gets_the_last_size_and_errors_end_nothing(descriptor: int) -> None:
    goes_on = threading.Event()
    asked = []

    def prepare(owner: str, size_bytes: int) -> tuple[int, int] | None:
        asked.append((owner, size_bytes))
        assert goes_on.wait(DEADLINE_S)
        if size_bytes == 1:
            raise ConnectionError("the server has ended")
        return None if size_bytes == 3 else (5, os.dup(descriptor))

    mappings = Mappings(prepare, no_notice)
    mappings.want("a", 1)
    wait_until(lambda: asked == [("a", 1)])
    mappings.want("b", 3)
    for size_bytes in (2, 3, 4):
        mappings.want("a", size_bytes)
    goes_on.set()
    wait_until(lambda: ready_bytes(mappings) == {5: SIZE})
    assert asked == [("a", 1), ("b", 3), ("a", 4)]


def test_a_file_that_somebody_else_needs_meanwhile_is_asked_for_again(tmp_path: Path) -> None:
    closed, whole = unnamed(tmp_path, SIZE), unnamed(tmp_path, SIZE)
    os.ftruncate(closed, 0)
    found = [(1, os.dup(closed)), (2, os.dup(whole))]
    mappings = Mappings(lambda *_: found.pop(0), no_notice)
    mappings.want("a", SIZE)
    wait_until(lambda: ready_bytes(mappings) == {2: SIZE})
    os.close(closed)
    os.close(whole)


def test_a_kernel_that_cannot_populate_allocates(tmp_path: Path) -> None:
    descriptor = unnamed(tmp_path, SIZE)
    with mmap.mmap(descriptor, SIZE) as mapping:
        mapping[0:3] = b"abc"
        populate(descriptor, mapping, 0, SIZE, advice=9999)
        assert mapping[0:3] == b"abc"
    assert held_bytes(descriptor) == SIZE
    os.close(descriptor)


@pytest.mark.root("to mount a small file system")
def test_a_full_file_system_ends_a_preparation_and_not_the_process(small_file_system: Path) -> None:
    descriptor = unnamed(small_file_system, 8 * SIZE)
    told: list[tuple[int, int | None]] = []
    found = [(1, os.dup(descriptor))]
    mappings = Mappings(lambda *_: found.pop(), lambda size_bytes, error: told.append((size_bytes, error.errno)))
    mappings.want("a", 8 * SIZE)
    wait_until(lambda: told == [(8 * SIZE, errno.ENOSPC)])
    os.close(descriptor)

"""Copying a shard into memory that is mapped, as far as it is there."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.kvstore.checkpoints import mappings as mappings_module
from laggard.kvstore.checkpoints.bounds import MEMORY_FOLDER
from laggard.kvstore.checkpoints.connecting import Wanted
from laggard.kvstore.checkpoints.layout import Plan, plan
from laggard.kvstore.checkpoints.mappings import Mappings, write_parts
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
    sizes=st.lists(st.integers(0, 5000), max_size=6),
    mapped=st.none() | st.integers(1, 40_000),
    ready=st.integers(0, 40_000),
    processors=st.sampled_from([1, 64]),
)
def test_all_bytes_arrive_however_much_is_mapped_and_ready(
    sizes: list[int], mapped: int | None, ready: int, processors: int
) -> None:
    pieces = [(str(n), os.urandom(size)) for n, size in enumerate(sizes)]
    planned = plan(pieces)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: range(processors))
        patch.setattr(mappings_module, "_PIECE_BYTES", 1000)
        descriptor = unnamed(MEMORY_FOLDER, whole_grains(planned.size_bytes))
        mapping = None if mapped is None else mmap.mmap(descriptor, mapped)
        write_parts(planned, descriptor, mapping, ready)
        assert os.pread(descriptor, planned.size_bytes, 0) == content_of(planned)
        os.close(descriptor)


def test_what_has_no_memory_is_not_touched_through_the_mapping(descriptor: int) -> None:
    os.ftruncate(descriptor, 4096)
    mapping = mmap.mmap(descriptor, 4096)
    os.ftruncate(descriptor, 0)  # to touch it would end this process
    planned = plan([("a", b"a" * 4000)])
    write_parts(planned, descriptor, mapping, 0)
    assert os.pread(descriptor, planned.size_bytes, 0) == content_of(planned)


def test_the_next_file_is_mapped_in_the_background(descriptor: int) -> None:
    mappings = Mappings(lambda wanted: (7 + wanted.ahead, os.dup(descriptor)))
    mappings.want("a", SIZE, 4)
    wait_until(lambda: mappings.find(8) is not None)
    assert mappings.find(7) is not None
    mappings.keep_only([8])
    assert mappings.find(7) is None
    assert mappings.find(8) is not None


def test_the_next_shards_of_all_owners_come_before_the_ones_after_them() -> None:
    goes_on = threading.Event()
    asked = []

    def prepare(wanted: Wanted) -> None:
        asked.append(wanted)
        assert goes_on.wait(DEADLINE_S)

    mappings = Mappings(prepare)
    for owner in "abc":
        mappings.want(owner, SIZE, 4)
    goes_on.set()
    expected = [Wanted(owner, SIZE, ahead, 4) for ahead in (0, 1) for owner in "abc"]
    wait_until(lambda: asked == expected)


def test_who_wants_again_meanwhile_gets_the_last_size_and_errors_end_nothing(descriptor: int) -> None:
    goes_on = threading.Event()
    asked = []

    def prepare(wanted: Wanted) -> tuple[int, int] | None:
        asked.append(wanted.size_bytes)
        assert goes_on.wait(DEADLINE_S)
        if wanted.size_bytes == 1:
            raise ConnectionError("the server has ended")
        return None if wanted.size_bytes == 3 else (5, os.dup(descriptor))

    mappings = Mappings(prepare)
    mappings.want("a", 1, 4)
    wait_until(lambda: asked == [1])
    for size_bytes in (2, 3, 4):
        mappings.want("a", size_bytes, 4)
    mappings.want("b", 3, 4)
    goes_on.set()
    wait_until(lambda: mappings.find(5) is not None)
    wait_until(lambda: asked == [1, 4, 3, 4, 3])


def test_a_file_that_is_shorter_meanwhile_ends_nothing(tmp_path: Path) -> None:
    descriptor = unnamed(tmp_path, SIZE)
    mappings = Mappings(lambda _: (1, os.dup(descriptor)))
    mappings.want("a", SIZE, 4)
    wait_until(lambda: mappings.find(1) is not None)
    os.ftruncate(descriptor, 0)
    mappings.want("a", SIZE, 4)  # it has no bytes to be mapped
    wait_until(lambda: "laggard memory" not in {thread.name for thread in threading.enumerate()})
    os.close(descriptor)

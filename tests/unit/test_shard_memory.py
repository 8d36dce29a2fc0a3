"""The memory that shards are in: bounded, used again, and never written while somebody reads it."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from laggard.kvstore.checkpoints import populate as populate_module
from laggard.kvstore.checkpoints.bounds import default_memory
from laggard.kvstore.checkpoints.memory import NoRoom, ShardMemory, may_be_new
from laggard.kvstore.checkpoints.shard_file import ShardFile

SIZE = 1 << 20


@pytest.fixture(params=["folder", "kernel"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> ShardMemory:
    return ShardMemory(tmp_path if request.param == "folder" else None, 4 * SIZE)


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory of 4 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", folder], capture_output=True).returncode:
        pytest.skip("this needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_file_has_no_name_and_only_its_owner_can_read_it(memory: ShardMemory, tmp_path: Path) -> None:
    file = memory.take(SIZE, "a")
    file.write(10, b"abc")
    assert file.read(9, 14) == b"\0abc\0"
    assert list(tmp_path.iterdir()) == []
    assert os.fstat(file.descriptor).st_mode & 0o777 == 0o600


def test_a_file_is_used_again_and_by_its_owner_first(memory: ShardMemory) -> None:
    a, b = memory.take(SIZE, "a"), memory.take(SIZE, "b")
    for file in (a, b):
        memory.give_back(file)
    assert memory.used_bytes == 0
    assert memory.take(SIZE, "b").number == b.number
    assert memory.take(SIZE + 1, "b").number == a.number  # better than fresh memory
    assert memory.used_bytes == 3 * SIZE  # whole MiB, so that the next one may be a little larger


def test_what_exceeds_the_bound_is_refused_and_leaves_what_is_there(memory: ShardMemory) -> None:
    first = memory.take(3 * SIZE, "a")
    first.write(0, b"x")
    with pytest.raises(NoRoom) as caught:
        memory.take(2 * SIZE, "a")
    assert (caught.value.bound_bytes, caught.value.used_bytes, caught.value.reason) == (4 * SIZE, 3 * SIZE, "bound")
    assert first.read(0, 1) == b"x"
    memory.take(SIZE, "a")


def test_spare_memory_makes_room(memory: ShardMemory) -> None:
    for file in [memory.take(SIZE, str(n)) for n in range(4)]:
        memory.give_back(file)
    assert memory.take(4 * SIZE, "a").size_bytes == 4 * SIZE


def test_what_a_program_may_have_mapped_is_never_written_again(memory: ShardMemory) -> None:
    file = memory.take(SIZE, "a")
    memory.lend(file)
    memory.give_back(file)
    assert memory.take(SIZE, "a").number != file.number


def test_what_is_being_read_is_written_again_only_afterwards(memory: ShardMemory) -> None:
    file = memory.take(SIZE, "a")
    with memory.reading(file) as read:
        assert read is file
        memory.give_back(file)
        other = memory.take(SIZE, "a")
        assert other.number != file.number
        with memory.reading(file) as late:
            assert late is None
    memory.give_back(other)
    assert {memory.take(SIZE, "a").number, memory.take(SIZE, "a").number} == {file.number, other.number}


def prepare(memory: ShardMemory, size_bytes: int, owner: str, ahead: int = 0, n_files: int = 4) -> int | None:
    """Have a file prepared; return its number."""
    found = memory.prepare(size_bytes, owner, ahead, n_files)
    if found is None:
        return None
    file, descriptor = found
    os.close(descriptor)
    return file.number


def held_bytes(descriptor: int) -> int:
    """Return how much memory a file has."""
    return os.fstat(descriptor).st_blocks * 512


def test_a_spare_file_is_prepared_once_and_within_the_bound(memory: ShardMemory) -> None:
    memory.take(SIZE, "a")
    assert len({prepare(memory, SIZE, "a") for _ in range(3)}) == 1
    assert memory.used_bytes == SIZE
    prepared = memory.take(SIZE, "a")
    assert prepare(memory, 3 * SIZE, "a") is None  # too much
    assert memory.used_bytes == 2 * SIZE
    assert held_bytes(prepared.descriptor) == SIZE


def test_prepared_memory_counts_against_the_bound_and_gives_way_to_shards(memory: ShardMemory) -> None:
    memory.take(SIZE, "a")
    for owner in ("a", "b"):
        prepare(memory, SIZE, owner)
    assert prepare(memory, 2 * SIZE, "c") is None
    memory.take(3 * SIZE, "c")
    assert memory.used_bytes == 4 * SIZE
    assert len(memory.numbers()) == 2


def test_a_shard_larger_or_smaller_than_announced_takes_what_is_prepared(memory: ShardMemory) -> None:
    assert prepare(memory, SIZE, "a") is not None
    larger = memory.take(2 * SIZE + 10, "a")
    assert (larger.reserved_bytes, larger.ready_bytes) == (3 * SIZE, SIZE)
    larger.note_written()
    memory.give_back(larger)
    smaller = memory.take(SIZE, "a")
    assert (smaller.number, smaller.reserved_bytes, smaller.ready_bytes) == (larger.number, SIZE, SIZE)


def test_what_a_program_has_mapped_ahead_is_left_to_it_while_there_is_room(memory: ShardMemory) -> None:
    number = prepare(memory, SIZE, "a")
    assert memory.take(SIZE, "peer").number != number
    assert memory.take(SIZE, "a").number == number
    number = prepare(memory, 2 * SIZE, "a")
    assert memory.take(2 * SIZE, "peer").number == number  # there is no room for more


@pytest.mark.parametrize(
    ("n_spare", "n_in_turn", "ahead", "is_new"),
    [
        (0, 0, 0, True),  # the size is announced
        (1, 1, 1, True),
        (0, 3, 0, True),
        (0, 4, 0, True),  # copies are late; the save would go into fresh memory otherwise
        (0, 9, 0, True),
        (1, 3, 1, True),
        (1, 4, 1, False),  # an old one will have gone before it is needed
        (1, 9, 1, False),
        (0, 0, 1, False),  # there was no room for the next one
    ],
)
def test_fresh_memory_is_for_the_next_shard_and_the_one_after_it_while_files_are_few(
    n_spare: int, n_in_turn: int, ahead: int, is_new: bool
) -> None:
    assert may_be_new(n_spare, n_in_turn, ahead, n_files=4) == is_new


def test_an_announced_size_has_memory_for_two_shards_before_the_first_is_saved(memory: ShardMemory) -> None:
    numbers = [prepare(memory, SIZE, "a", ahead) for ahead in (0, 1)]
    assert None not in numbers
    assert len(set(numbers)) == 2
    assert [prepare(memory, SIZE, "a", ahead) for ahead in (0, 1)] == numbers
    taken = [memory.take(SIZE, "a") for _ in range(2)]
    assert [(file.number, file.ready_bytes) for file in taken] == [(number, SIZE) for number in numbers]


def test_an_owner_never_has_more_files_than_it_uses_in_turn(memory: ShardMemory) -> None:
    kept: list[ShardFile] = []
    for _ in range(6):  # each save drops an old checkpoint, whose memory comes back a little later
        for ahead in (0, 1):
            prepare(memory, SIZE, "a", ahead, n_files=3)
        kept.append(memory.take(SIZE, "a"))
        prepare(memory, SIZE, "a", 0, n_files=3)
        if len(kept) > 2:
            memory.give_back(kept.pop(0))
        assert len(memory.numbers()) <= 3
    assert memory.used_bytes == 2 * SIZE


def test_what_a_program_has_mapped_to_read_is_not_counted_on_to_come_back(memory: ShardMemory) -> None:
    memory.lend(memory.take(SIZE, "a"))
    assert prepare(memory, SIZE, "a", 0, n_files=2) is not None
    assert prepare(memory, SIZE, "a", 1, n_files=2) is not None


def test_the_last_spare_file_is_kept_while_copies_are_late(memory: ShardMemory) -> None:
    files = [memory.take(SIZE, "a") for _ in range(3)]
    assert prepare(memory, SIZE, "a", n_files=2) is not None
    memory.take(SIZE, "a")
    memory.give_back(files[0])
    assert memory.take(SIZE, "a").number == files[0].number


def test_a_shard_that_needs_memory_leaves_each_owner_what_it_needs_next_if_possible(memory: ShardMemory) -> None:
    of_b, *of_a = prepare(memory, SIZE, "b"), prepare(memory, SIZE, "a"), prepare(memory, SIZE, "a", 1)
    assert memory.take(2 * SIZE, "c").number in of_a
    assert memory.take(SIZE, "a").number in of_a
    assert memory.take(SIZE, "b").number == of_b


def test_a_node_that_is_short_of_memory_leaves_each_owner_what_it_needs_next_if_possible(tmp_path: Path) -> None:
    to_spare = [SIZE] * 4
    memory = ShardMemory(tmp_path, 4 * SIZE, lambda: to_spare.pop())
    of_b, *of_a = prepare(memory, SIZE, "b"), prepare(memory, SIZE, "a"), prepare(memory, SIZE, "a", 1)
    to_spare[:] = [0, -1]
    memory.relieve()
    assert of_b in memory.numbers()
    assert len({*of_a} & {*memory.numbers()}) == 1


def interrupted(work: Callable[[], object]) -> Callable[[int, mmap.mmap, int, int], None]:
    """Return what has memory for a slice, and does something while the second slice is under way."""

    def allocate(descriptor: int, mapping: mmap.mmap, start: int, stop: int) -> None:
        if start == populate_module.SLICE_BYTES:
            work()
        populate_module.allocate(descriptor, mapping, start, stop)

    return allocate


@pytest.mark.parametrize("n_mib", [10, 20, 30])
def test_a_file_that_is_taken_while_it_is_prepared_keeps_what_is_written(tmp_path: Path, n_mib: int) -> None:
    memory: ShardMemory
    taken = []

    def take() -> None:
        taken.append(memory.take(n_mib * SIZE, "a"))
        taken[0].write(0, b"x" * n_mib * SIZE)

    memory = ShardMemory(tmp_path, 64 * SIZE, allocate_slice=interrupted(take))
    number = prepare(memory, 20 * SIZE, "a")
    assert taken[0].number == number
    assert taken[0].ready_bytes == populate_module.SLICE_BYTES  # no more is known
    assert taken[0].read(0, 40 * SIZE) == b"x" * n_mib * SIZE
    assert memory.used_bytes == n_mib * SIZE
    assert memory.take(SIZE, "a").number != number


def test_the_memory_of_a_file_that_is_being_prepared_goes_to_who_needs_it(
    tmp_path: Path,
) -> None:
    memory: ShardMemory

    def take() -> None:
        memory.take(30 * SIZE, "b")

    memory = ShardMemory(tmp_path, 32 * SIZE, allocate_slice=interrupted(take))
    found = memory.prepare(20 * SIZE, "a", 0, 4)
    assert found is not None
    assert held_bytes(found[1]) == 0
    os.close(found[1])
    assert len(memory.numbers()) == 1


def test_a_file_that_comes_back_meanwhile_takes_the_place_of_the_one_that_is_prepared(
    tmp_path: Path,
) -> None:
    memory: ShardMemory

    def give_back() -> None:
        memory.give_back(old)

    memory = ShardMemory(tmp_path, 100 * SIZE, allocate_slice=interrupted(give_back))
    old, other = memory.take(20 * SIZE - 5, "a"), memory.take(SIZE, "a")
    old.note_written()
    found = memory.prepare(20 * SIZE, "a", 0, 2)
    assert found is not None
    assert found[0] is old
    assert old.ready_bytes == 20 * SIZE
    os.close(found[1])
    assert memory.numbers() == [old.number, other.number]


@pytest.mark.root("to mount a small file system")
def test_a_full_file_system_ends_a_preparation_and_not_the_process(
    small_file_system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = ShardMemory(small_file_system, 100 * SIZE)
    monkeypatch.setattr(memory, "_free_bytes", lambda: 100 * SIZE)  # as before somebody else has filled it
    with pytest.raises(OSError, match="No space left") as caught:
        memory.prepare(8 * SIZE, "a", 0, 4)
    assert caught.value.errno == errno.ENOSPC
    assert memory.numbers() == []
    monkeypatch.undo()
    assert memory.take(4 * SIZE, "a").size_bytes == 4 * SIZE


def test_a_kernel_that_cannot_populate_allocates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(populate_module, "_MADV_POPULATE_WRITE", 9999)
    memory = ShardMemory(tmp_path, 32 * SIZE)
    found = memory.prepare(20 * SIZE, "a", 0, 4)
    assert found is not None
    assert held_bytes(found[1]) == 20 * SIZE
    os.close(found[1])


def test_a_node_that_is_short_of_memory_gets_spare_memory_back_and_prepares_none(tmp_path: Path) -> None:
    to_spare = [2 * SIZE, -1]
    memory = ShardMemory(tmp_path, 8 * SIZE, lambda: to_spare[0])
    kept = memory.take(SIZE, "a")
    assert prepare(memory, 3 * SIZE, "a") is None
    assert prepare(memory, 2 * SIZE, "a") is not None
    memory.relieve()
    assert len(memory.numbers()) == 2
    del to_spare[0]
    memory.relieve()
    assert memory.numbers() == [kept.number]
    assert prepare(memory, SIZE, "a") is None


def test_the_files_of_two_servers_have_different_numbers(tmp_path: Path) -> None:
    one, other = (ShardMemory(tmp_path, 4 * SIZE).take(SIZE, "a") for _ in range(2))
    assert one.number != other.number


@pytest.mark.root("to mount a small file system")
def test_a_small_file_system_in_memory_is_not_used(small_file_system: Path) -> None:
    folder, alone_bytes = default_memory(small_file_system, 1)
    assert folder is None
    assert default_memory(small_file_system, 4) == (None, alone_bytes // 4)
    folder, _ = default_memory(Path("/"), 1)
    assert folder == Path("/")


@pytest.mark.root("to mount a small file system")
def test_a_full_file_system_is_refused_before_anything_is_written(small_file_system: Path) -> None:
    memory = ShardMemory(small_file_system, 100 * SIZE)
    first = memory.take(3 * SIZE, "a")
    first.write(0, b"x" * 3 * SIZE)
    with pytest.raises(NoRoom) as caught:
        memory.take(2 * SIZE, "a")
    assert (caught.value.reason, caught.value.used_bytes) == ("file system", 3 * SIZE)
    memory.give_back(first)
    assert memory.take(4 * SIZE, "a").size_bytes == 4 * SIZE

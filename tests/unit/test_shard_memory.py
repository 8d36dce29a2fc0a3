"""The memory that shards are in: bounded, used again, and never written while somebody reads it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from laggard.kvstore.checkpoints.bounds import default_memory
from laggard.kvstore.checkpoints.memory import NoRoom, ShardMemory
from laggard.kvstore.checkpoints.shard_file import ShardFile, write_at

SIZE = 1 << 20


@pytest.fixture(params=["folder", "kernel"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> ShardMemory:
    return ShardMemory(tmp_path if request.param == "folder" else None, 4 * SIZE)


def test_a_file_has_no_name_and_only_its_owner_can_read_it(memory: ShardMemory, tmp_path: Path) -> None:
    file = memory.take(SIZE, "a")
    write_at(file.descriptor, 10, b"abc")
    assert bytes(file.content()[9:14]) == b"\0abc\0"
    assert list(tmp_path.iterdir()) == []
    assert os.fstat(file.descriptor).st_mode & 0o777 == 0o600


def test_a_file_is_used_again_by_its_owner(memory: ShardMemory) -> None:
    a, b = memory.take(SIZE, "a"), memory.take(SIZE, "b")
    for file in (a, b):
        memory.give_back(file)
    assert memory._used_bytes() == 0
    assert memory.take(SIZE + 1, "b").number == b.number
    assert memory._used_bytes() == 2 * SIZE  # whole MiB, so that the next one may be a little larger


def test_what_exceeds_the_bound_is_refused_and_leaves_what_is_there(memory: ShardMemory) -> None:
    first = memory.take(3 * SIZE, "a")
    write_at(first.descriptor, 0, b"x")
    with pytest.raises(NoRoom) as caught:
        memory.take(2 * SIZE, "a")
    assert (caught.value.bound_bytes, caught.value.used_bytes, caught.value.reason) == (4 * SIZE, 3 * SIZE, "bound")
    assert bytes(first.content()[:1]) == b"x"
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
    assert memory.take(SIZE, "a").number in {file.number, other.number}


def prepare(memory: ShardMemory, size_bytes: int, owner: str) -> int | None:
    """Have a file for the owner's next shard; return its number."""
    found = memory.prepare(size_bytes, owner)
    if found is None:
        return None
    number, descriptor = found
    os.close(descriptor)
    return number


def test_an_owner_has_one_spare_file_within_the_bound(memory: ShardMemory) -> None:
    memory.take(SIZE, "a")
    assert len({prepare(memory, SIZE, "a") for _ in range(3)}) == 1
    assert memory._used_bytes() == SIZE
    memory.take(SIZE, "a")
    assert prepare(memory, 3 * SIZE, "a") is None  # too much
    assert memory._used_bytes() == 2 * SIZE


def test_prepared_memory_counts_against_the_bound_and_gives_way_to_shards(memory: ShardMemory) -> None:
    memory.take(SIZE, "a")
    for owner in ("a", "b"):
        prepare(memory, SIZE, owner)
    assert prepare(memory, 2 * SIZE, "c") is None
    memory.take(3 * SIZE, "c")
    assert memory._used_bytes() == 4 * SIZE
    assert len(memory.numbers()) == 2


def test_a_shard_larger_than_announced_takes_what_is_prepared(memory: ShardMemory) -> None:
    number = prepare(memory, SIZE, "a")
    larger = memory.take(2 * SIZE + 10, "a")
    assert (larger.number, larger.reserved_bytes) == (number, 3 * SIZE)


def test_a_file_that_loses_memory_has_another_number_so_that_nobody_touches_what_it_has_lost(
    memory: ShardMemory,
) -> None:
    number = prepare(memory, 3 * SIZE, "a")
    smaller = memory.take(SIZE, "a")
    assert smaller.reserved_bytes == SIZE
    assert smaller.number != number
    assert memory.numbers() == [smaller.number]


def test_what_a_program_has_mapped_ahead_is_left_to_it_while_there_is_room(memory: ShardMemory) -> None:
    number = prepare(memory, SIZE, "a")
    assert memory.take(SIZE, "peer").number != number
    assert memory.take(SIZE, "a").number == number
    number = prepare(memory, 2 * SIZE, "a")
    memory.take(2 * SIZE, "peer")
    assert number not in memory.numbers()  # there was no room for more


def test_a_file_that_comes_back_takes_the_place_of_one_that_nobody_has_written_to(memory: ShardMemory) -> None:
    old = memory.take(SIZE, "a")
    assert prepare(memory, SIZE, "a") != old.number
    memory.give_back(old)
    assert memory.numbers() == [old.number]
    assert prepare(memory, SIZE, "a") == old.number


def test_an_owner_never_has_more_files_than_it_uses_in_turn(memory: ShardMemory) -> None:
    kept: list[ShardFile] = []
    for _ in range(6):  # each save drops an old checkpoint, whose memory comes back a little later
        prepare(memory, SIZE, "a")
        kept.append(memory.take(SIZE, "a"))
        prepare(memory, SIZE, "a")
        if len(kept) > 2:
            memory.give_back(kept.pop(0))
        assert len(memory.numbers()) <= 3
    assert memory._used_bytes() == 2 * SIZE


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
    write_at(first.descriptor, 0, b"x" * 3 * SIZE)
    with pytest.raises(NoRoom) as caught:
        memory.take(2 * SIZE, "a")
    assert (caught.value.reason, caught.value.used_bytes) == ("file system", 3 * SIZE)
    memory.give_back(first)
    assert memory.take(4 * SIZE, "a").size_bytes == 4 * SIZE

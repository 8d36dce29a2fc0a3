"""The memory that shards are in: bounded, used again, and never written while somebody reads it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from laggard.kvstore.shards.bounds import default_memory
from laggard.kvstore.shards.memory import NoRoom, ShardMemory

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


def test_a_spare_file_is_prepared_once_and_within_the_bound(memory: ShardMemory) -> None:
    memory.take(SIZE, "a")
    for _ in range(3):
        memory.prepare(SIZE, "a")
    assert memory.used_bytes == SIZE
    prepared = memory.take(SIZE, "a")
    memory.prepare(3 * SIZE, "a")  # too much
    assert memory.used_bytes == 2 * SIZE
    assert os.fstat(prepared.descriptor).st_blocks * 512 == SIZE


def test_a_small_file_system_in_memory_is_not_used(small_file_system: Path) -> None:
    folder, alone_bytes = default_memory(small_file_system, 1)
    assert folder is None
    assert default_memory(small_file_system, 4) == (None, alone_bytes // 4)
    folder, _ = default_memory(Path("/"), 1)
    assert folder == Path("/")


def test_a_full_file_system_is_refused_before_anything_is_written(small_file_system: Path) -> None:
    memory = ShardMemory(small_file_system, 100 * SIZE)
    first = memory.take(3 * SIZE, "a")
    first.write(0, b"x" * 3 * SIZE)
    with pytest.raises(NoRoom) as caught:
        memory.take(2 * SIZE, "a")
    assert (caught.value.reason, caught.value.used_bytes) == ("file system", 3 * SIZE)
    memory.give_back(first)
    assert memory.take(4 * SIZE, "a").size_bytes == 4 * SIZE

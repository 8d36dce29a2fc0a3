"""A damaged log is repaired to its last good commit by one command, and nothing is destroyed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.errors import DamagedLogError, StateDirectoryError
from laggard.kvstore.server.process import BACKUP, StateServer
from laggard.kvstore.state.mapping import State
from laggard.kvstore.state.repair import repair
from laggard.resilience.command.repair_state import repair_state
from laggard.resilience.controller.state_server_supervisor import StateSupervisor
from tests.waiting import wait_until

COMMITS = 30


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory whose State has the same number under two keys, after each of its commits."""
    with StateServer.start(tmp_path / "state", job="a") as server, server.endpoint.connect() as client:
        begin_launch(client, server.endpoint, 0)
        state = State(client, server.endpoint, 0)
        for n in range(1, COMMITS + 1):
            state.update(a=n, b=n, array=np.full(2000, n))
    return tmp_path / "state"


def log_of(directory: Path) -> Path:
    (log,) = (directory / "appendonlydir").glob("*.incr.aof")
    return log


def change(log: Path, at: int, new: bytes) -> None:
    with log.open("r+b") as file:
        file.seek(at)
        file.write(new)


def a_lost_sector(log: Path) -> None:
    middle = log.read_bytes().index(b"\r\nEXEC", log.stat().st_size // 2)
    change(log, middle - 100, bytes(512))


def a_flipped_byte(log: Path) -> None:
    data = log.read_bytes()
    at = data.index(b"HSET", len(data) // 2)
    change(log, at, bytes([data[at] ^ 1]))


def a_torn_end(log: Path) -> None:
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 700)


def zeros_at_the_end(log: Path) -> None:
    with log.open("ab") as file:
        file.write(bytes(4096))


@pytest.mark.parametrize("damage", [a_lost_sector, a_flipped_byte, a_torn_end, zeros_at_the_end])
def test_a_damaged_log_is_repaired_to_its_last_good_commit_and_kept(
    directory: Path, damage: Callable[[Path], None]
) -> None:
    damage(log_of(directory))
    damaged = log_of(directory).read_bytes()
    outcome = CliRunner().invoke(repair_state, [str(directory)], standalone_mode=False)
    assert outcome.exception is None, outcome.output
    (commit,) = re.findall(r"State is as of commit (\d+) of \d{4}-\d\d-\d\d \d\d:\d\d:\d\d: 3 keys", outcome.output)
    assert "the log is repaired: appendonly.aof.1.incr.aof after byte" in outcome.output
    (kept,) = directory.glob("damaged-*")
    assert str(kept) in outcome.output
    assert log_of(kept).read_bytes() == damaged
    with StateServer.start(directory, job="a") as server, server.endpoint.connect() as client:
        state = State(client, server.endpoint, 0)
        n = state["a"]
        assert (state["b"], state["array"][0], state.commits(), int(commit)) == (n, n, n, n)
        assert n == COMMITS if damage is zeros_at_the_end else COMMITS // 3 < n < COMMITS
        state["a"] = 0  # and the job goes on from there
    assert repair(directory).damage is None


def test_a_log_that_is_whole_is_left_as_it_is(directory: Path) -> None:
    before = log_of(directory).read_bytes()
    outcome = CliRunner().invoke(repair_state, [str(directory)], standalone_mode=False)
    assert "there is no damage in the log\nState is as of commit 30 of" in outcome.output
    assert log_of(directory).read_bytes() == before
    assert not list(directory.glob("damaged-*")) + list(directory.glob("repair-*"))


@pytest.mark.parametrize("content", [None, bytes(88), b"\xff" * 88], ids=["none", "zeros", "not text"])
def test_a_log_without_its_list_of_files_needs_a_backup(directory: Path, content: bytes | None) -> None:
    manifest = directory / "appendonlydir/appendonly.aof.manifest"
    manifest.unlink()
    if content is not None:
        manifest.write_bytes(content)
    with pytest.raises(DamagedLogError, match="repair-state"):  # and no server begins an empty log in its place
        StateServer.start(directory, job="a")
    with pytest.raises(DamagedLogError, match=r"no repair is possible: .*\nappendonly.aof.manifest cannot be read"):
        repair(directory)
    assert not list(directory.glob("damaged-*")) + list(directory.glob("repair-*"))


def test_a_log_that_is_damaged_at_its_beginning_goes_back_to_the_backup(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    with StateServer.start(directory, job="a") as server, server.endpoint.connect() as client:
        begin_launch(client, server.endpoint, 0)
        State(client, server.endpoint, 0).update({"a": 1, "b": b"x" * 1000})
    with (
        StateSupervisor(directory, job="a", host="127.0.0.1", first_backup_s=0.0, ping_interval_s=0.05) as keeper,
        keeper.endpoint.connect() as client,
    ):
        wait_until(lambda: (directory / BACKUP).exists())
        client.bgrewriteaof()
        wait_until(lambda: len(list((directory / "appendonlydir").glob("*.2.base.rdb"))) == 1)
        wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
        State(client, keeper.endpoint, 0)["a"] = 2
    (base,) = (directory / "appendonlydir").glob("*.base.rdb")
    change(base, base.stat().st_size // 2, bytes(100))
    with pytest.raises(DamagedLogError, match="repair-state"):
        StateServer.start(directory, job="a")
    with pytest.raises(DamagedLogError, match=f"`laggard repair-state --backup {directory}`"):
        repair(directory)
    outcome = CliRunner().invoke(repair_state, ["--backup", str(directory)], standalone_mode=False)
    assert "State is as of commit 1: 2 keys" in outcome.output
    with StateServer.start(directory, job="a") as server, server.endpoint.connect() as client:
        assert State(client, server.endpoint, 0)["a"] == 1
    assert [path.name for path in directory.glob("damaged-*/appendonlydir/*.base.rdb")] == [base.name]


def test_a_backup_that_is_newer_than_the_good_part_is_offered(directory: Path) -> None:
    with StateServer.start(directory, job="a") as server:
        assert server.backup()
        wait_until((directory / BACKUP).exists)
    a_lost_sector(log_of(directory))
    (directory / BACKUP).touch()
    outcome = CliRunner().invoke(repair_state, [str(directory)], standalone_mode=False)
    assert re.search(rf"a backup of .* is newer: `laggard repair-state --backup {directory}`", outcome.output)
    done = repair(directory, backup=True)
    assert done.commits == COMMITS


def test_a_directory_in_use_or_without_state_is_refused(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(StateDirectoryError, match="there is no log of State in it"):
        repair(tmp_path)
    with pytest.raises(StateDirectoryError, match="there is no backup in it"):
        repair(directory, backup=True)
    with StateServer.start(directory, job="a"), pytest.raises(StateDirectoryError, match="is using it"):
        repair(directory, lock_deadline_s=0.05)

"""The same command on every node, started by something else: here by the test, at loopback addresses."""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from laggard.resilience.decision.site import Sighting
from laggard.resilience.record.history_server import HistoryServer
from laggard.resilience.record.node_history import NodeHistory
from laggard.system.ports import free_port
from tests.integration.jobs import RunningJob
from tests.processes import command_lines
from tests.site_servers import SiteServer, site_server
from tests.waiting import Gate, wait_until

Start = Callable[..., RunningJob]

SECRET = "a secret of the tests"
SHOW = """
    import os, sys
    from laggard.resilience import Job

    nodes = Job.current().nodes
    hidden = [name for name in os.environ if name.startswith(("LAGGARD_JOIN", "LAGGARD_STATE_PASS", "PMIX_"))]
    print("rank", os.environ["NODE_RANK"], "of", os.environ["NNODES"], [node.address[-1] for node in nodes], hidden)
    sys.exit(7)
"""
# Each rank waits at a gate of its own.
WAIT = """
    import os, signal, sys
    from laggard.resilience import Job

    def save(*_):
        print("saved", flush=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, save)
    print("launch", Job.current().launch, "rank", os.environ["NODE_RANK"], "of", os.environ["NNODES"], flush=True)
    with open({gates!r} + os.environ["NODE_RANK"]) as gate:
        gate.readline()
"""


class Copies:
    """Copies of one command, each with its index."""

    def __init__(self, start_job: Start, folder: Path, n_nodes: int, program: str, *options: str) -> None:
        self.address = f"127.31.{secrets.randbelow(256)}.1"
        self._start = start_job
        self._n_nodes = n_nodes
        self._folder = folder
        for index in range(n_nodes):
            self.last_word_of(index).touch()
        self._program = program
        self._options = (f"--join={self.address}:{free_port(self.address)}", "--virtual-gpus=1", "--per-node", *options)

    def last_word_of(self, index: int) -> Path:
        """Return the file with what a copy leaves for the operators of its cluster."""
        return self._folder / f"last-word-{index}"

    def start(self, index: int, *options: str, secret: str = SECRET, machine: str = "") -> RunningJob:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("NODE_RANK", str(index))
            environment.setenv("NNODES", str(self._n_nodes))
            environment.setenv("PMIX_NAMESPACE", "the launcher's")
            environment.setenv("LAGGARD_JOIN_SECRET", secret)
            environment.setenv("LAGGARD_STATE_PASSWORD", "secret")
            environment.setenv("LAGGARD_MACHINE", machine or f"machine{index}")
            environment.setenv("LAGGARD_TERMINATION_MESSAGE", str(self.last_word_of(index)))
            return self._start("run", *self._options, *options, program=self._program)


@pytest.fixture
def copies(start_job: Start, tmp_path: Path) -> Callable[..., Copies]:
    return partial(Copies, start_job, tmp_path)


def gates_of(n_ranks: int, folder: Path) -> tuple[list[Gate], str]:
    """Return a gate for each rank, and a program whose ranks wait at them."""
    return [Gate(folder / f"gate{rank}") for rank in range(n_ranks)], WAIT.format(gates=str(folder / "gate"))


def assert_nothing_is_left(*jobs: RunningJob) -> None:
    for job in jobs:
        wait_until(partial(_has_ended, job), lambda: "something is left")


def _has_ended(job: RunningJob) -> bool:
    return command_lines(job.processes()) == []


def test_the_first_copy_runs_the_job_and_all_end_with_its_exit_code(copies: Callable[..., Copies]) -> None:
    command = copies(3, SHOW)
    second, first, third = (command.start(index) for index in (1, 0, 2))
    assert [job.finish() for job in (first, second, third)] == [7, 7, 7], first.everything()
    for rank in range(3):
        assert f"[index{rank}] rank {rank} of 3 ['1', '2', '3'] []\n" in first.output
    assert second.everything() == third.everything() == "--- output\n\n--- account\n"
    assert_nothing_is_left(first, second, third)


def test_a_copy_that_finds_no_controller_says_for_whom_it_has_waited(copies: Callable[..., Copies]) -> None:
    alone = copies(2, SHOW, "--wait-for-nodes=1").start(1)
    assert alone.finish() == 1
    assert "laggard: no controller at 127.31." in alone.account
    assert "within 1 s: nobody listens there" in alone.account


def test_a_copy_with_another_secret_is_not_let_in_and_the_first_says_who_is_missing(
    copies: Callable[..., Copies],
) -> None:
    command = copies(2, SHOW, "--wait-for-nodes=4")
    first, stranger = command.start(0), command.start(1, secret="another secret of the tests")
    assert first.finish() == 1
    assert "laggard: index1 did not join at 127.31." in first.account
    assert stranger.finish() == 1
    assert "laggard: no controller at 127.31." in stranger.account
    assert_nothing_is_left(first, stranger)


def test_a_copy_that_is_started_again_is_a_returned_node_and_one_too_many_disturbs_nobody(
    copies: Callable[..., Copies], tmp_path: Path
) -> None:
    gates, program = gates_of(2, tmp_path)
    command = copies(3, program, "--nodes=2", "--resilient")
    first, second, third = (command.start(index) for index in range(3))
    first.wait_for("launch 0 rank 1 of 2")
    surplus = command.start(2, "--wait-for-nodes=3")
    assert surplus.finish() == 1
    assert "it does not let this node in: are secret and version the same, and does no other copy have this index?" in (
        surplus.account
    )
    second.process.kill()
    first.wait_for("launch 1 rank 1 of 2")
    assert "without index1; index2 comes in from the reserve" in first.account
    assert_nothing_is_left(second)
    again = command.start(1)
    first.wait_for("returned +index1")
    for gate in gates:
        gate.open()
    assert [job.finish() for job in (first, again, third)] == [0, 0, 0], first.everything()
    lost = command.last_word_of(1).read_text()
    assert "without index1" in lost
    assert command.last_word_of(0).read_text() == f"index1: {lost}"
    assert command.last_word_of(2).read_text() == ""
    assert_nothing_is_left(first, again, third)


def test_a_node_that_is_told_to_end_lets_its_rank_save(copies: Callable[..., Copies], tmp_path: Path) -> None:
    gates, program = gates_of(2, tmp_path)
    command = copies(2, program, "--resilient", "--exhaust-resources")
    first, second = command.start(0), command.start(1)
    for rank in range(2):
        first.wait_for(f"launch 0 rank {rank} of 2")
    second.process.send_signal(signal.SIGTERM)
    assert second.finish() == 128 + signal.SIGTERM
    first.wait_for("launch 1 rank 0 of 1")
    assert first.output.count("saved") == 2
    gates[0].open()
    assert first.finish() == 0, first.everything()
    assert_nothing_is_left(first, second)


def test_when_the_first_node_is_lost_the_others_join_the_next_job_that_begins_there(
    copies: Callable[..., Copies], tmp_path: Path
) -> None:
    gates, program = gates_of(2, tmp_path)
    command = copies(2, program, f"--state-dir={tmp_path / 'state'}")
    first, second = command.start(0), command.start(1)
    first.wait_for("launch 0 rank 1 of 2")
    first.process.kill()
    assert_nothing_is_left(first)
    next_first = command.start(0)
    next_first.wait_for("launch 1 rank 1 of 2")
    for gate in gates:
        gate.open()
    assert [next_first.finish(), second.finish()] == [0, 0], next_first.everything()
    assert "is gone, or has given this node up: joining again" in second.account


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SiteServer]:
    with site_server("redis", tmp_path / "server") as there:
        yield there


def test_the_site_remembers_machines_not_the_nodes_that_happened_to_be_on_them(
    copies: Callable[..., Copies], tmp_path: Path, server: SiteServer
) -> None:
    history = NodeHistory(HistoryServer(server.endpoint()))
    for number in range(2):
        history.add(f"old-{number}", Sighting("machine1", time.time(), "failed", f"old-{number}", "too slow"))
    gates, program = gates_of(2, tmp_path)
    command = copies(3, program, "--nodes=2", "--resilient", f"--node-history={server.url}", *server.access())
    first, suspect, third = (command.start(index) for index in range(3))
    first.wait_for("launch 0 rank 1 of 2")
    assert "history   index1, which is on machine1, is used last" in first.account
    third.process.kill()
    first.wait_for("launch 1 rank 1 of 2")
    assert "without index2; index1 comes in from the reserve" in first.account
    successor = command.start(2, machine="machine7")
    first.wait_for("returned +index2")
    suspect.process.kill()
    first.wait_for("launch 2 rank 1 of 2")
    for gate in gates:
        gate.open()
    assert [first.finish(), successor.finish()] == [0, 0], first.everything()
    noted = [each for each in history.read() if not each.job.startswith("old")]
    assert [each.host for each in noted if each.kind == "failed"] == ["machine2", "machine1"]
    assert {each.host for each in noted if each.kind == "ran"} == {"machine0", "machine7"}

"""Ranks that keep their processes when another one is lost: the seam that any program can use, without PyTorch."""

from __future__ import annotations

import functools
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from laggard.kvstore.client import fence
from laggard.kvstore.client.connection import Session
from laggard.kvstore.client.environment import JobEnvironment
from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.control import Control
from laggard.kvstore.errors import FencedError
from laggard.kvstore.membership import (
    JOINS,
    Formation,
    Leaving,
    Membership,
    MembershipRecords,
    Message,
    Ready,
    Replaced,
)
from laggard.kvstore.server.process import StateServer
from laggard.kvstore.state.mapping import State
from laggard.records import record_of
from tests.integration.jobs import RunningJob
from tests.processes import command_lines
from tests.waiting import wait_until

Start = Callable[..., RunningJob]
TWO_NODES = ("--local-nodes=2", "--virtual-gpus=2", "--resilient", "--per-device")

# A step is over once all ranks have counted in it. Its state is the step, which a new process gets from another's file.
PROGRAM = """
    import glob, json, os, signal, sys, time
    from laggard import Job, State
    from laggard.kvstore.client.connection import current_session
    from laggard.kvstore.control import Control
    from laggard.kvstore.errors import FencedError

    {FIRST}
    job, session = Job.current(), current_session()
    membership, state = job.membership, State.current()
    rank, node, here = membership.rank, os.environ["LAGGARD_NODE"], f"pid {os.getpid()}"

    class PeerLost(Exception):
        pass

    def join(have):
        while True:
            kept = {each: {step: f"what rank {each} had at {step}".encode() for step in have} for each in range(4)}
            membership.report(f"address of {rank}", have, have or own(), kept if have else {})
            if (formation := membership.await_formation()) is not None:
                break
        if handed_over := membership.handed_over(formation.step):
            print("was given", handed_over.decode(), flush=True)
        assert formation.handles == tuple(f"address of {each}" for each in range(4)), formation
        membership.formed()
        print("launch", State.current().launch, "rank", rank, here, "goes on from", formation.step, flush=True)
        return formation.step

    def wait_until(done):
        until_s = time.monotonic() + 120
        while not done():
            assert time.monotonic() < until_s
            time.sleep(0.01)

    def own():
        return () if node == "node3" else (int(open(f"{node}-own-{rank}").read()),)

    def train(step):
        if rank == 2 and step in {STEPS} and not os.path.exists(f"killed-{step}"):
            open(f"killed-{step}", "w").close()
            {FAULT}
        if [rank, step, membership.launch] == [0, 3, 0]:
            open("accused", "w").close()
            {ACCUSE}
        state.increment(f"step {step} of {rank}")
        until_s = time.monotonic() + 240
        while not all(f"step {step} of {each}" in state for each in range(4)):
            if len(glob.glob("killed-*")) > membership.launch:
                raise PeerLost
            assert time.monotonic() < until_s
            time.sleep(0.01)

    def keep(step):
        with open(f"own-{rank}.new", "w") as file:
            file.write(str(step))
        os.replace(f"own-{rank}.new", f"{node}-own-{rank}")

    step = 0
    if membership.joins:
        {START}
        step = join(())
    else:
        keep(step)
        membership.offer()
    while step < 6 or membership.launch < {LAUNCHES}:
        try:
            train(step)
        except (PeerLost, FencedError):
            assert membership.await_replaced(30)
            step = join((step,))
            continue
        step += 1
        keep(step)
        if membership.pauses(step):
            if membership.leaves:
                membership.leave(step, f"what rank {rank} had at {step}".encode())
                sys.exit()
            step = join((step,))
    print("rank", rank, here, "ends in launch", membership.launch, os.environ["LAGGARD_LAUNCH"],
          open("/proc/self/environ").read().split("LAGGARD_LAUNCH=")[1][0], flush=True)
"""


def program(
    fault: str = "pass",
    steps: tuple[int, ...] = (),
    accuse: str = "pass",
    launches: int = 0,
    start: str = "pass",
    first: str = "pass",
) -> str:
    """Return a program in which rank 2 has a fault at some steps, and that runs until there were so many launches."""
    values = {"{FAULT}": fault, "{STEPS}": str(steps), "{ACCUSE}": accuse, "{LAUNCHES}": str(launches)} | {
        "{START}": start,
        "{FIRST}": first,
    }
    return functools.reduce(lambda text, name: text.replace(name, values[name]), values, PROGRAM)


def pids(job: RunningJob, rank: int) -> set[str]:
    return {*re.findall(rf"rank {rank}\] .*pid (\d+)", job.output)}


@pytest.mark.parametrize("fault", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(3)"])
def test_a_lost_rank_is_replaced_and_the_others_go_on_in_the_next_launch(start_job: Start, fault: str) -> None:
    job = start_job(*TWO_NODES, program=program(fault, (3,)))
    assert job.finish() == 0, job.everything()
    assert re.search(r"replaced  rank 2 on node2 .*; all go on from step 3\n", job.account), job.everything()
    assert "relaunch" not in job.account
    for rank in range(4):
        assert len(pids(job, rank)) == 1, job.everything()
        assert re.search(rf"rank {rank}\] rank {rank} pid \d+ ends in launch 1 1 1\n", job.output), job.everything()
        assert re.search(rf"launch 1 rank {rank} pid \d+ goes on from 3\n", job.output), job.everything()
    assert command_lines(job.processes()) == []


@pytest.mark.parametrize(
    ("ends", "why"),
    [("sys.exit(4)", "a new process failed while it started"), ("sys.exit()", "a rank has ended already")],
)
def test_a_rank_that_cannot_be_replaced_is_relaunched_with_all_others_and_it_is_said_why(
    start_job: Start, ends: str, why: str
) -> None:
    job = start_job(*TWO_NODES, program=program("sys.exit(3)", (3,), start=ends))
    assert job.finish() == 0, job.everything()
    assert f"ranks cannot keep their processes: {why}" in job.account, job.everything()
    assert re.search(r"relaunch  rank 2 on node2 exited with 3 ", job.account), job.everything()


# Slurm says that a node in use is drained.
DRAINS = """
import os
from laggard.__main__ import main
from laggard.resilience.allocation.base import Unmanaged
from laggard.resilience.allocation.local import LocalAllocation
from laggard.resilience.controller import resource_manager
from laggard.resilience.decision.reasons import NodeWord

class Slurm(Unmanaged):
    def words_on(self, hosts):
        return {"node2": NodeWord("Slurm", "node2", "drained", "fan")} if os.path.exists("accused") else {}

LocalAllocation.manager, resource_manager.ASK_INTERVAL_S = Slurm(), 0.1
raise SystemExit(main())
"""
ASK = "Control(session.client, session.endpoint, 0).ask('reboot', ['node2'])"


@pytest.mark.parametrize(
    ("accuse", "command", "why"),
    [(ASK, ("-m", "laggard"), ""), ("pass", ("-c", DRAINS), "Slurm says node2 is drained: fan; ")],
)
def test_ranks_of_a_node_that_leaves_hand_over_what_only_they_have_before_a_step(
    start_job: Start, accuse: str, command: tuple[str, ...], why: str
) -> None:
    ranks = program(accuse=accuse, launches=1)
    job = start_job("--local-nodes=3", "--nodes=2", *TWO_NODES[1:], program=ranks, command=command)
    assert job.finish() == 0, job.everything()
    change = f"moved +{why}without node2; node3 comes in from the reserve; its ranks go on there from step"
    moved = re.search(rf"{change} (\d+), and the others keep their processes\n", job.account)
    assert moved, job.everything()
    assert "relaunch  " not in job.account
    assert "stays in use" not in job.account
    for rank in range(4):
        assert len(pids(job, rank)) == 1, job.everything()
        assert re.search(rf"launch 1 rank {rank} pid \d+ goes on from {moved[1]}\n", job.output), job.everything()
    for rank in (2, 3):
        assert f"[node3 rank {rank}] was given what rank {rank} had at {moved[1]}\n" in job.output, job.everything()
        assert f"[node2 rank {rank}] rank" not in job.output
    assert command_lines(job.processes()) == []


@pytest.mark.parametrize(
    ("start", "why"),
    [
        ("sys.exit(3)", "a new process failed while it started"),
        ("os.kill(int(open('pid-0').read()), signal.SIGKILL)", "more ranks were lost meanwhile"),
    ],
)
def test_if_no_ranks_can_stand_by_all_are_relaunched_without_the_accused_node(
    start_job: Start, start: str, why: str
) -> None:
    ranks = program(accuse=f"open('pid-0', 'w').write(here[4:]); {ASK}", launches=1, start=start)
    job = start_job("--local-nodes=3", "--nodes=2", *TWO_NODES[1:], program=ranks)
    assert job.finish() == 0, job.everything()
    assert f"ranks cannot keep their processes: {why}\n" in job.account, job.everything()
    assert re.search(r"relaunch  without node2; node3 comes in from the reserve\n", job.account), job.everything()
    assert "moved" not in job.account
    assert command_lines(job.processes()) == []


def test_processes_that_stand_by_take_the_places_of_all_ranks_of_a_node_that_has_lost_one(start_job: Start) -> None:
    ranks = program("os.remove('killed-3'); print(os.getpid(), 'waits', flush=True); time.sleep(300)", (3,), launches=1)
    job = start_job("--local-nodes=3", "--nodes=2", *TWO_NODES[1:], program=ranks)
    pid = int(job.wait_for(r"(\d+) waits")[1])
    job.wait_for("processes stand by on node3")
    (job.directory / "killed-3").touch()
    os.kill(pid, signal.SIGKILL)
    assert job.finish() == 0, job.everything()
    change = "node2 waits in the reserve; node3 comes in from the reserve; replaced, and the other ranks keep"
    found = re.search(rf"replaced +rank 2 on node2 was killed .*; {change} their processes; all go on", job.account)
    assert found, job.everything()
    assert "relaunch  " not in job.account
    for rank in range(4):
        assert len(pids(job, rank)) == 1, job.everything()
        assert re.search(rf"launch 1 rank {rank} pid \d+ goes on from 3\n", job.output), job.everything()
    for rank in (2, 3):
        assert f"[node3 rank {rank}] was given what rank {rank} had at 3\n" in job.output, job.everything()
    assert command_lines(job.processes()) == []


def test_processes_that_stand_by_import_what_a_rank_has_imported_since(start_job: Start) -> None:
    """Else they would do it once they are needed: half a second and more for what DistributedDataParallel imports."""
    waits = "os.remove('killed-3'); print(os.getpid(), 'waits', flush=True); time.sleep(300)"
    imports = "wait_until(lambda: os.path.exists('stand-by')); import cryptography.hazmat.bindings._rust"
    job = start_job(
        "--local-nodes=3", "--nodes=2", *TWO_NODES[1:], program=program(waits, (3,), launches=1, accuse=imports)
    )
    pid = int(job.wait_for(r"(\d+) waits")[1])
    job.wait_for("processes stand by on node3")
    (job.directory / "stand-by").touch()
    stand_by = [each for each in job.processes() if "LAGGARD_STANDS_BY" in each.environ()]
    assert len(stand_by) == 2
    wait_until(lambda: all("cryptography" in str(each.memory_maps()) for each in stand_by), job.everything)
    (job.directory / "killed-3").touch()
    os.kill(pid, signal.SIGKILL)
    assert job.finish() == 0, job.everything()
    assert "all go on from step 3" in job.account
    assert {each.pid for each in stand_by} == {int(pid) for rank in (2, 3) for pid in pids(job, rank)}


def test_a_program_that_reads_its_rank_early_has_no_processes_that_stand_by_and_it_is_said_why(
    start_job: Start,
) -> None:
    ranks = program(first="os.environ.get('RANK')", accuse="wait_until(lambda: os.path.exists('told'))")
    job = start_job("--local-nodes=3", "--nodes=2", *TWO_NODES[1:], program=ranks)
    job.wait_for("no processes stand by on node3: the program reads RANK before")
    (job.directory / "told").touch()
    assert job.finish() == 0, job.everything()
    assert job.account.count("no processes stand by on") == 1
    assert command_lines(job.processes()) == []


def test_a_node_whose_ranks_are_replaced_again_and_again_is_left(start_job: Start) -> None:
    ranks = program("os.kill(os.getpid(), signal.SIGKILL)", (1, 3, 5), launches=4)
    job = start_job("--local-nodes=3", "--nodes=2", *TWO_NODES[1:], "--preload=none", program=ranks)
    assert job.finish() == 0, job.everything()
    assert job.account.count("all go on from step") == 3, job.everything()
    moved = "moved +rank 2 on node2 was killed .*; node2: 3 failures followed it .*; node2 waits in the reserve; node3"
    assert re.search(rf"{moved} comes in from the reserve; its ranks go on there", job.account), job.everything()
    assert "relaunch  " not in job.account
    assert [len(pids(job, rank)) for rank in (0, 1)] == [1, 1]
    assert command_lines(job.processes()) == []


def test_all_ranks_stop_before_the_step_after_the_one_in_which_the_first_of_them_was_told(
    state_server: StateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, first = _member(state_server, monkeypatch, rank=0)
    second = Membership(Session(JobEnvironment(Path("endpoint.json"), 4, "node2"), state_server.endpoint, client), 1, 2)
    assert not second.pauses(7)  # a moment too early
    MembershipRecords(client, state_server.endpoint, 4).publish(Leaving(4, (1,)))
    assert [first.pauses(7), first.pauses(8)] == [False, True]
    assert [second.pauses(8), second.leaves, first.leaves] == [True, True, False]


def test_who_takes_the_place_of_a_rank_adopts_its_launch_and_the_rank_itself_does_not(
    state_server: StateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, leaving = _member(state_server, monkeypatch, rank=1)
    monkeypatch.setenv(JOINS, "5")
    _, joining = _member(state_server, monkeypatch, rank=1)
    leaving.records.hand_over(1, 7, b"state")
    leaving.records.publish(Formation(4, ("a", "b"), 3, {"0": 1}))  # in which it was not there yet
    _begin(client, state_server, 5, Replaced(5, 4, (1,)))
    with pytest.raises(FencedError, match="launch 4"):
        leaving.await_replaced(5.0)
    assert joining.await_formation() is None
    assert (joining.launch, joining.joins, joining.handed_over(7)) == (5, True, b"state")
    _begin(client, state_server, 6, Replaced(6, 5, (1,)))
    with pytest.raises(FencedError, match="launch 5"):
        joining.await_formation()


def test_what_a_rank_keeps_for_others_it_hands_over_for_those_that_are_replaced(
    state_server: StateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, membership = _member(state_server, monkeypatch, rank=1)
    _begin(client, state_server, 5, Replaced(5, 4, (0,)))
    assert membership.await_replaced(5.0)
    membership.report("address", (7,), (7,), {0: {6: b"six", 7: b"seven"}, 2: {7: b"other"}})
    [(_, request)] = Control(client, state_server.endpoint, 5).requests("0-0", 1.0)
    said = record_of(Message, request.body[0]).said
    assert said == Ready(1, "address", (7,), (7,), ((0, 6), (0, 7)))
    records = MembershipRecords(client, state_server.endpoint, 5)
    assert [records.handed_over(rank, 7) for rank in (0, 2)] == [b"seven", None]


def test_a_process_adopts_the_launch_in_which_others_are_replaced(
    state_server: StateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, membership = _member(state_server, monkeypatch, rank=1)
    state = State(client, state_server.endpoint, 4)
    state["a"] = 1
    _begin(client, state_server, 5, Replaced(5, 4, (0,)))
    with pytest.raises(FencedError):
        state["a"] = 2
    assert membership.await_replaced(5.0)
    state["a"] = 3
    assert (state.launch, membership.launch, os.environ["LAGGARD_LAUNCH"]) == (5, 5, "5")
    _begin(client, state_server, 6, Replaced(6, 5, (0,)))
    assert membership.await_formation() is None
    records = MembershipRecords(client, state_server.endpoint, 6)
    records.publish(formation := Formation(6, ("a", "b"), 7, {"0": 1}))
    assert membership.await_formation() == formation
    state["a"] = 4


def test_a_rank_that_was_replaced_stays_fenced_off(state_server: StateServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was stopped, and goes on after somebody has taken its place."""
    client, membership = _member(state_server, monkeypatch, rank=0)
    _begin(client, state_server, 5, Replaced(5, 4, (0,)))
    with pytest.raises(FencedError, match="launch 4"):
        membership.await_replaced(5.0)
    with pytest.raises(FencedError, match="launch 4"):
        membership.offer()


def test_a_launch_of_all_new_processes_is_adopted_by_nobody(
    state_server: StateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, membership = _member(state_server, monkeypatch, rank=0)
    begin_launch(client, state_server.endpoint, 5)
    assert not membership.await_replaced(0.2)
    with pytest.raises(FencedError):
        Control(client, state_server.endpoint, 4).ask("notices", ["x"])


def test_what_ranks_tell_each_other_to_connect_is_that_of_their_launch(state_server: StateServer) -> None:
    client = state_server.endpoint.connect()
    client.flushall()
    begin_launch(client, state_server.endpoint, 4)
    records = MembershipRecords(client, state_server.endpoint, 4)
    records.meet("a", b"1")
    assert (records.met("a"), records.met("b")) == (b"1", None)
    assert [records.agree(key, b"2") for key in "ab"] == [b"1", b"2"]
    begin_launch(client, state_server.endpoint, 5)
    with pytest.raises(FencedError):
        records.meet("a", b"3")


def _member(server: StateServer, monkeypatch: pytest.MonkeyPatch, rank: int) -> tuple[redis.Redis, Membership]:
    """Return a rank of launch 4, as if this process were one."""
    monkeypatch.setattr(fence, "_own_launches", range(0))
    monkeypatch.setenv("LAGGARD_LAUNCH", "4")
    client = server.endpoint.connect()
    client.flushall()
    begin_launch(client, server.endpoint, 4)
    session = Session(JobEnvironment(Path("endpoint.json"), 4, "node1"), server.endpoint, client)
    return client, Membership(session, rank, 2)


def _begin(client: redis.Redis, server: StateServer, launch: int, replaced: Replaced) -> None:
    begin_launch(client, server.endpoint, launch)
    MembershipRecords(client, server.endpoint, launch).publish(replaced)

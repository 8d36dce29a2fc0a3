"""Nodes that were lost come back: real jobs, real agents, a real state server."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import psutil
import pytest

from laggard.collectors.device import VirtualDevice
from laggard.collectors.probe_metrics import RESERVE_PROBE_TIME
from laggard.collectors.probes import WRONG
from laggard.kvstore.control import Control, NodeRecord
from laggard.kvstore.series.streams import Sample, Series
from laggard.kvstore.server.process import StateServer
from laggard.resilience.allocation.local import LocalAllocation
from laggard.resilience.controller import wording
from laggard.resilience.controller.records import Records
from laggard.resilience.controller.reserve import Reserve
from laggard.resilience.controller.returning import Returning
from laggard.resilience.decision.events import NodeReturned
from laggard.resilience.decision.evidence import Finding, GpuHealth, NodeCheck
from laggard.resilience.decision.reasons import NodeWord
from laggard.resilience.decision.roster import Exclusion, Roster
from laggard.resilience.decision.strikes import Strike
from laggard.resilience.errors import AllocationError
from laggard.resilience.nodes.cluster import Cluster, NodeFiles
from laggard.system.steady_clock import SteadyClock
from tests.integration.jobs import THREE_NODES, RunningJob
from tests.processes import command_line, command_lines, seen_of
from tests.waiting import Gate, wait_until

Start = Callable[..., RunningJob]

# Counts in State on every node, forever; a later launch says what it has found, and ends when the test says so.
COUNT = """
    import os, subprocess, time
    from laggard.kvstore import State
    from laggard.resilience import Job

    job, state = Job.current(), State.current()
    rank = int(os.environ["NODE_RANK"])
    print("launch", job.launch, "on", *(node.hostname for node in job.nodes), flush=True)
    if job.restarted:
        print("counted", state.get(f"n{rank}", 0) > 0, flush=True)
        if rank == 0:
            open("end").readline()
        raise SystemExit(0)
    subprocess.Popen(["sleep", "1234"], start_new_session=True)
    while True:
        state[f"n{rank}"] = state.get(f"n{rank}", 0) + 1
        if state[f"n{rank}"] == 5:
            print("counting", flush=True)
        time.sleep(0.01)
"""


def agents(job: RunningJob) -> dict[str, psutil.Process]:
    """Return the agents of the nodes, found by the private folder that each has open."""
    found = {}
    for process in job.processes():
        if "laggard.resilience.agent.agent" not in command_line(process):
            continue
        opened = [file.path for files in seen_of([process], psutil.Process.open_files) for file in files]
        for path in opened:
            if match := re.search(r"/(\d+)/agent\.log$", path):
                found[f"node{match[1]}"] = process
    return found


def test_two_nodes_that_are_silent_do_not_end_a_job_with_one_spare(start_job: Start, tmp_path: Path) -> None:
    end = Gate(tmp_path / "end")
    job = start_job(*THREE_NODES, "--resilient", "--per-node", program=COUNT, directory=tmp_path)
    for node in ("node1", "node2"):
        job.wait_for(rf"\[{node}\] counting")
    before = agents(job)
    for node in ("node2", "node3"):
        before[node].suspend()
    job.wait_for(r"waits .*waiting up to 5 min 0 s for node[23](, node[23])? to return")
    job.wait_for(r"\[node1\] counted True")
    assert not [line for line in command_lines(job.processes()) if "sleep 1234" in line]  # nothing of the old launch
    job.wait_for(r"returned +node[23] is back")
    end.open()
    assert job.finish() == 0, job.everything()
    assert re.search(r"launch 1 on node1 node[23]", job.output)
    assert "0 nodes excluded" in job.account
    assert command_lines(job.processes()) == []


def test_an_excluded_node_is_probed_and_comes_back_when_its_quarantine_is_over(
    start_job: Start, tmp_path: Path
) -> None:
    program = """
        import os, signal
        from laggard.resilience import Job
        from laggard.telemetry import AnalysisClient

        if Job.current().restarted:
            if os.environ["NODE_RANK"] == "0":
                open("end").readline()
            raise SystemExit(0)
        if os.environ["NODE_RANK"] == "0":
            client = AnalysisClient()
            client.connect()
            client.reboot("node2")
        signal.pause()
    """
    end = Gate(tmp_path / "end")
    options = (*THREE_NODES, "--resilient", "--per-node", "--quarantine=1", "--state-dir=state")
    job = start_job(*options, program=program, directory=tmp_path)
    job.wait_for("without node2; node3 comes in from the reserve")
    job.wait_for("returned +node2 is back: it is in the reserve")
    end.open()
    assert job.finish() == 0, job.everything()
    with StateServer.start(tmp_path / "state", job="program") as server:
        records = Records(server.endpoint)
        (exclusion,), (strike,) = records.read_exclusions(), records.read_strikes()
        with server.endpoint.connect() as client:
            control = Control(client, server.endpoint, 1)
            assert control.read_launch().reserve == ()
            assert control.read_reserve() == 1  # so a detector knows that it may ask for a relaunch again
    assert (exclusion.host, exclusion.lost, exclusion.count) == ("node2", False, 1)
    assert strike.host == "node2"
    assert strike.time_s >= exclusion.until_s(1)


def test_exclusions_of_other_nodes_stay_as_they_are(state_server: StateServer) -> None:
    records = Records(state_server.endpoint)
    records.write_exclusions([Exclusion("node2", 1700000000.5)], set())
    assert records.read_exclusions() == [Exclusion("node2", 1700000000.5)]
    third = Exclusion("node3", 1700000001.0, lost=True, count=3)
    records.write_exclusions([third], {"node1", "node3"})
    assert records.read_exclusions() == [Exclusion("node2", 1700000000.5), third]


def test_strikes_of_other_nodes_stay_as_they_are(state_server: StateServer) -> None:
    records = Records(state_server.endpoint)
    assert records.read_strikes() == []
    elsewhere, *here = Strike("elsewhere", 1.0), Strike("node2", 2.0), Strike("node2", 3.0)
    records.write_strikes([elsewhere, *here], {"elsewhere", "node2"})
    records.write_strikes(here[1:], {"node2"})
    assert records.read_strikes() == [elsewhere, here[1]]


class Unreachable(LocalAllocation):
    """Nodes whose agents cannot be started anew until ``mended``; their manager knows why."""

    mended = threading.Event()

    def start_agent_again(self, node: NodeRecord) -> subprocess.Popen[bytes]:
        if not self.mended.is_set():
            raise AllocationError("no answer by pigeon")
        return super().start_agent_again(node)

    def words_on(self, hosts: Collection[str]) -> dict[str, NodeWord]:
        return {host: NodeWord("Slurm", host, "down", "rain") for host in hosts}


class Site:
    """A cluster of two virtual nodes, and what brings them back."""

    def __init__(self, allocation: LocalAllocation, directory: Path, server: StateServer) -> None:
        self.changed = threading.Condition()
        launch = Records(server.endpoint).next_launch()
        self.series = Series(server.endpoint.connect(), server.endpoint, launch)
        self.host = allocation.nodes[1].hostname
        files = NodeFiles({"endpoint.json": server.endpoint.to_json()}, {})
        self.cluster = Cluster(allocation, directory / "nodes", files, self.changed)
        self.cluster.start(Roster((), primary=allocation.nodes[0].hostname))
        wait_until(lambda: all(node.agent.has_started for node in self.cluster.nodes.values()))
        self.returning = Returning(allocation, self.cluster, Reserve(server.endpoint), self.changed, SteadyClock())

    def lose(self) -> None:
        """Lose the second node, and begin to bring it back."""
        self.cluster.remove(self.host)
        self.returning.bring_back(self.host)

    def event(self, *excluded: Exclusion) -> NodeReturned:
        """Wait for a node to return."""
        found: list[NodeReturned] = []
        roster = Roster(("node1",), (), excluded)

        def look() -> bool:
            found.extend(filter(None, [self.returning.next_event(roster, 1.0, urgent=True)]))
            return bool(found)

        wait_until(look)
        return found[0]

    def close(self) -> None:
        self.returning.close()
        self.cluster.stop()


@pytest.fixture
def site(state_server: StateServer, tmp_path: Path) -> Iterator[Callable[[LocalAllocation], Site]]:
    sites: list[Site] = []

    def build(allocation: LocalAllocation) -> Site:
        sites.append(Site(allocation, tmp_path, state_server))
        return sites[-1]

    yield build
    for each in sites:
        each.close()


def test_a_lost_node_has_a_new_agent_when_it_is_back(site: Callable[[LocalAllocation], Site]) -> None:
    here = site(LocalAllocation(2, 0))
    before = here.cluster.nodes[here.host]
    here.lose()
    assert here.event() == NodeReturned(here.host)
    assert here.cluster.nodes[here.host] is not before
    assert here.cluster.lost() == []


def test_a_node_that_comes_back_with_a_gpu_less_is_not_fit(site: Callable[[LocalAllocation], Site]) -> None:
    here = site(LocalAllocation(2, 0))
    here.cluster.nodes[here.host].checks.first = NodeCheck(0.0, {"9": GpuHealth()})
    here.lose()
    assert here.event() == NodeReturned(here.host, (Finding("gpu gone", "9"),))


def test_a_node_that_cannot_be_reached_is_tried_again_and_the_user_is_told_why(
    site: Callable[[LocalAllocation], Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laggard.resilience.controller.returning.FIRST_WAIT_S", 0.1)
    here = site(Unreachable(2, 0))
    here.lose()
    roster = Roster(("node1",))
    wait_until(lambda: here.returning.next_event(roster, 1.0, urgent=True) or here.returning.notices)
    told = "node2 is not back: no answer by pigeon; Slurm says node2 is down: rain; the next attempt is in 0.1 s"
    assert list(map(wording.not_back, here.returning.notices)) == [told]
    Unreachable.mended.set()
    assert here.event() == NodeReturned("node2")
    assert list(map(wording.not_back, here.returning.notices)) == [told]


def test_a_device_that_computes_wrong_results_after_its_quarantine_keeps_its_node_out(
    site: Callable[[LocalAllocation], Site],
) -> None:
    here = site(LocalAllocation(2, 1))
    over = Exclusion(here.host, time.time() - 60)
    assert here.event(over) == NodeReturned(here.host)
    here.cluster.nodes[here.host].tasks.stop_sidecar("reserve-probe")
    wrong = Sample(
        RESERVE_PROBE_TIME,
        0.0,
        (0.1,),
        {"host": here.host, "gpu": "0", "model": VirtualDevice.model, WRONG: "3 wrong results"},
    )
    here.cluster.nodes[here.host].tasks.start_sidecar("reserve-probe", ["sleep", "1000"])
    assert here.returning.next_event(Roster(("node1",), (), (over,)), 1.0, urgent=False) is None
    here.series.add([wrong])
    assert "3 wrong results" in str(here.event(over).faults[0].slow)

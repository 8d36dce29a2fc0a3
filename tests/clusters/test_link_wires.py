"""Slow links on real wires: four machines behind a switch, of which one sends or receives more slowly."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from laggard.collectors.device import VIRTUAL_DEVICES
from laggard.resilience.wire import encode
from laggard.resilience.wire.detection import Watch
from tests.clusters import sshd
from tests.clusters.conftest import require
from tests.clusters.jobs import ClusterJob
from tests.clusters.machines import wait_for
from tests.clusters.wires import DEADLINE_S, NODES, Wires
from tests.printed import LINK_JOB

pytestmark = pytest.mark.timeout(600)

INTERVAL_S = "1"
ROUNDS = 15  # three times as many as a slow node takes to be found
WATCH = encode(Watch(float(INTERVAL_S), watched=("slow-link",), restart_cost_s=0.0)).decode()
DETECT = ("-P", "-m", "laggard.resilience.agent.detect", WATCH)


def watch(wires: Wires) -> None:
    """Have all machines probe their links."""
    wires.start([sys.executable, *DETECT], {VIRTUAL_DEVICES: "1"})


@pytest.fixture
def wires() -> Iterator[Wires]:
    require("tc")
    folder = Path(tempfile.mkdtemp(prefix="lw-"))
    wires = Wires(folder)
    yield wires
    wires.shut_down()
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("fault", "side", "slowdown"),
    [
        ({"send": 10.0}, "sends", (6.0, 15.0)),
        ({"receive": 10.0}, "receives", (6.0, 15.0)),
        ({"send": 2.0}, "sends", (1.6, 3.0)),
    ],
    ids=["sends at a tenth", "receives at a tenth", "sends at half"],
)
def test_a_node_that_is_slow_on_one_side_is_named_with_the_side(
    wires: Wires, fault: dict[str, float], side: str, slowdown: tuple[float, float]
) -> None:
    wires.slow("node2", **fault)
    watch(wires)
    verdict = wires.verdict()
    assert (verdict["host"], verdict["gpu"], verdict["action"]) == ("node2", None, "restart")
    assert f"node2 {side} " in verdict["words"]["evidence"]
    assert slowdown[0] < verdict["slowdown"] < slowdown[1]
    assert {each["host"] for each in wires.requests("verdicts")} == {"node2"}


def test_a_competing_flow_accuses_nobody(wires: Wires) -> None:
    wires.compete("node2", "node3")
    watch(wires)
    wait_for(lambda: wires.n_rounds >= ROUNDS, "enough rounds", DEADLINE_S)
    wires.compete("node3", "node2")
    wires.wait_for("notices", "node[23]: other traffic on its NIC in 3 rounds in a row")
    assert wires.requests("verdicts") == []


def test_a_node_whose_cable_is_pulled_is_named(wires: Wires) -> None:
    watch(wires)
    wait_for(lambda: wires.n_rounds > 3, "some rounds", DEADLINE_S)
    wires.network.cut("node3")
    verdict = wires.verdict()
    assert (verdict["host"], verdict["severity"], verdict["action"]) == ("node3", "faulty", "restart")
    assert "no other node can reach it" in verdict["words"]["evidence"]


def test_a_link_that_goes_down_again_and_again_is_told_and_accuses_nobody(wires: Wires) -> None:
    watch(wires)
    wait_for(lambda: wires.n_rounds > 3, "some rounds", DEADLINE_S)
    for _ in range(3):
        wires.network.cut("node3")
        wires.network.mend("node3")
    wires.wait_for("notices", "node3's link went down [23] times in")
    assert wires.requests("verdicts") == []


# The one on the primary counts in State until it is relaunched, then prints how far it had come.
_PROGRAM = """
import os, time
from laggard import Job, State

job, state = Job.current(), State.current()
if os.environ["LAGGARD_NODE"] == job.primary.hostname:
    print(f"launch {job.launch} on {' '.join(node.hostname for node in job.nodes)} from {state.get('count', 0)}")
while job.launch == 0:
    if os.environ["LAGGARD_NODE"] == job.primary.hostname:
        with state.transaction() as transaction:
            transaction["count"] = transaction.get("count", 0) + 1
    time.sleep(0.1)
"""


def test_a_job_goes_on_without_the_node_whose_nic_has_become_slow(wires: Wires) -> None:
    require("tc", *sshd.PROGRAMS)
    (wires.site.folder_of_user() / "train.py").write_text(_PROGRAM)
    options = (f"--detect-interval={INTERVAL_S}", "--restart-cost=0", "--state-dir=state")
    laggard, *printed = shlex.split(LINK_JOB)
    with sshd.ssh_daemons(wires.site):
        job = ClusterJob(wires.site, wires.network.nodes["node1"], {}, laggard, *options, *printed)
        try:
            job.wait_for("launch 0 on node1 node2 node3 from 0")
            wires.slow("node2", send=10.0)
            job.wait_for(r"verdict +node2 sends .* as slow as its 2 peers.*, \d+ rounds.* \(very slow\)")
            job.wait_for("relaunch +without node2; node4 comes in from the reserve")
            job.wait_for("launch 1 on node1 node3 node4 from [1-9]")
            assert job.finish() == 0, job.output
            print(job.output)
        finally:
            job.end()


def test_the_doctor_lists_the_slowest_links(wires: Wires) -> None:
    require("tc", *sshd.PROGRAMS)
    wires.slow("node2", send=10.0)
    with sshd.ssh_daemons(wires.site):
        command = ("laggard", "doctor", f"--hostlist={','.join(NODES)}", "--virtual-gpus=1", "--past=past.json")
        job = ClusterJob(wires.site, wires.network.nodes["node1"], {}, *command)
        try:
            assert job.finish() in {0, 1}, job.output  # the machines share two processors: a device may be slow
            print(job.output)
        finally:
            job.end()
    first, *_ = re.findall(r"link (\S+) to (\S+): [\d. to]+ MB/s, [\d. to]+ times as slow as the median", job.output)
    assert first[0] == "node2", job.output
    assert "12 links measured: median " in job.output

"""Slow links on real wires: four machines behind a switch, of which one sends or receives more slowly."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laggard.collectors.device import VIRTUAL_DEVICES
from laggard.kvstore.environment import ENDPOINT_FILE, LAUNCH, NODE
from tests.clusters import sshd
from tests.clusters.conftest import require
from tests.clusters.jobs import ClusterJob, environment
from tests.clusters.machines import Machine, Network, wait_for
from tests.printed import LINK_JOB

pytestmark = pytest.mark.timeout(600)

NODES = ("node1", "node2", "node3", "node4")
# Slow enough for the wires, not this machine's processors, to be what is measured.
LINE = "200mbit"
HALF, TENTH = "100mbit", "20mbit"
INTERVAL_S = "1"
ROUNDS = 15  # three times as many as a slow node takes to be found
DEADLINE_S = 300.0
REPOSITORY = Path(__file__).parents[2]

# Sends as fast as it can, or takes what it is sent, until it is killed.
_FLOW = """
import socket, sys
if len(sys.argv) == 2:
    listener = socket.create_server((sys.argv[1], 9999))
    print("ready", flush=True)
    connection, _ = listener.accept()
    while connection.recv(1 << 20):
        pass
else:
    connection = socket.create_connection((sys.argv[1], 9999))
    while True:
        connection.sendall(bytes(1 << 20))
"""


class Wires:
    """Four machines that probe their links, and what their detector says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.network = Network(folder, NODES)
        for name, node in self.network.nodes.items():
            node.run("mount", "-t", "sysfs", "sysfs", "/sys")  # that of the machine's own network
            self.network.cap(name, send=LINE, receive=LINE)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._said = folder / "said"

    def start(self) -> None:
        """Start the state server, and the probes of all nodes."""
        nodes = [f"{name}={node.address}" for name, node in self.network.nodes.items()]
        address = self.network.login.address
        judge = [sys.executable, "-m", "tests.clusters.link_judge", str(self.folder), address, *nodes]
        self._run(self.network.login, "said", {}, *judge)
        wait_for(lambda: "ready" in self.said, "the state server", DEADLINE_S)
        detect = [sys.executable, "-P", "-m", "laggard.resilience.agent.detect", INTERVAL_S, "--watched=slow-link"]
        for name, node in self.network.nodes.items():
            of_node = {ENDPOINT_FILE: str(self.folder / "endpoint.json"), LAUNCH: "0", NODE: name, VIRTUAL_DEVICES: "1"}
            self._run(node, f"{name}.log", of_node, *detect, "--restart-cost=0")

    def compete(self, sender: str, receiver: str) -> None:
        """Fill the link between two nodes with other traffic."""
        receiving, sending = self.network.nodes[receiver], self.network.nodes[sender]
        flow = [sys.executable, "-c", _FLOW, receiving.address]
        self._run(receiving, f"to-{receiver}", {}, *flow)
        wait_for(lambda: "ready" in (self.folder / f"to-{receiver}").read_text(), "the receiver", DEADLINE_S)
        self._run(sending, f"from-{sender}", {}, *flow, "sends")

    def _run(self, machine: Machine, output: str, environment: dict[str, str], *argv: str) -> None:
        with (self.folder / output).open("wb") as file:
            started = machine.start(*argv, output=file, cwd=REPOSITORY, environment={**os.environ, **environment})
        self._processes.append(started)

    @property
    def said(self) -> str:
        """What the judge has printed."""
        return self._said.read_text()

    def requests(self, kind: str) -> list[Any]:
        """Return the verdicts or the notices by now."""
        found = [json.loads(line) for line in self.said.splitlines() if line.startswith("[")]
        return [body for each, body in found if each == kind]

    @property
    def n_reports(self) -> int:
        """How many reports the nodes have written: one of each a round."""
        return int(max(self.requests("reports"), default=0))

    def verdict(self) -> dict[str, Any]:
        """Wait for the first verdict."""
        self.wait_for("verdicts")
        return dict(self.requests("verdicts")[0])

    def wait_for(self, kind: str, pattern: str = "") -> None:
        """Wait for a verdict or a notice."""

        def look() -> bool:
            return any(re.search(pattern, json.dumps(each)) for each in self.requests(kind))

        try:
            wait_for(look, f"{kind} {pattern}", DEADLINE_S)
        except AssertionError as error:
            logs = "\n".join(file.read_text() for file in self.folder.glob("*.log"))
            raise AssertionError(f"{error}\n{self.said}\n{logs}") from None

    def shut_down(self) -> None:
        """End everything."""
        self.network.shut_down()
        for process in self._processes:
            process.wait(DEADLINE_S)


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
        ({"send": TENTH}, "sends", (6.0, 15.0)),
        ({"receive": TENTH}, "receives", (6.0, 15.0)),
        ({"send": HALF}, "sends", (1.6, 3.0)),
    ],
    ids=["sends at a tenth", "receives at a tenth", "sends at half"],
)
def test_a_node_that_is_slow_on_one_side_is_named_with_the_side(
    wires: Wires, fault: dict[str, str], side: str, slowdown: tuple[float, float]
) -> None:
    wires.network.cap("node2", **fault)
    wires.start()
    verdict = wires.verdict()
    assert (verdict["host"], verdict["gpu"], verdict["action"]) == ("node2", None, "restart")
    assert f"node2 {side} " in verdict["evidence"]
    assert slowdown[0] < verdict["slowdown"] < slowdown[1]
    assert {each["host"] for each in wires.requests("verdicts")} == {"node2"}


def test_a_competing_flow_accuses_nobody(wires: Wires) -> None:
    wires.compete("node2", "node3")
    wires.start()
    wait_for(lambda: wires.n_reports >= len(NODES) * ROUNDS, "enough rounds", DEADLINE_S)
    wires.compete("node3", "node2")
    wires.wait_for("notices", "node[23]: other traffic on its NIC in 3 rounds in a row")
    assert wires.requests("verdicts") == []


def test_a_node_whose_cable_is_pulled_is_named(wires: Wires) -> None:
    wires.start()
    wait_for(lambda: wires.n_reports > len(NODES) * 3, "some rounds", DEADLINE_S)
    wires.network.cut("node3")
    verdict = wires.verdict()
    assert (verdict["host"], verdict["severity"], verdict["action"]) == ("node3", "faulty", "restart")
    assert "no other node reaches it any more" in verdict["evidence"]


# Its copy on the primary counts in State until it is relaunched, then prints how far it had come.
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


def test_a_job_goes_on_without_the_node_whose_nic_has_become_slow(wires: Wires, tmp_path: Path) -> None:
    require("tc", *sshd.PROGRAMS)
    (tmp_path / "train.py").write_text(_PROGRAM)
    (keys := wires.folder / "sshd").mkdir()
    network = wires.network
    options = (f"--detect-interval={INTERVAL_S}", "--restart-cost=0", "--state-dir=state")
    laggard, *printed = shlex.split(LINK_JOB)
    with sshd.ssh_daemons(keys, network):
        job = ClusterJob(
            network.nodes["node1"],
            tmp_path,
            environment(dict(os.environ)),
            laggard,
            *options,
            *printed,
        )
        try:
            job.wait_for("launch 0 on node1 node2 node3 from 0")
            network.cap("node2", send=TENTH)
            job.wait_for(r"verdict +node2 sends .* as slow as its 2 peers.*, \d+ rounds \(very slow\)")
            job.wait_for("relaunch +without node2; node4 comes in from the reserve")
            job.wait_for("launch 1 on node1 node3 node4 from [1-9]")
            assert job.finish() == 0, job.output
            print(job.output)
        finally:
            job.end()


def test_the_doctor_lists_the_slowest_links(wires: Wires, tmp_path: Path) -> None:
    require("tc", *sshd.PROGRAMS)
    (keys := wires.folder / "sshd").mkdir()
    network = wires.network
    network.cap("node2", send=TENTH)
    with sshd.ssh_daemons(keys, network):
        command = ("laggard", "doctor", f"--hostlist={','.join(NODES)}", "--virtual-gpus=1", "--past=past.json")
        job = ClusterJob(network.nodes["node1"], tmp_path, environment(dict(os.environ)), *command)
        try:
            assert job.finish() in {0, 1}, job.output  # the machines share two processors: a device may be slow
            print(job.output)
        finally:
            job.end()
    first, *_ = re.findall(r"link (\S+) to (\S+): [\d. to]+ MB/s, [\d. to]+ times as slow as the median", job.output)
    assert first[0] == "node2", job.output
    assert "12 links measured: median " in job.output


# What the doctor does once the probes of the GPUs have run, one on each node; what stands in for CuPy and NCCL really
# sends from node to node, and on node2 at a tenth of the rate of the others.
_BY_NCCL = """
import sys
from laggard.resilience.allocation.ssh import Ssh
from laggard.resilience.command.link_check import check_links
from laggard.resilience.command.link_lines import lines_on_nccl
from laggard.resilience.command.nccl_check import Rails
here, *others = sys.argv[1:]
names = {name: name for name in sys.argv[1:]}
rails = Rails({name: {0: "0"} for name in names})
found = check_links({here: None, **dict.fromkeys(others, Ssh())}, names, "=eth0", rails)
print(*lines_on_nccl(found.nccl), sep="\\n")
"""
_ONE_GPU = """
import os
from tests.fake_cupy.machine import Board, install
install(Board(rail_bytes_s=5e6 if os.environ["LAGGARD_NODE"] == "node2" else 50e6))
"""


def test_bursts_by_nccl_go_over_the_network_that_is_asked_for(wires: Wires, tmp_path: Path) -> None:
    require(*sshd.PROGRAMS)
    (keys := wires.folder / "sshd").mkdir()
    (wires.folder / "cupy.py").write_text(_ONE_GPU)
    network, with_cupy = wires.network, environment(dict(os.environ))
    with_cupy["PYTHONPATH"] = os.pathsep.join([str(wires.folder), str(REPOSITORY), with_cupy["PYTHONPATH"]])
    with sshd.ssh_daemons(keys, network):
        job = ClusterJob(network.nodes["node1"], tmp_path, with_cupy, sys.executable, "-c", _BY_NCCL, *NODES)
        try:
            assert job.finish() == 0, job.output
        finally:
            job.end()
    assert job.output.splitlines() == [
        "nccl gpu0: link node2 to node[1,3-4]: 0.005 GB/s, 10 times as slow as the median",
        "nccl: 12 links measured: median 0.05 GB/s (gpu0)",
    ]

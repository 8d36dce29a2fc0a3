"""Jobs on pods: machines with what a pod has, an address, a name and a private folder, and neither ssh nor privileges.

No Kubernetes is in it: the test does what a Job does. It starts the same command in each pod, sends SIGTERM, and makes
new pods, under the same index and with another address, for those that have vanished.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from laggard.resilience.command import manifest
from tests.clusters.machines import PRIVATE, Machine, Network, missing_for_machines
from tests.clusters.state_server import site_state
from tests.integration.jobs import GOES_ON
from tests.processes import command_line, command_lines
from tests.waiting import DEADLINE_S, Gate, wait_until

SUBNET = "10.78.0"
DOMAIN = "train.research.svc.cluster.local"
PROGRAM = """
    import os, signal, sys
    from laggard.resilience import Job

    def save(*_):
        print("saves on", os.environ["LAGGARD_NODE"], flush=True)
        while rank in sys.argv[2:]:
            signal.pause()
        sys.exit(0)

    rank = os.environ["NODE_RANK"]
    signal.signal(signal.SIGTERM, save)
    job = Job.current()
    me = next(node for node in job.nodes if node.hostname == os.environ["LAGGARD_NODE"])
    print("launch", job.launch, "rank", rank, "on", me.hostname, "at", me.address, flush=True)
    with open(sys.argv[1] + rank) as gate:
        gate.readline()
"""


@dataclass
class Pod:
    """A pod, and the only command that was started in it."""

    machine: Machine
    process: subprocess.Popen[bytes]
    log: Path
    killer: threading.Timer | None = None

    @property
    def output(self) -> str:
        """What the command has written."""
        return GOES_ON.sub(" ", self.log.read_text())

    def wait_for(self, pattern: str) -> None:
        """Wait until the output matches."""
        wait_until(lambda: re.search(pattern, self.output), lambda: f"no {pattern!r} in {self.output}")

    def terminate(self, grace_s: float) -> None:
        """Send SIGTERM to the pod's first process, as when it is evicted or deleted, and kill all after a time."""
        (first,) = (each for each in self.machine.processes() if "-m laggard run" in command_line(each))
        first.send_signal(signal.SIGTERM)
        self.killer = threading.Timer(grace_s, self.machine.crash)
        self.killer.start()

    def finish(self) -> int:
        """Wait for the end of the command, which leaves nothing, and return its exit code."""
        exit_code = self.process.wait(DEADLINE_S)
        if self.killer is not None:
            self.killer.cancel()
        wait_until(lambda: not command_lines(self.machine.processes()), lambda: self.output)
        return exit_code


class Pods:
    """The pods of an Indexed Job, and the names that its headless Service gives them."""

    def __init__(self, folder: Path, n_nodes: int, *options: str, deaf: tuple[str, ...] = ()) -> None:
        self._folder, self._n_nodes, self._options = folder, n_nodes, options
        self._deaf = deaf  # ranks that save for ever
        self.network = Network(folder, [])
        self._addresses: dict[int, str] = {}
        self._all: list[Pod] = []
        self._hosts = folder / "hosts"
        self.gates = [Gate(folder / f"gate{rank}") for rank in range(n_nodes)]
        (folder / "program.py").write_text(textwrap.dedent(PROGRAM))

    def start(self, index: int) -> Pod:
        """Make the pod of an index, with an address that no pod had before."""
        number = 11 + len(self._all)
        self._addresses[index] = f"{SUBNET}.{number}"
        names = [f"{address} train-{of}.{DOMAIN} train-{of}" for of, address in self._addresses.items()]
        self._hosts.write_text("\n".join(["127.0.0.1 localhost", *names]) + "\n")
        machine = Machine(f"train-{index}", self._addresses[index], self._hosts)
        # The name of a cable is that of its machine, and a cable goes some time after its machine.
        self.network.login.run("ip", "link", "delete", f"to-{machine.name}", check=False)
        machine.plug_in(self.network.login)
        log = self._folder / f"log{number}"
        given = {"NNODES": str(self._n_nodes), "JOB_COMPLETION_INDEX": str(index)}
        own = {"HOME": PRIVATE, "LAGGARD_RUNTIME_ROOT": PRIVATE, "LAGGARD_REPORT": "0", "PATH": os.environ["PATH"]}
        own["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
        program = ("program.py", str(self._folder / "gate"), *self._deaf)
        command = ("run", *self._options, "--virtual-gpus=1", "--per-node", *program)
        with log.open("wb") as output:
            process = machine.start(
                *(sys.executable, "-m", "laggard", *command),
                output=output,
                cwd=self._folder,
                environment={**given, **own, "LAGGARD_JOIN_SECRET": "a secret of the pods"},
            )
        self._all.append(Pod(machine, process, log))
        return self._all[-1]

    def shut_down(self) -> None:
        """End them all."""
        for pod in self._all:
            pod.machine.shut_down()
            pod.process.wait(DEADLINE_S)
        self.network.shut_down()


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Callable[..., Pods]]:
    if missing := missing_for_machines():
        pytest.skip(missing)
    made: list[Pods] = []

    def make(n_nodes: int, *options: str, deaf: tuple[str, ...] = ()) -> Pods:
        made.append(Pods(tmp_path, n_nodes, *options, deaf=deaf))
        return made[-1]

    yield make
    for each in made:
        each.shut_down()


def test_a_pod_that_vanishes_and_comes_back_with_another_address_is_a_returned_node(pods: Callable[..., Pods]) -> None:
    job = pods(3, "--nodes=2", "--resilient")
    third, second, first = (job.start(index) for index in (2, 1, 0))
    first.wait_for(rf"launch 0 rank 1 on train-1 at {SUBNET}.12\b")
    second.machine.crash()
    first.wait_for(rf"launch 1 rank 1 on train-2 at {SUBNET}.11\b")
    again = job.start(1)
    first.wait_for("returned +train-1")
    third.machine.crash()
    first.wait_for(rf"launch 2 rank 1 on train-1 at {SUBNET}.14\b")
    for gate in job.gates[:2]:
        gate.open()
    assert [first.finish(), again.finish()] == [0, 0], first.output


def test_all_pods_that_are_told_to_end_save_and_end_before_they_are_killed(pods: Callable[..., Pods]) -> None:
    job = pods(2, "--grace=4", deaf=("1",))
    first, second = job.start(0), job.start(1)
    for rank in range(2):
        first.wait_for(f"launch 0 rank {rank} on train-{rank}")
    like_it = manifest.Pods(name="train", image="train:1", n_nodes=2, gpus_per_node=0)
    *_, written = manifest.manifests("job", like_it, [], grace_s=4.0)
    for pod in (second, first):
        pod.terminate(written["spec"]["template"]["spec"]["terminationGracePeriodSeconds"])
    assert [first.finish(), second.finish()] == [143, 143], first.output + second.output
    for rank in range(2):
        assert f"saves on train-{rank}" in first.output


def test_when_the_first_pod_is_replaced_the_others_join_the_new_one(pods: Callable[..., Pods]) -> None:
    job = pods(2)
    first, second = job.start(0), job.start(1)
    first.wait_for("launch 0 rank 1 on train-1")
    first.machine.crash()
    successor = job.start(0)
    successor.wait_for("launch 0 rank 1 on train-1")
    for gate in job.gates:
        gate.open()
    assert [successor.finish(), second.finish()] == [0, 0], successor.output
    assert "is gone, or has given this node up: joining again" in second.output


def test_with_state_on_the_sites_server_the_new_first_pod_goes_on_where_the_lost_one_was(
    pods: Callable[..., Pods], tmp_path: Path
) -> None:
    url, server = f"rediss://{SUBNET}.100:6379", tmp_path / "server"
    access = f"--state-password-file={server / 'password'}", f"--state-ca={server / 'ca.pem'}"
    job = pods(2, f"--state-server={url}", "--job-name=train", *access)
    with site_state(job.network.login, server) as there:
        assert there == url
        first, second = job.start(0), job.start(1)
        first.wait_for("launch 0 rank 1 on train-1")
        first.machine.crash()
        successor = job.start(0)
        successor.wait_for("launch 1 rank 1 on train-1")
        for gate in job.gates:
            gate.open()
        assert [successor.finish(), second.finish()] == [0, 0], successor.output

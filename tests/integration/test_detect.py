"""``--detect slow-gpu``: programs that know nothing about it still get rid of their slow node."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from tests.integration.jobs import THREE_NODES, RunningJob
from tests.processes import command_line
from tests.waiting import Gate, wait_until

Start = Callable[..., RunningJob]

DETECT = (*THREE_NODES, "--resilient", "--detect=slow-gpu", "--detect-interval=0.5", "--restart-cost=0")
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
ENDS_WHEN_RELAUNCHED = ("sh", "-c", "test $LAGGARD_LAUNCH = 1 || exec sleep 600")

# Two threads, so that one product waits while the other one runs.
THRASHER = """
import sys, threading
from pathlib import Path
import numpy as np
from laggard.collectors.device import VirtualDevice

device = VirtualDevice("0", Path(sys.argv[1]))
ones = np.ones((1500, 1500), np.float32)

def load():
    while True:
        device.run(lambda: ones @ ones)

threading.Thread(target=load, daemon=True).start()
load()
"""


def probes_of(job: RunningJob, node: str, command: str = "laggard.resilience.agent.detect") -> psutil.Process:
    """Return the process that probes a node, once it exists."""
    found: list[psutil.Process] = []

    def look() -> bool:
        with contextlib.suppress(AssertionError):
            found.append(job.process_of(node, command))
        return bool(found)

    wait_until(look, job.everything)
    return found[0]


@contextlib.contextmanager
def thrashed(job: RunningJob, node: str, probes: str = "laggard.resilience.agent.detect") -> Iterator[None]:
    """Load the first device of a node, from outside the job."""
    environment = probes_of(job, node, probes).environ()
    command = [sys.executable, "-c", THRASHER, environment["LAGGARD_VIRTUAL_DEVICE_DIR"]]
    with subprocess.Popen(command, env=environment | {"LAGGARD_TEST_MARKER": "not of the job"}) as thrasher:
        try:
            yield
        finally:
            thrasher.kill()


def test_probes_that_are_killed_are_reported_and_started_again(start_job: Start) -> None:
    job = start_job(*DETECT, "--per-node", "sleep", "600")
    job.wait_for("launch +0 on node1, node2")
    killed = probes_of(job, "node1")
    killed.kill()
    job.wait_for(r"notice +node1: probes-0 ended with exit code -9; it will be restarted in 1\.0 s")
    wait_until(lambda: probes_of(job, "node1") != killed, job.everything)


def test_a_warning_of_slurm_to_all_processes_ends_none_of_laggards_own(start_job: Start) -> None:
    """Slurm sends it to every process of a step; only the program has the right to be ended by it."""
    job = start_job(*DETECT, "--telemetry-level=1", "--per-node", "sleep", "600")
    job.wait_for("launch +0 on node1, node2")
    assert ignored(job.state_server(), signal.SIGUSR1)  # the other is caught: it has its threads write their stacks
    helpers = [probes_of(job, "node1"), probes_of(job, "node3", "reserve_probe")]
    helpers += [probes_of(job, "node1", name) for name in ("telemetry.server", "metrics.process")]
    wait_until(lambda: all(ignored(process, *WARNINGS) for process in helpers), job.everything)
    program = probes_of(job, "node2", "sleep 600")
    wait_until(lambda: "sleep" in command_line(program).partition(" ")[0], job.everything)
    assert not ignored(program, signal.SIGUSR1)
    assert not ignored(program, signal.SIGUSR2)


def ignored(process: psutil.Process, *signals: signal.Signals) -> bool:
    """Return whether a process ignores all of these signals, by what the kernel says of it."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    mask = int(status.partition("SigIgn:")[2].split()[0], 16)
    return all(mask >> (each - 1) & 1 for each in signals)


# A rank of node2 says of node1's device that it is broken, in a sample, in a verdict, and in what is no verdict.
LIAR = """
import os, select, signal, time
from laggard.collectors.probe_metrics import PROBE_TIME
from laggard.collectors.probes import WRONG
from laggard.detectors import Verdict
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.control import Control
from laggard.kvstore.series.streams import Sample, Series

if os.environ["LAGGARD_NODE"] == "node2" and os.environ["LAGGARD_LAUNCH"] == "0":
    session = current_session()
    launch = session.environment.launch
    tags = {"host": "node1", "gpu": "0", WRONG: "made up"}
    series, control = (kind(session.client, session.endpoint, launch) for kind in (Series, Control))
    gate = open("gate")
    while not select.select([gate], [], [], 0.1)[0]:
        series.add([Sample(PROBE_TIME, time.time(), (9.0,), tags)])
    control.ask("verdicts", [Verdict.of_fault("node1", "0", "made up").to_fields(), {"host": 3}])
    control.ask("verdicts", [Verdict.of_fault("node2", "0", "it says so itself").to_fields()])
signal.pause()
"""


def test_a_rank_is_believed_about_its_own_node_only(start_job: Start, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    job = start_job(*DETECT, "--per-node", program=LIAR, directory=tmp_path)
    job.wait_for("refused from node2: a process is believed about its own node only, not about 'node1'")
    gate.open()
    job.wait_for("verdict +node2 gpu 0: it says so itself")
    job.wait_for("launch +1 on node1, node3")
    assert "made up" not in job.account
    doubt = "a verdict of a process on node2 is not valid: Verdict.host must be of type str, not int"
    assert job.account.count(doubt) == 1, job.everything()

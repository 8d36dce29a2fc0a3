"""``--detect slow-gpu``: programs that know nothing of it lose their slow node all the same."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.integration.jobs import THREE_NODES, RunningJob, wait_until

Start = Callable[..., RunningJob]

DETECT = (*THREE_NODES, "--resilient", "--detect=slow-gpu", "--detect-interval=0.5")
ENDS_WHEN_RELAUNCHED = ("sh", "-c", "test $LAGGARD_LAUNCH = 1 || exec sleep 600")

# Two threads, so that one product waits while the other one runs.
THRASHER = """
import sys, threading
from pathlib import Path
import numpy as np
from collectors.device import VirtualDevice

device = VirtualDevice("0", Path(sys.argv[1]))
ones = np.ones((1500, 1500), np.float32)

def load():
    while True:
        device.run(lambda: ones @ ones)

threading.Thread(target=load, daemon=True).start()
load()
"""


def probes_of(job: RunningJob, node: str) -> psutil.Process:
    """Return the process that probes a node, once it is there."""
    found: list[psutil.Process] = []

    def look() -> bool:
        with contextlib.suppress(AssertionError):
            found.append(job.process_of(node, "resilience.detect_node"))
        return bool(found)

    wait_until(look, job.everything)
    return found[0]


@contextlib.contextmanager
def thrashed(job: RunningJob, node: str) -> Iterator[None]:
    """Load the first device of a node, from outside of the job."""
    environment = probes_of(job, node).environ()
    command = [sys.executable, "-c", THRASHER, environment["LAGGARD_VIRTUAL_DEVICE_DIR"]]
    with subprocess.Popen(command, env=environment | {"LAGGARD_TEST_MARKER": "not of the job"}) as thrasher:
        yield
        thrasher.kill()


@pytest.mark.parametrize("way", [("--per-node",), ()], ids=["a copy on every node", "one program, with Ray"])
def test_a_command_that_knows_nothing_of_it_goes_on_without_the_slow_node(
    start_job: Start, way: tuple[str, ...]
) -> None:
    job = start_job(*DETECT, *way, *ENDS_WHEN_RELAUNCHED)
    job.wait_for("launch +0 on node1, node2")
    with thrashed(job, "node2"):
        job.wait_for("verdict +node2 gpu 0: .* times as slow as its 3 peers")
        assert job.finish() == 0, job.everything()
    assert "without node2; node3 comes in from the reserve" in job.account
    assert "launch    1 on node1, node3" in job.account
    assert job.processes() == []


def test_probes_that_are_killed_are_told_of(start_job: Start) -> None:
    job = start_job(*DETECT, "--per-node", "sleep", "600")
    job.wait_for("launch +0 on node1, node2")
    probes_of(job, "node1").kill()
    job.wait_for("notice +node1: probes-0 ended with exit code -9; it stays down")

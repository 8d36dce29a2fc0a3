"""A Ray cluster whose nodes, as pods of KubeRay's may be, are known by names, and say on which machine they are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clusters.conftest import require
from tests.clusters.machines import PRIVATE, Network
from tests.integration.jobs import GOES_ON
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(600)

FIRST, SECOND = "head-x7f2k", "gpu-9pq4m"
START = (str(Path(sys.executable).with_name("ray")), "start", "--block", "--num-cpus=1")
RAY = (*START, f"--temp-dir={PRIVATE}/ray", "--object-store-memory=100000000")
LAGGARD = str(Path(sys.executable).with_name("laggard"))
HISTORY = f"--node-history={PRIVATE}/history"
DEADLINE_S = 300.0

Start = Callable[..., "tuple[subprocess.Popen[bytes], Path]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a command on one of the two machines, each with a private folder."""
    require()
    folder = Path(tempfile.mkdtemp(prefix="lr-", dir="/tmp"))
    network = Network(folder, [FIRST, SECOND])
    own = {"HOME": PRIVATE, "LAGGARD_RUNTIME_ROOT": PRIVATE, "LAGGARD_REPORT": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    started: list[subprocess.Popen[bytes]] = []

    def run(machine: str, *command: str, **more: str) -> tuple[subprocess.Popen[bytes], Path]:
        log = folder / f"{len(started)}.log"
        with log.open("wb") as file:
            started.append(
                network.nodes[machine].start(*command, output=file, environment={**os.environ, **own, **more})
            )
        return started[-1], log

    yield run
    network.shut_down()
    for process in started:
        process.wait(DEADLINE_S)
    shutil.rmtree(folder)


def test_nodes_that_ray_knows_by_names_meet_and_the_site_remembers_their_machines(start: Start) -> None:
    head = ("--head", "--port=6379", "--include-dashboard=false")
    worker = (f"--address={FIRST}:6379", "--num-gpus=1")
    of_machine = {"LAGGARD_MACHINE": "gpu-0815", "CUDA_VISIBLE_DEVICES": "7"}
    for name, role, variables in ((FIRST, head, {}), (SECOND, worker, of_machine)):
        _, log = start(name, *RAY, f"--node-ip-address={name}", *role, **variables)
        wait_until(lambda: "will now block" in log.read_text(), log.read_text, DEADLINE_S)  # noqa: B023 - called at once
    tell = 'echo "rank $NODE_RANK of $NNODES on $(hostname) sees $CUDA_VISIBLE_DEVICES, primary $MASTER_ADDR"'
    command = (LAGGARD, "--wlm=ray", HISTORY, "--per-node", "sh", "-c", tell)
    job, log = start(FIRST, *command, RAY_ADDRESS=f"{FIRST}:6379")
    exit_code = job.wait(DEADLINE_S)
    said = GOES_ON.sub(" ", log.read_text())
    assert exit_code == 0, said
    assert f"rank 0 of 2 on {FIRST} sees , primary {FIRST}" in said, said
    assert f"rank 1 of 2 on {SECOND} sees 7, primary {FIRST}" in said, said
    listing, log = start(FIRST, LAGGARD, "nodes", HISTORY, "--all", "--json")
    assert listing.wait(DEADLINE_S) == 0
    assert [name in log.read_text() for name in ("gpu-0815", SECOND, FIRST)] == [True, False, True], log.read_text()

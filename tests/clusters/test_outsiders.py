"""Another user, on a node outside of the job, scans, holds and floods every port of the job's nodes: it goes on."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import outsider, slurm_daemons
from tests.clusters.conftest import require
from tests.clusters.jobs import ClusterJob, Watch
from tests.clusters.site import NODES, Site
from tests.clusters.slurm_daemons import SlurmCluster

Start = Callable[..., ClusterJob]

pytestmark = pytest.mark.timeout(600)

FIRST, SECOND, _, LAST = NODES
NOBODY = "65534"
# Of slurmctld and slurmd, which are the site's.
SITES_PORTS = {26817, 26818}
# Longer than `srun` waits for the rest of a message, and than an agent may be silent.
ATTACK_S = 14.0
PROGRAM = 'echo "rank $NODE_RANK in launch $LAGGARD_LAUNCH"; until test -e end; do sleep 0.2; done'


@pytest.fixture(scope="module")
def slurm(site: Site) -> Iterator[SlurmCluster]:
    require(*slurm_daemons.PROGRAMS)
    folder = site.folder / "slurm"
    folder.mkdir()
    with SlurmCluster(folder, site.network, slurmd_timeout_s=300) as cluster:
        yield cluster


def attack(site: Site) -> list[dict[str, Any]]:
    """Attack the job's nodes as another user from the last node; return what was attacked how."""
    nodes = site.network.nodes
    script = shutil.copy(Path(outsider.__file__), site.folder / "outsider.py")
    command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", sys.executable, "-I", str(script)]
    argv = nodes[LAST].command(*command, str(ATTACK_S), nodes[FIRST].address, nodes[SECOND].address)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_an_outsider_who_holds_and_floods_every_port_takes_no_node_from_a_job(
    slurm: SlurmCluster, site: Site, start_as_user: Start
) -> None:
    watch = Watch(site.network)
    salloc = ("salloc", "--nodes=2", "--exclusive", "--no-kill", f"--nodelist={FIRST},{SECOND}")
    options = ("--resilient", "--exhaust-resources", "--virtual-gpus=1", "--per-node")
    job = start_as_user(slurm.network.login, slurm.environment, *salloc, "laggard", *options, "sh", "-c", PROGRAM)
    job.wait_for("rank . in launch 0", times=2)
    attacked = attack(site)
    assert [each["attack"] for each in attacked] == ["hold", "flood"]
    ports = {address: set(found) - SITES_PORTS for address, found in attacked[0]["ports"].items()}
    # The state server, the agents' port, and at least one of srun's.
    assert len(ports[site.network.nodes[FIRST].address]) >= 3, ports
    (site.home / "work" / "end").touch()
    assert job.finish() == 0, job.output
    assert not re.search("relaunch|lost|excluded .*node", job.output), job.output
    assert "launch 1" not in job.output
    watch.expect_no_processes()
    site.clean()

"""One ``srun`` starts the agents of a job's nodes, on real Slurm daemons: what may happen to it, and to a node."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.clusters.jobs import ClusterJob, Watch
from tests.clusters.machines import Machine
from tests.clusters.site import NODES, Site
from tests.clusters.slurm_daemons import SlurmCluster
from tests.waiting import Gate

Start = Callable[..., ClusterJob]

pytestmark = [pytest.mark.usefixtures("repaired"), pytest.mark.timeout(600)]

FIRST, SECOND, THIRD, _ = NODES

SALLOC = ("salloc", "--nodes=3", "--exclusive", "--no-kill")
# Each process prints its rank; those of the first launch wait to be ended.
TELL = 'echo "rank $NODE_RANK in launch $LAGGARD_LAUNCH on $(hostname)"; test $LAGGARD_LAUNCH != 0 || sleep 600'
LAGGARD = ("laggard", "--nodes=2", "--resilient", "--per-node", "sh", "-c", TELL)


def sruns(machine: Machine) -> list[psutil.Process]:
    return [process for process in machine.processes() if process.name() == "srun"]


def test_the_agents_outlive_their_srun_and_one_that_is_killed_costs_no_other(
    slurm: SlurmCluster, site: Site, watch: Watch, start: Start
) -> None:
    job = start(site.network.login, slurm.environment, *SALLOC, *LAGGARD)
    job.wait_for("rank . in launch 0", times=2)
    (srun,) = sruns(site.network.nodes[FIRST])
    srun.kill()
    site.network.nodes[SECOND].process("laggard.resilience.agent.agent").kill()
    job.wait_for(f"rank 1 in launch 1 on {THIRD}")
    assert job.finish() == 0, job.output
    assert f"{SECOND} is lost" in job.output, job.output
    assert f"{THIRD} is lost" not in job.output, job.output
    watch.expect_no_processes()


def test_a_node_that_has_crashed_before_the_start_costs_only_itself(
    slurm: SlurmCluster, site: Site, start: Start, work: Path
) -> None:
    gate = Gate(work / "gate")
    script = f"echo allocated; read _ < gate; exec {shlex.join(LAGGARD)}"
    job = start(site.network.login, slurm.environment, *SALLOC, "sh", "-c", script)
    job.wait_for("allocated")
    site.network.nodes[SECOND].crash()
    gate.open()
    job.wait_for(f"waiting for {SECOND}.* by srun: ")
    job.wait_for(f"lost +{SECOND}: no answer by srun .*; the job begins without it")
    job.wait_for(f"rank 1 in launch 0 on {THIRD}")
    assert "by an earlier job" not in job.output
    assert len(sruns(site.network.nodes[FIRST])) <= 2, f"{THIRD} has an srun of its own, with a second process"

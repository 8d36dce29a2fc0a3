"""One ``srun`` starts the agents of a job's nodes, on real Slurm daemons: what may happen to it, and to a node."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.clusters.jobs import ClusterJob, Watch
from tests.clusters.machines import Machine, Network
from tests.clusters.slurm_daemons import SlurmCluster
from tests.processes import command_line
from tests.waiting import Gate

Start = Callable[..., ClusterJob]

pytestmark = [pytest.mark.usefixtures("repaired"), pytest.mark.timeout(600)]

SALLOC = ("salloc", "--nodes=3", "--exclusive", "--no-kill")
# Each copy prints its rank; those of the first launch wait to be ended.
TELL = 'echo "rank $NODE_RANK in launch $LAGGARD_LAUNCH on $(hostname)"; test $LAGGARD_LAUNCH != 0 || sleep 600'
LAGGARD = ("laggard", "--nodes=2", "--resilient", "--per-node", "sh", "-c", TELL)


def sruns(machine: Machine) -> list[psutil.Process]:
    return [process for process in machine.processes() if process.name() == "srun"]


def test_the_agents_outlive_their_srun_and_one_that_is_killed_costs_no_other(
    slurm: SlurmCluster, network: Network, watch: Watch, start: Start
) -> None:
    job = start(network.login, slurm.environment, *SALLOC, *LAGGARD)
    job.wait_for("rank . in launch 0", times=2)
    (srun,) = sruns(network.nodes["node1"])
    srun.kill()
    (agent,) = [p for p in network.nodes["node2"].processes() if "laggard.resilience.agent.agent" in command_line(p)]
    agent.kill()
    job.wait_for("rank 1 in launch 1 on node3")
    assert job.finish() == 0, job.output
    assert "node2 is lost" in job.output, job.output
    assert "node3 is lost" not in job.output, job.output
    watch.expect_no_processes()


def test_a_node_that_has_crashed_before_the_start_costs_only_itself(
    slurm: SlurmCluster, network: Network, start: Start, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    script = f"echo allocated; read _ < {tmp_path}/gate; exec {shlex.join(LAGGARD)}"
    job = start(network.login, slurm.environment, *SALLOC, "sh", "-c", script)
    job.wait_for("allocated")
    network.nodes["node2"].crash()
    gate.open()
    job.wait_for("lost .*node2: no answer by srun")
    job.wait_for("rank 1 in launch 0 on node3")
    assert len(sruns(network.nodes["node1"])) <= 2, "node3 has an srun of its own, with a second process"

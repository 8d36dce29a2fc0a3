"""Copies of one command that MPI's launchers and Slurm start on nodes: nobody says where the first one runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clusters.conftest import require
from tests.clusters.jobs import ClusterJob, Watch
from tests.clusters.site import NODES, Site
from tests.clusters.slurm_daemons import SlurmCluster
from tests.printed import MPI_JOB

Start = Callable[..., ClusterJob]

pytestmark = pytest.mark.timeout(900)

FIRST, SECOND, THIRD, ELSEWHERE = NODES
PASSED = ("PATH", "PYTHONPATH", "LAGGARD_VIRTUAL_GPUS", "LAGGARD_REPORT")
TELL = ("--per-node", "sh", "-c", 'echo "rank $NODE_RANK of $NNODES on $(hostname), primary $MASTER_ADDR"')
OPEN_MPI = ("--host", f"{THIRD},{FIRST},{SECOND}", *(word for name in PASSED for word in ("-x", name)))
HYDRA = ("-hosts", f"{THIRD},{FIRST},{SECOND}", "-ppn", "1", "-genvlist", ",".join(PASSED))


@pytest.mark.parametrize(
    ("launcher", "options", "before"),
    [
        ("mpirun.openmpi", OPEN_MPI, ()),
        # As under PRRTE and Slurm's PMIx, which say in no variable how many there are.
        ("mpirun.openmpi", OPEN_MPI, ("env", "-u", "OMPI_COMM_WORLD_RANK")),
        # It speaks PMI-1, as Flux does.
        ("mpiexec.hydra", HYDRA, ()),
    ],
    ids=["open-mpi", "pmix-alone", "hydra"],
)
def test_the_copies_learn_from_the_launcher_where_the_first_one_runs(
    hosts: Site,
    watch: Watch,
    start: Start,
    work: Path,
    launcher: str,
    options: tuple[str, ...],
    before: tuple[str, ...],
) -> None:
    require(launcher)
    (work / "secret").write_text("a secret of the launcher's\n")
    printed = shlex.split(MPI_JOB)
    command = printed[printed.index("laggard") : printed.index("--per-node")]
    mapping = printed[1 : printed.index("laggard")] if launcher.startswith("mpirun") else []
    job = start(hosts.network.nodes[ELSEWHERE], {}, launcher, *mapping, *options, *before, *command, *TELL)
    assert job.finish() == 0, job.output
    expect_one_on_each(hosts, job.output)
    watch.expect_nothing()


@pytest.mark.parametrize("mpi", ["none", "pmix"])
def test_the_copies_of_a_step_of_slurms_know_where_the_first_one_runs(
    slurm: SlurmCluster, site: Site, watch: Watch, start: Start, work: Path, mpi: str
) -> None:
    if mpi == "pmix" and not list(Path("/usr/lib").glob("*/pmix2/lib/libpmix.so")):
        pytest.skip("Slurm's mpi/pmix needs libpmix.so: install libpmix-dev")
    (work / "secret").write_text("a secret of the launcher's\n")
    step = ("srun", "--nodes=3", "--ntasks-per-node=1", f"--nodelist={FIRST},{SECOND},{THIRD}", f"--mpi={mpi}")
    job = start(site.network.login, slurm.environment, *step, "laggard", "--join-secret-file=secret", *TELL)
    assert job.finish() == 0, job.output
    expect_one_on_each(site, job.output)
    watch.expect_no_processes()


def expect_one_on_each(site: Site, output: str) -> None:
    """Check that there was a rank on each of the three nodes, and that all knew the address of the first one."""
    told = re.findall(r"rank (\d) of 3 on (\S+), primary (\S+)", output)
    host_of = {rank: host for rank, host, _ in told}
    assert sorted(host_of.values()) == [FIRST, SECOND, THIRD], output
    assert {primary for *_, primary in told} == {site.network.nodes[host_of["0"]].address}

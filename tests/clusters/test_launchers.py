"""Copies of one command that MPI's launchers start on nodes by real ssh: nobody says where the first one runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clusters.conftest import require
from tests.clusters.jobs import ClusterJob, Watch
from tests.clusters.site import NODES, Site
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
    told = re.findall(r"rank (\d) of 3 on (\S+), primary (\S+)", job.output)
    host_of = {rank: host for rank, host, _ in told}
    assert sorted(host_of.values()) == [FIRST, SECOND, THIRD]
    assert {primary for *_, primary in told} == {hosts.network.nodes[host_of["0"]].address}
    watch.expect_nothing()

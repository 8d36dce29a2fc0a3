"""Clusters of simulated machines; where they cannot be created, their tests are skipped, except in CI."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.clusters import slurm_daemons, sshd
from tests.clusters.jobs import ClusterJob, Watch, environment
from tests.clusters.machines import PRIVATE, Machine, Network, missing_for_machines
from tests.clusters.site import Site
from tests.clusters.slurm_daemons import SlurmCluster

NODES = ("node1", "node2", "node3")


def require(*programs: str) -> None:
    """Skip the test if something is missing; in CI that is a failure."""
    if missing := missing_for_machines(*programs):
        if os.environ.get("CI"):
            pytest.fail(f"CI must run this, and it {missing}")
        pytest.skip(missing)


@pytest.fixture(scope="package")
def network() -> Iterator[Network]:
    require()
    folder = Path(tempfile.mkdtemp(prefix="lc-"))
    network = Network(folder, NODES)
    yield network
    network.shut_down()
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Four nodes, an ordinary user, and folders that everybody may enter."""
    require()
    folder = Path(tempfile.mkdtemp(prefix="ls-"))
    folder.chmod(0o755)
    site = Site(folder)
    yield site
    site.shut_down()
    shutil.rmtree(folder)


@pytest.fixture
def start_as_user(site: Site) -> Iterator[Callable[..., ClusterJob]]:
    """Start a command as the site's ordinary user, in a folder of its own below the home."""
    jobs: list[ClusterJob] = []

    def start(machine: Machine, base: Mapping[str, str], *argv: str, terminal: bool = False) -> ClusterJob:
        variables = site.environment(environment(dict(base)))
        del variables["LAGGARD_RUNTIME_ROOT"]  # each node has its own /tmp
        jobs.append(ClusterJob(machine, site.folder_of_user(), variables, *site.as_user(*argv), terminal=terminal))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()


@pytest.fixture(scope="module")
def slurm(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    require(*slurm_daemons.PROGRAMS)
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), network) as cluster:
        yield cluster


@pytest.fixture
def repaired(slurm: SlurmCluster) -> Iterator[None]:
    """Leave Slurm and its nodes as they were, whatever the test has done to them."""
    yield
    slurm.run("scancel", "--user=root", check=False)
    slurm.repair()
    for node in slurm.network.nodes.values():
        node.run("sh", "-c", f"rm -rf {PRIVATE}/*")


@pytest.fixture(scope="module")
def hosts(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    require(*sshd.PROGRAMS)
    with sshd.ssh_daemons(tmp_path_factory.mktemp("sshd"), network):
        yield network


@pytest.fixture
def watch(network: Network) -> Watch:
    """Finds what the test leaves on any machine."""
    return Watch(network)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ClusterJob]]:
    """Start a command on a machine, in a folder that all machines share."""
    jobs: list[ClusterJob] = []

    def start(machine: Machine, base: dict[str, str], *argv: str, terminal: bool = False) -> ClusterJob:
        jobs.append(ClusterJob(machine, tmp_path, environment(base), *argv, terminal=terminal))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()

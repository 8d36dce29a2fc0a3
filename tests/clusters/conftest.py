"""Sites of simulated machines; where they cannot be created, their tests are skipped, except in CI."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import slurm_daemons, sshd
from tests.clusters.jobs import ClusterJob, Watch
from tests.clusters.machines import Machine, missing_for_machines
from tests.clusters.site import USER, Site
from tests.clusters.slurm_daemons import SlurmCluster


def require(*programs: str) -> None:
    """Skip the test if something is missing; in CI that is a failure."""
    if missing := missing_for_machines(*programs):
        if os.environ.get("CI"):
            pytest.fail(f"CI must run this, and it {missing}")
        pytest.skip(missing)


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


@pytest.fixture(scope="module")
def slurm_options() -> Mapping[str, Any]:
    """What a file's Slurm cluster has of its own."""
    return {}


@pytest.fixture(scope="module")
def slurm(site: Site, slurm_options: Mapping[str, Any]) -> Iterator[SlurmCluster]:
    require(*slurm_daemons.PROGRAMS)
    folder = site.folder / "slurm"
    folder.mkdir()
    with SlurmCluster(folder, site.network, **slurm_options) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def hosts(site: Site) -> Iterator[Site]:
    """The site, with sshd."""
    require(*sshd.PROGRAMS)
    with sshd.ssh_daemons(site):
        yield site


@pytest.fixture
def work(site: Site) -> Iterator[Path]:
    """The user's folder, which all machines share; in the end nothing of the user's is left on any."""
    yield site.folder_of_user()
    site.clean()


@pytest.fixture
def repaired(slurm: SlurmCluster, work: Path) -> Iterator[None]:  # noqa: ARG001 - cleaned after the repair
    """Leave Slurm and its nodes as they were, whatever the test has done to them."""
    yield
    slurm.run("scancel", f"--user={USER}", check=False)
    slurm.repair()


@pytest.fixture
def watch(site: Site) -> Watch:
    """Finds what the test leaves on any machine."""
    return Watch(site)


@pytest.fixture
def start(site: Site, work: Path) -> Iterator[Callable[..., ClusterJob]]:  # noqa: ARG001 - cleaned after the jobs
    """Start a command of the user's on a machine."""
    jobs: list[ClusterJob] = []

    def start(machine: Machine, base: Mapping[str, str], *argv: str, terminal: bool = False) -> ClusterJob:
        jobs.append(ClusterJob(site, machine, base, *argv, terminal=terminal))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()

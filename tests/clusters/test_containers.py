"""Containers, made by bubblewrap: with laggard inside, or with laggard outside and the program's processes inside.

A container has the system's programs, Python's folders, the node's /tmp, and of the home only the folder of the test.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clusters.conftest import require
from tests.clusters.jobs import ClusterJob, Watch
from tests.clusters.site import NODES, Site
from tests.clusters.slurm_daemons import SlurmCluster

Start = Callable[..., ClusterJob]

pytestmark = pytest.mark.timeout(900)

FIRST, SECOND, THIRD, _ = NODES
IN_CONTAINER = "in-container"
# The ranks of the first launch wait to be ended.
TRAIN = """
    import os, signal
    from pathlib import Path

    from laggard import Job, State

    assert os.listdir(Path.home()) == ["work"]
    rank, job, state = os.environ["NODE_RANK"], Job.current(), State.current()
    print(f"rank {rank} in {os.environ['IMAGE']} in launch {job.launch} after {state.get(rank)}", flush=True)
    state[rank] = job.launch
    if job.launch == 0:
        signal.pause()
"""
# Hangs, in a function whose name is said, until it is told to save.
HANGING = """
    import signal, sys

    from laggard import State

    def save(*_):
        print("saved", State.current().get("saved"), flush=True)
        sys.exit()

    def wait_for_ever():
        while True:
            signal.sigtimedwait({signal.SIGUSR2}, 1000)

    signal.signal(signal.SIGTERM, save)
    State.current()["saved"] = "all"
    wait_for_ever()
"""


def container(site: Site, *shown: Path) -> Path:
    """Write a site's wrapper: ``in-container IMAGE COMMAND...``, with these folders of the site's beside the user's."""
    work = site.folder_of_user()
    python = [path for path in site.needed() if path != site.folder]
    options = [
        *("--ro-bind", "/usr", "/usr", "--ro-bind", "/etc", "/etc", "--dev", "/dev", "--proc", "/proc"),
        *(word for name in ("bin", "sbin", "lib", "lib64") for word in ("--symlink", f"usr/{name}", f"/{name}")),
        *("--bind", "/tmp", "/tmp"),  # noqa: S108 - the machine's own
        *("--tmpfs", str(site.folder), "--bind", str(work), str(work)),
        *(word for path in (*shown, *python) for word in ("--ro-bind", str(path), str(path))),
    ]
    script = f'#!/bin/sh\nimage="$1"\nshift\nexec bwrap {shlex.join(options)} --setenv IMAGE "$image" "$@"\n'
    path = site.write(f"work/{IN_CONTAINER}", script)
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def bubblewrap() -> None:
    require("bwrap")


def test_ranks_in_containers_are_relaunched_by_laggard_outside_of_them(
    hosts: Site, watch: Watch, start: Start, work: Path
) -> None:
    inside = container(hosts)
    (work / "train.py").write_text(textwrap.dedent(TRAIN))
    options = (f"--hostlist={FIRST},{SECOND},{THIRD}", "--nodes=2", "--resilient", "--per-node")
    job = start(hosts.network.nodes[FIRST], {}, "laggard", *options, str(inside), "train.sif", "python", "train.py")
    for rank in range(2):
        job.wait_for(f"rank {rank} in train.sif in launch 0 after None")
    hosts.network.nodes[SECOND].process("laggard.resilience.agent.agent").kill()
    assert job.finish() == 0, job.output
    for rank in range(2):
        assert f"rank {rank} in train.sif in launch 1 after 0" in job.output
    watch.expect_nothing()


def test_a_rank_in_a_container_is_seen_to_hang_and_is_told_to_save(
    hosts: Site, watch: Watch, start: Start, work: Path
) -> None:
    inside = container(hosts)
    (work / "train.py").write_text(textwrap.dedent(HANGING))
    options = (f"--hostlist={FIRST},{SECOND}", "--hang-timeout=5", "--per-node")
    primary = hosts.network.nodes[FIRST]
    job = start(primary, {}, "laggard", *options, str(inside), "train.sif", "python", "train.py")
    job.wait_for(r"2 ranks are in wait_for_ever \(train.py:12\)")
    primary.process("bin/laggard").terminate()
    assert job.finish() == 143, job.output
    assert job.output.count("saved all") == 2
    watch.expect_no_processes()


def test_a_whole_job_runs_in_containers_that_srun_is_told_of(
    slurm: SlurmCluster, site: Site, watch: Watch, start: Start, work: Path
) -> None:
    inside = container(site, slurm.folder)
    (work / "train.py").write_text(textwrap.dedent(TRAIN))
    own = f"--srun-args=--comment='two words' {inside} train.sif"
    laggard = (str(inside), "train.sif", "laggard", own, "--nodes=2", "--resilient", "--per-node", "train.py")
    job = start(site.network.login, slurm.environment, "salloc", "--nodes=3", "--exclusive", "--no-kill", *laggard)
    for rank in range(2):
        job.wait_for(f"rank {rank} in train.sif in launch 0 after None")
    site.network.nodes[SECOND].process("laggard.resilience.agent.agent").kill()
    assert job.finish() == 0, job.output
    for rank in range(2):
        assert f"rank {rank} in train.sif in launch 1 after 0" in job.output
    watch.expect_no_processes()

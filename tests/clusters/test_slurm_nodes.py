"""Slurm jobs of an ordinary user whose nodes crash, are called down or drained, and how such jobs end."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clusters.jobs import ClusterJob, Watch, environment
from tests.clusters.machines import wait_for
from tests.clusters.programs import COUNTING, EXAMPLE, PER_NODE, RANKS, script
from tests.clusters.site import NODES, Site
from tests.clusters.slurm_daemons import SlurmCluster
from tests.clusters.state_server import site_state
from tests.printed import DOWN, IDLE_JOB, REQUEUE, RESUME_NODE, START_NOW, STATUS_STEP

Start = Callable[..., ClusterJob]

pytestmark = [pytest.mark.usefixtures("repaired"), pytest.mark.timeout(900)]

FIRST, SECOND, THIRD, LAST = NODES

# Runs until it is told to end, or the folder has a file "end"; saves for longer than the five seconds of an ended job.
TRAIN = """
    import os, signal, sys, time
    from pathlib import Path
    from laggard import AnalysisClient, Job, State

    job, state, rank = Job.current(), State.current(), os.environ["NODE_RANK"]
    nodes = " ".join(node.hostname for node in job.nodes)
    if rank == "0":
        print(f"launch {job.launch} on {nodes}, saved {state.get('saved')}", flush=True)

    def save(*_):
        if rank == "0" and state.get("slow"):
            time.sleep(7)
        if rank == "0":
            state["saved"] = job.launch
            print("saved in launch", job.launch, flush=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, save)
    state["slow"] = "slow" in sys.argv
    if rank == "0" and len(sys.argv) > 2 and job.launch == 0:
        client = AnalysisClient()
        client.connect()
        client.reboot(sys.argv[2])
    while not Path("end").exists():
        time.sleep(0.2)
"""

# Makes one step, and runs until the folder has a file "end".
STEPS = """
    import os, time
    from pathlib import Path
    from laggard import Job, State

    job, state = Job.current(), State.current()
    if os.environ["NODE_RANK"] == "0":
        state["step"] = step = state.get("step", 0) + 1
        print(f"launch {job.launch} on {' '.join(n.hostname for n in job.nodes)} has made step {step}", flush=True)
    while not Path("end").exists():
        time.sleep(0.2)
"""


@pytest.fixture
def _train(site: Site) -> None:
    site.write("work/train.py", textwrap.dedent(TRAIN))


def test_a_crashed_node_and_then_a_cut_one_cost_the_main_job_nothing(
    slurm: SlurmCluster, site: Site, watch: Watch, start: Start, work: Path
) -> None:
    shutil.copy(EXAMPLE, work / "program.py")
    salloc = ("salloc", "--nodes=3", "--exclusive", "--no-kill")
    job = start(site.network.login, slurm.environment, *salloc, *IDLE_JOB.split(), "--no-thrash", "--num_iters=4000")
    job.wait_for("launch 0: 4 ranks on 4 devices of 2 nodes")
    secrets = secrets_of(site)
    assert secrets
    assert not [line for line in watch.left() if any(secret in line for secret in secrets)]
    site.network.nodes[SECOND].crash()
    job.wait_for(f"without {SECOND}; {THIRD} comes in from the reserve")
    job.wait_for("launch 1: 4 ranks on 4 devices of 2 nodes")
    site.network.cut(THIRD)
    job.wait_for(f"without {THIRD}; {FIRST} goes on alone")
    assert job.finish() == 0, job.output
    assert "launch 2: 4 ranks on 2 devices of 1 node" in job.output
    assert "iterations per rank: [4000, 4000, 4000, 4000], expected 4000 each" in job.output
    assert "all there, none twice" in job.output
    slurm.replace_crashed()
    watch.expect_nothing()  # also on the node that is cut off


def test_ranks_of_a_program_continue_after_a_node_crashes(
    slurm: SlurmCluster, site: Site, watch: Watch, start: Start
) -> None:
    salloc = ("salloc", "--nodes=3", "--exclusive", "--no-kill")
    job = start(site.network.login, slurm.environment, *salloc, "laggard", "--nodes=2", "--resilient", *RANKS)
    job.wait_for(f"rank 0 of 2 on {FIRST}, primary 10.78.0.1")
    job.wait_for(f"rank 1 of 2 on {SECOND}, primary 10.78.0.1")
    site.network.nodes[SECOND].crash()
    job.wait_for(f"rank 1 of 2 on {THIRD}, primary 10.78.0.1")
    assert job.finish() == 0, job.output
    slurm.replace_crashed()
    watch.expect_nothing()


def test_a_node_that_slurm_calls_down_is_lost_and_scancel_ends_the_job_in_order(
    slurm: SlurmCluster, site: Site, watch: Watch, start: Start, work: Path
) -> None:
    (work / "counting.py").write_text(textwrap.dedent(COUNTING))
    salloc = ("salloc", "--nodes=3", "--exclusive", "--no-kill")
    options = ("--nodes=2", "--resilient", "--state-dir=state", "counting.py")
    job = start(site.network.login, slurm.environment, *salloc, "laggard", *options)
    job.wait_for("counting")
    words = site.as_user(*STATUS_STEP.replace("ID", slurm.only_job("%i")).split())
    shown = site.network.login.run(*words, environment=site.environment(environment(slurm.environment)))
    assert len(re.findall(r"^counting-\w+ .* on 2 nodes, 1 in reserve$", shown, re.MULTILINE)) == 3, shown  # one a node
    slurm.run("scontrol", "update", f"nodename={SECOND}", "state=drain", "reason=test")
    slurm.run(*DOWN.replace("...", SECOND).split(), "reason=test")
    job.wait_for(rf"launch 1 on {FIRST} {THIRD} after .*'saved': 0")
    job.wait_for("counting", times=2)
    job.wait_for(rf"Slurm says {SECOND} is \w+: test")
    slurm.run(*site.as_user("scancel", slurm.only_job("%i")))
    job.wait_for("saved in launch 1")
    assert job.finish() == 143, job.output
    assert job.output.count("relaunch  ") == 1, job.output  # the nodes that ended with the job are not lost ones
    watch.expect_no_processes()  # an agent that Slurm kills leaves its folder to the next job


@pytest.mark.usefixtures("_train")
def test_a_drained_node_is_never_swapped_in_and_comes_back_when_it_is_resumed(
    slurm: SlurmCluster, site: Site, watch: Watch, start: Start, work: Path
) -> None:
    salloc = ("salloc", "--nodes=4", "--exclusive", "--no-kill")
    options = ("--nodes=2", "--resilient", *PER_NODE, "train.py")
    job = start(slurm.network.login, slurm.environment, *salloc, "laggard", *options)
    job.wait_for(f"launch 0 on {FIRST} {SECOND}")
    slurm.run("scontrol", "update", f"nodename={THIRD}", "state=drain", "reason=fan")
    job.wait_for(f"{THIRD} leaves the reserve: Slurm says {THIRD} is draining: fan")
    site.network.nodes[SECOND].crash()
    job.wait_for(f"launch 1 on {FIRST} {LAST}")
    assert f"without {SECOND}; {LAST} comes in from the reserve" in job.output
    slurm.run(*RESUME_NODE.replace("...", THIRD).split())
    job.wait_for(f"returned +{THIRD} is back: it is in the reserve")
    (work / "end").touch()
    assert job.finish() == 0, job.output
    slurm.replace_crashed()
    watch.expect_no_processes()


@pytest.mark.usefixtures("_train")
def test_a_requeued_job_names_its_bad_nodes_to_slurm_and_takes_them_back_when_they_are_well(
    slurm: SlurmCluster, site: Site, watch: Watch, start: Start, work: Path
) -> None:
    site.write("work/quarantine", "86400")
    options = ("--nodes=2", "--resilient", "--state-dir=state", "--quarantine=$(cat quarantine)")
    script(site, *PER_NODE, *options, "train.py", "quick", SECOND)
    submit = ("sbatch", "--nodes=3", "--wait", "--output=output", "job.sh")
    job = start(slurm.network.login, slurm.environment, *submit)
    job.wait_for("launch 1 on")
    number = slurm.only_job("%i")
    slurm.run(*site.as_user(*REQUEUE.split(), number))
    wait_for(lambda: slurm.only_job("%T") == "PENDING", "a requeued job", 120)
    assert f"from this job when it is started again: ExcNodeList={SECOND}" in job.output
    assert f"ExcNodeList={SECOND} " in slurm.run("scontrol", "--oneliner", "show", "job", number)
    site.write("work/quarantine", "1")
    slurm.run(*site.as_user(*START_NOW.replace("...", number).split()))
    job.wait_for("launch 2 on")
    assert f"launch 2 on {FIRST} {THIRD}, saved 1" in job.output
    slurm.run(*site.as_user(*REQUEUE.split(), number))
    none = "from this job when it is started again: none any more"
    job.wait_for(none)
    wait_for(lambda: slurm.only_job("%T") == "PENDING", "a requeued job", 120)
    slurm.run(*site.as_user(*START_NOW.replace("...", number).split()))
    job.wait_for("launch 3 on")
    assert f"launch 3 on {FIRST} {THIRD}, saved 2" in job.output
    assert re.search(rf"launch +3 on .*; reserve: {SECOND}", job.output), job.output
    (work / "end").touch()
    assert job.finish() == 0, job.output
    watch.expect_no_processes()


def test_a_job_that_slurm_requeues_because_its_primary_is_down_goes_on_from_state_on_the_sites_server(
    slurm: SlurmCluster, site: Site, watch: Watch, start: Start, work: Path
) -> None:
    (work / "train.py").write_text(textwrap.dedent(STEPS))
    with site_state(site.network.login, site.folder / "server") as url:
        for name in ("password", "ca.pem"):
            site.write(f"work/{name}", (site.folder / "server" / name).read_text()).chmod(0o600)
        kept = f"--state-server={url} --job-name=train --state-password-file=password --state-ca=ca.pem"
        # Without --no-kill, with which Slurm does not requeue a job that has lost its first node.
        batch = "#!/bin/bash\n#SBATCH --requeue --open-mode=append\n"
        site.write("work/job.sh", f"{batch}exec laggard {kept} {' '.join(PER_NODE)} train.py\n")
        submit = ("sbatch", "--nodes=2", "--wait", "--output=output", "job.sh")
        job = start(slurm.network.login, slurm.environment, *submit)
        job.wait_for(f"launch 0 on {FIRST} {SECOND} has made step 1")
        number = slurm.only_job("%i")
        site.network.nodes[FIRST].crash()
        slurm.run(*DOWN.replace("...", FIRST).split(), "reason=test")
        wait_for(lambda: slurm.only_job("%T") == "PENDING", "a requeued job", 120)
        slurm.run(*site.as_user(*START_NOW.replace("...", number).split()))
        job.wait_for(f"launch 1 on {SECOND} {THIRD} has made step 2")
        (work / "end").touch()
        assert job.finish() == 0, job.output
    slurm.replace_crashed()
    watch.expect_no_processes()


@pytest.mark.usefixtures("_train")
def test_a_warning_before_the_time_limit_gives_the_program_its_whole_grace(
    slurm: SlurmCluster, site: Site, watch: Watch, start: Start
) -> None:
    script(site, *PER_NODE, "--grace=20", "--state-dir=state", "train.py", "slow")
    options = ("--nodes=2", "--time=2", "--signal=B:USR1@60", "--wait", "--output=output")
    job = start(slurm.network.login, slurm.environment, "sbatch", *options, "job.sh")
    assert job.finish() == 138, job.output
    assert re.search(r"stop +stopped by SIGUSR1, .* before the time limit: ending everything", job.output), job.output
    assert re.search(r"the program ended .* s into its 20 s grace period", job.output), job.output
    assert "saved in launch 0" in job.output
    watch.expect_no_processes()


@pytest.mark.usefixtures("_train")
def test_a_job_whose_primary_hears_last_of_its_end_has_time_to_save_nevertheless(
    slurm: SlurmCluster, site: Site, watch: Watch, start: Start
) -> None:
    """Slurm ends the agents of the other nodes first: what it then sends the primary is no second request."""
    script(site, *PER_NODE, "--nodes=2", "--resilient", "--state-dir=state", "train.py", "quick", SECOND)
    submit = ("sbatch", "--nodes=3", "--wait", "--output=output", "job.sh")
    job = start(slurm.network.login, slurm.environment, *submit)
    job.wait_for("launch 1 on")
    number = slurm.only_job("%i")
    with slurm.frozen(FIRST):
        slurm.run(*site.as_user(*REQUEUE.split(), number))
        job.wait_for("stopped by SIGTERM, Slurm ends the job")
    job.wait_for("2 launches, 1 node excluded")
    assert f"from this job when it is started again: ExcNodeList={SECOND}" in job.output
    assert "saved in launch 1" in job.output
    slurm.run(*site.as_user("scancel", number))
    watch.expect_no_processes()


@pytest.mark.usefixtures("_train")
def test_a_drained_node_is_used_last_when_a_job_begins(slurm: SlurmCluster, start: Start, work: Path) -> None:
    salloc = (
        "salloc",
        "--nodes=3",
        "--exclusive",
        "--no-kill",
        "sh",
        "-c",
        'touch allocated; until test -e drained; do sleep 0.1; done; exec laggard "$@"',
        "sh",
    )
    job = start(slurm.network.login, slurm.environment, *salloc, "--nodes=2", "--resilient", *PER_NODE, "train.py")
    wait_for((work / "allocated").exists, "an allocation")
    slurm.run(*DOWN.replace("...", SECOND).replace("=down", "=drain").split(), "reason=fan")
    (work / "drained").touch()
    job.wait_for(f"launch 0 on {FIRST} {THIRD}")
    job.wait_for(f"{SECOND} leaves the reserve: Slurm says {SECOND} is draining: fan")
    (work / "end").touch()
    assert job.finish() == 0, job.output


def secrets_of(site: Site) -> set[str]:
    """Return the passwords and tokens in the nodes' private folders."""
    found = set()
    for node in site.network.nodes.values():
        for name in ("endpoint.json", "ray-token"):
            for file in site.find(node, "-name", name):
                text = node.run("cat", file)
                found.add(json.loads(text)["password"] if name == "endpoint.json" else text)
    return found

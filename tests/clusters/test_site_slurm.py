"""Jobs of an ordinary user on real Slurm daemons: four nodes whose names have gaps and a suffix, one home, own /tmp."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clusters import slurm_daemons
from tests.clusters.conftest import require
from tests.clusters.jobs import ClusterJob, Watch
from tests.clusters.machines import wait_for
from tests.clusters.site import NODES, Site
from tests.clusters.slurm_daemons import SlurmCluster
from tests.integration.jobs import GOES_ON
from tests.printed import ARRAY, DOWN, HETEROGENEOUS, INSIDE_SRUN, REQUEUE, RESUME_NODE, SHELL

Start = Callable[..., ClusterJob]

pytestmark = pytest.mark.timeout(900)

FIRST, SECOND, THIRD, LAST = NODES
COPIES = ("--virtual-gpus=1", "--per-node")

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


@pytest.fixture(scope="module")
def slurm(site: Site) -> Iterator[SlurmCluster]:
    require(*slurm_daemons.PROGRAMS)
    folder = site.folder / "slurm"
    folder.mkdir()
    # As by default: Slurm itself notices no crash while a test lasts.
    with SlurmCluster(folder, site.network, slurmd_timeout_s=300, shell_on_node=True) as cluster:
        yield cluster


@pytest.fixture
def watch(site: Site) -> Watch:
    return Watch(site.network)


@pytest.fixture(autouse=True)
def _whole_cluster(slurm: SlurmCluster, site: Site) -> Iterator[None]:
    site.write("work/train.py", textwrap.dedent(TRAIN))
    yield
    slurm.run("scancel", "--user=ada", check=False)
    slurm.repair()
    site.clean()


def script(site: Site, *options: str) -> None:
    """Write the user's batch script."""
    command = f"exec laggard {' '.join(options)}"
    site.write("work/job.sh", f"#!/bin/bash\n#SBATCH --no-kill --requeue --open-mode=append\n{command}\n")


def words(command: str, *more: str) -> list[str]:
    """Return the words of a printed command, with further options behind its program."""
    program, *rest = command.split()
    return [program, *more, *rest]


def output(site: Site, name: str) -> str:
    path = site.home / "work" / name
    return GOES_ON.sub(" ", path.read_text()) if path.exists() else ""


def test_tasks_of_an_array_run_side_by_side_each_on_its_own_nodes(
    slurm: SlurmCluster, site: Site, watch: Watch, start_as_user: Start
) -> None:
    tell = "echo task $SLURM_ARRAY_TASK_ID rank $NODE_RANK of $NNODES on $(hostname); sleep 5"
    script(site, *COPIES, f"sh -c '{tell}'")
    options = ("--nodes=2", "--exclusive", "--wait", "--output=array-%a")
    job = start_as_user(slurm.network.login, slurm.environment, *words(ARRAY, *options))
    code = job.finish()
    said = output(site, "array-1") + output(site, "array-2")
    assert code == 0, said
    found = re.findall(r"task (\d) rank (\d) of 2 on (\S+)", said)
    assert sorted((task, rank) for task, rank, _ in found) == [("1", "0"), ("1", "1"), ("2", "0"), ("2", "1")], said
    assert sorted(node for _, _, node in found) == sorted(NODES), said
    watch.expect_no_processes()


def test_a_heterogeneous_job_runs_on_the_nodes_of_all_its_groups(
    slurm: SlurmCluster, site: Site, watch: Watch, start_as_user: Start
) -> None:
    script(site, *COPIES, "sh -c 'echo rank $NODE_RANK of $NNODES on $(hostname)'")
    job = start_as_user(slurm.network.login, slurm.environment, *words(HETEROGENEOUS, "--wait", "--output=both"))
    code = job.finish()
    said = output(site, "both")
    assert code == 0, said
    assert sorted(re.findall(r"rank (\d of 3) on", said)) == ["0 of 3", "1 of 3", "2 of 3"], said
    watch.expect_no_processes()


def test_laggard_inside_srun_says_that_it_belongs_outside(slurm: SlurmCluster, start_as_user: Start) -> None:
    job = start_as_user(slurm.network.login, slurm.environment, *INSIDE_SRUN.split(), "true")
    assert job.finish() == 2, job.output
    assert "srun runs laggard 2 times, but it belongs outside, and runs srun itself: leave srun out" in job.output


@pytest.mark.parametrize("shell", ["salloc --nodes=2 --exclusive", SHELL])
def test_a_shell_on_the_first_node_is_outside_of_srun(slurm: SlurmCluster, start_as_user: Start, shell: str) -> None:
    """``srun --pty`` counts two tasks, of which only the first has a user."""
    job = start_as_user(slurm.network.login, slurm.environment, *shell.split(), terminal=True)
    job.wait_for(rf"{FIRST}|\$ ")  # its prompt
    tell = "echo rank $NODE_RANK of $NNODES on $(hostname)"
    job.type(f"laggard {' '.join(COPIES)} sh -c '{tell}'; exit\n")
    assert job.finish() == 0, job.output
    assert set(re.findall(r"\] rank (\d of \d on \S+)", job.output)) == {f"0 of 2 on {FIRST}", f"1 of 2 on {SECOND}"}


def test_what_narrows_a_users_look_at_slurm_or_changes_srun_does_no_harm(
    slurm: SlurmCluster, watch: Watch, start_as_user: Start
) -> None:
    slurm.run("scontrol", "update", "PartitionName=main", "Hidden=yes")
    views = {"SQUEUE_PARTITION": "other", "SQUEUE_USERS": "root", "SQUEUE_NAMES": "other", "SINFO_PARTITION": "other"}
    steps = {"SLURM_LABELIO": "1", "SLURM_STDOUTMODE": "none", "SLURM_DEBUG": "1", "SLURM_TIMELIMIT": "1"}
    given = [f"{name}={value}" for name, value in (views | steps).items()]
    salloc = ("salloc", "--nodes=3", "--exclusive", "--no-kill", "env", *given)
    tell = ("sh", "-c", "echo rank $NODE_RANK of $NNODES")
    options = ("--nodes=2", "--resilient", *COPIES)
    try:
        job = start_as_user(slurm.network.login, slurm.environment, *salloc, "laggard", *options, *tell)
        assert job.finish() == 0, job.output
    finally:
        slurm.run("scontrol", "update", "PartitionName=main", "Hidden=no")
    assert sorted(re.findall(r"\] rank (\d of \d)", job.output)) == ["0 of 2", "1 of 2"], job.output
    watch.expect_no_processes()


def test_a_drained_node_is_never_swapped_in_and_comes_back_when_it_is_resumed(
    slurm: SlurmCluster, site: Site, watch: Watch, start_as_user: Start
) -> None:
    salloc = ("salloc", "--nodes=4", "--exclusive", "--no-kill")
    options = ("--nodes=2", "--resilient", *COPIES, "train.py")
    job = start_as_user(slurm.network.login, slurm.environment, *salloc, "laggard", *options)
    job.wait_for(f"launch 0 on {FIRST} {SECOND}")
    slurm.run("scontrol", "update", f"nodename={THIRD}", "state=drain", "reason=fan")
    job.wait_for(f"{THIRD} leaves the reserve: Slurm says {THIRD} is draining: fan")
    site.network.nodes[SECOND].crash()
    job.wait_for(f"launch 1 on {FIRST} {LAST}")
    assert f"without {SECOND}; {LAST} comes in from the reserve" in job.output
    slurm.run(*RESUME_NODE.replace("...", THIRD).split())
    job.wait_for(f"returned +{THIRD} is back: it is in the reserve")
    (site.home / "work" / "end").touch()
    assert job.finish() == 0, job.output
    slurm.replace_crashed()
    watch.expect_no_processes()


def test_a_requeued_job_names_its_bad_nodes_to_slurm_and_takes_them_back_when_they_are_well(
    slurm: SlurmCluster, site: Site, watch: Watch, start_as_user: Start
) -> None:
    site.write("work/quarantine", "86400")
    options = ("--nodes=2", "--resilient", "--state-dir=state", "--quarantine=$(cat quarantine)")
    script(site, *COPIES, *options, "train.py", "quick", SECOND)
    submit = ("sbatch", "--nodes=3", "--wait", "--output=said", "job.sh")
    job = start_as_user(slurm.network.login, slurm.environment, *submit)
    wait_for(lambda: "launch 1 on" in output(site, "said"), "a launch without the accused node", 120)
    (number,) = set(slurm.run("squeue", "--noheader", "--format=%i").split())
    slurm.run(*REQUEUE.split(), number)
    wait_for(lambda: slurm.run("squeue", "--noheader", "--format=%T").strip() == "PENDING", "a requeued job", 120)
    assert f"from this job when it is started again: ExcNodeList={SECOND}" in output(site, "said")
    assert f"ExcNodeList={SECOND} " in slurm.run("scontrol", "--oneliner", "show", "job", number)
    site.write("work/quarantine", "1")
    slurm.run("scontrol", "update", f"job={number}", "StartTime=now")
    wait_for(lambda: "launch 2 on" in output(site, "said"), "a launch of the requeued job", 120)
    assert f"launch 2 on {FIRST} {THIRD}, saved 1" in output(site, "said")
    slurm.run(*REQUEUE.split(), number)
    none = "from this job when it is started again: none any more"
    wait_for(lambda: none in output(site, "said"), "a requeued job that takes its node back", 120)
    wait_for(lambda: slurm.run("squeue", "--noheader", "--format=%T").strip() == "PENDING", "a requeued job", 120)
    slurm.run("scontrol", "update", f"job={number}", "StartTime=now")
    wait_for(lambda: "launch 3 on" in output(site, "said"), "a launch of the job that was requeued twice", 120)
    assert f"launch 3 on {FIRST} {THIRD}, saved 2" in output(site, "said")
    assert re.search(rf"launch +3 on .*; reserve: {SECOND}", output(site, "said")), output(site, "said")
    (site.home / "work" / "end").touch()
    assert job.finish() == 0, output(site, "said")
    watch.expect_no_processes()


def test_a_warning_before_the_time_limit_gives_the_program_its_whole_grace(
    slurm: SlurmCluster, site: Site, watch: Watch, start_as_user: Start
) -> None:
    script(site, *COPIES, "--grace=20", "--state-dir=state", "train.py", "slow")
    options = ("--nodes=2", "--time=2", "--signal=B:USR1@60", "--wait", "--output=said")
    job = start_as_user(slurm.network.login, slurm.environment, "sbatch", *options, "job.sh")
    code = job.finish()
    said = output(site, "said")
    assert code == 138, said
    assert re.search(r"stop +stopped by SIGUSR1, .* before the time limit: ending everything", said), said
    assert re.search(r"the program ended .* s into its 20 s grace period", said), said
    assert "saved in launch 0" in said
    watch.expect_no_processes()


def test_a_job_whose_primary_hears_last_of_its_end_has_time_to_save_nevertheless(
    slurm: SlurmCluster, site: Site, watch: Watch, start_as_user: Start
) -> None:
    """Slurm ends the agents of the other nodes first: what it then sends the primary is no second request."""
    script(site, *COPIES, "--nodes=2", "--resilient", "--state-dir=state", "train.py", "quick", SECOND)
    submit = ("sbatch", "--nodes=3", "--wait", "--output=said", "job.sh")
    start_as_user(slurm.network.login, slurm.environment, *submit)
    wait_for(lambda: "launch 1 on" in output(site, "said"), "a launch without the accused node", 120)
    (number,) = set(slurm.run("squeue", "--noheader", "--format=%i").split())
    with slurm.frozen(FIRST):
        slurm.run(*REQUEUE.split(), number)
        wait_for(lambda: "stopped by SIGTERM, Slurm ends the job" in output(site, "said"), "a stop", 120)
    wait_for(lambda: "2 launches, 1 node excluded" in output(site, "said"), "an end in order", 120)
    assert f"from this job when it is started again: ExcNodeList={SECOND}" in output(site, "said")
    assert "saved in launch 1" in output(site, "said")
    slurm.run("scancel", number)
    watch.expect_no_processes()


def test_a_dead_node_at_the_start_does_not_end_a_job_whose_reserve_covers_it(
    slurm: SlurmCluster, site: Site, watch: Watch, start_as_user: Start
) -> None:
    salloc = (
        "salloc",
        "--nodes=4",
        "--exclusive",
        "--no-kill",
        "sh",
        "-c",
        'touch allocated; until test -e dead; do sleep 0.1; done; exec laggard "$@"',
        "sh",
    )
    options = ("--nodes=2", "--resilient", *COPIES, "train.py")
    job = start_as_user(slurm.network.login, slurm.environment, *salloc, *options)
    folder: Path = site.home / "work"
    wait_for((folder / "allocated").exists, "an allocation")
    site.network.nodes[SECOND].crash()
    (folder / "dead").touch()
    job.wait_for(f"waiting for {SECOND}.* by srun: ")
    job.wait_for(f"lost +{SECOND}: no answer by srun .*; the job begins without it")
    job.wait_for(f"launch 0 on {FIRST} {THIRD}")
    assert "by an earlier job" not in job.output
    (folder / "end").touch()
    assert job.finish() == 0, job.output
    slurm.replace_crashed()
    watch.expect_no_processes()


def test_a_drained_node_is_used_last_when_a_job_begins(slurm: SlurmCluster, site: Site, start_as_user: Start) -> None:
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
    job = start_as_user(
        slurm.network.login, slurm.environment, *salloc, "--nodes=2", "--resilient", *COPIES, "train.py"
    )
    folder: Path = site.home / "work"
    wait_for((folder / "allocated").exists, "an allocation")
    slurm.run(*DOWN.replace("...", SECOND).replace("=down", "=drain").split(), "reason=fan")
    (folder / "drained").touch()
    job.wait_for(f"launch 0 on {FIRST} {THIRD}")
    job.wait_for(f"{SECOND} leaves the reserve: Slurm says {SECOND} is draining: fan")
    (folder / "end").touch()
    assert job.finish() == 0, job.output

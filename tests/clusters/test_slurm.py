"""The commands of the guide to Slurm, by an ordinary user on real Slurm daemons."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clusters.jobs import ClusterJob, Watch, environment
from tests.clusters.machines import wait_for
from tests.clusters.programs import COUNTING, EXAMPLE, PER_NODE, script
from tests.clusters.site import NODES, Site
from tests.clusters.slurm_daemons import SlurmCluster
from tests.printed import (
    ARRAY,
    BATCH_SCRIPT,
    DOCTORS_ROUNDS,
    HETEROGENEOUS,
    INSIDE_SRUN,
    INTERACTIVE,
    PROLOG,
    REQUEUE,
    SHELL,
    START_NOW,
    SUBMIT,
)

Start = Callable[..., ClusterJob]

pytestmark = [pytest.mark.usefixtures("repaired"), pytest.mark.timeout(900)]

FIRST, SECOND, THIRD, LAST = NODES


def test_the_interactive_form_of_the_guide_runs_the_main_job(
    slurm: SlurmCluster, watch: Watch, start: Start, work: Path
) -> None:
    """Typed at a terminal on the login machine."""
    shutil.copy(EXAMPLE, work)
    allocate, laggard, leave = INTERACTIVE
    user = start(slurm.network.login, slurm.environment, *allocate.split(), terminal=True)
    user.type(f"{laggard}; echo code=$?\n")
    (code,) = user.wait_for(r"code=(\d+)\s")
    user.type(f"{leave}\n")
    assert user.finish() == int(code) == 0, user.output
    assert f"3 launches, 2 nodes excluded ({SECOND}, {THIRD})" in user.output, user.output
    assert "launch 0: 4 ranks on 4 devices of 2 nodes" in user.output
    assert "launch 2: 4 ranks on 2 devices of 1 node" in user.output
    assert "all there, none twice" in user.output
    assert (work / "eigvals.png").exists()
    watch.expect_nothing()


def test_control_c_at_the_terminal_ends_the_job_in_order(
    slurm: SlurmCluster, watch: Watch, start: Start, work: Path
) -> None:
    (work / "train.py").write_text(textwrap.dedent(COUNTING))
    command = ("laggard", "--state-dir=state", "train.py")
    user = start(slurm.network.login, slurm.environment, "salloc", "--nodes=1", *command, terminal=True)
    user.wait_for("counting")
    user.type("\x03")
    assert user.finish() == 130, user.output
    assert "stopped by SIGINT" in user.output
    watch.expect_nothing()


@pytest.mark.parametrize(("limit", "least_s", "most_s"), [("90", 5300, 5400), ("UNLIMITED", None, None)])
def test_the_time_that_is_left_is_known_from_slurm(
    slurm: SlurmCluster, start: Start, limit: str, least_s: float | None, most_s: float | None
) -> None:
    ask = "from laggard.resilience.allocation.slurm import slurm_time_left_s; print('left:', slurm_time_left_s())"
    salloc = ("salloc", "--nodes=1", f"--time={limit}")
    job = start(slurm.network.login, slurm.environment, *salloc, sys.executable, "-c", ask)
    assert job.finish() == 0, job.output
    (left,) = re.findall(r"left: (\S+)", job.output)
    assert (left == "None") if least_s is None or most_s is None else (least_s < float(left) <= most_s)


def test_a_requeued_batch_job_carries_on_and_the_time_limit_ends_it_in_order(
    slurm: SlurmCluster, site: Site, watch: Watch, start: Start, work: Path
) -> None:
    """The script of the guide; the first run is requeued, the second one reaches its time limit."""
    (work / "train.py").write_text(textwrap.dedent(COUNTING))
    (work / "job.sh").write_text(BATCH_SCRIPT)
    submit, script = SUBMIT.split()
    job = start(slurm.network.login, slurm.environment, submit, "--wait", "--output=output", script)
    job.wait_for("counting")
    number = slurm.only_job("%i")
    slurm.run(*site.as_user(*REQUEUE.split(), number))
    job.wait_for("saved in launch 0")
    wait_for(lambda: slurm.only_job("%T") == "PENDING", "a requeued job")
    slurm.run(*site.as_user(*START_NOW.replace("...", number).split()))
    (after,) = job.wait_for(rf"launch 1 on {FIRST} {SECOND} after .*'saved': 0")
    assert "'count': None" not in after
    job.wait_for("counting", times=2)
    minutes, seconds = map(int, slurm.only_job("%M").split(":"))
    # Slurm checks the time limit every half minute: it must find less than a minute left, but some.
    slurm.run("scontrol", "update", f"job={number}", f"TimeLimit={minutes + (1 if seconds < 25 else 2)}")
    job.wait_for("saved in launch 1", outlived=True)
    job.wait_for("stopped by SIGTERM, Slurm ends the job", outlived=True)
    job.wait_for("stopped by SIGTERM, (the time limit is reached|.* before the time limit)", outlived=True)
    assert job.finish() == 143, job.output
    assert "relaunch" not in job.output
    watch.expect_nothing()


def words(command: str, *more: str) -> list[str]:
    """Return the words of a printed command, with further options behind its program."""
    program, *rest = command.split()
    return [program, *more, *rest]


def test_tasks_of_an_array_run_side_by_side_each_on_its_own_nodes(
    slurm: SlurmCluster, site: Site, watch: Watch, start: Start
) -> None:
    tell = "echo task $SLURM_ARRAY_TASK_ID rank $NODE_RANK of $NNODES on $(hostname); sleep 5"
    script(site, *PER_NODE, f"sh -c '{tell}'")
    options = ("--nodes=2", "--exclusive", "--wait", "--output=output")
    job = start(slurm.network.login, slurm.environment, *words(ARRAY, *options))
    assert job.finish() == 0, job.output
    found = re.findall(r"task (\d) rank (\d) of 2 on (\S+)", job.output)
    assert sorted((task, rank) for task, rank, _ in found) == [("1", "0"), ("1", "1"), ("2", "0"), ("2", "1")], (
        job.output
    )
    assert sorted(node for _, _, node in found) == sorted(NODES), job.output
    watch.expect_no_processes()


def test_a_heterogeneous_job_runs_on_the_nodes_of_all_its_groups(
    slurm: SlurmCluster, site: Site, watch: Watch, start: Start
) -> None:
    script(site, *PER_NODE, "sh -c 'echo rank $NODE_RANK of $NNODES on $(hostname)'")
    job = start(slurm.network.login, slurm.environment, *words(HETEROGENEOUS, "--wait", "--output=output"))
    assert job.finish() == 0, job.output
    assert sorted(re.findall(r"rank (\d of 3) on", job.output)) == ["0 of 3", "1 of 3", "2 of 3"], job.output
    watch.expect_no_processes()


def test_laggard_inside_srun_says_that_it_belongs_outside(slurm: SlurmCluster, start: Start) -> None:
    job = start(slurm.network.login, slurm.environment, *INSIDE_SRUN.split(), "true")
    assert job.finish() == 2, job.output
    assert "srun runs laggard 2 times, but it belongs outside, and runs srun itself: leave srun out" in job.output


@pytest.mark.parametrize("shell", ["salloc --nodes=2 --exclusive", SHELL])
def test_a_shell_on_the_first_node_is_outside_of_srun(slurm: SlurmCluster, start: Start, shell: str) -> None:
    """``srun --pty`` counts two tasks, of which only the first has a user."""
    with slurm.shell_on_node():
        job = start(slurm.network.login, slurm.environment, *shell.split(), terminal=True)
        job.wait_for(rf"{FIRST}|\$ ")  # its prompt
    tell = "echo rank $NODE_RANK of $NNODES on $(hostname)"
    job.type(f"laggard {' '.join(PER_NODE)} sh -c '{tell}'; exit\n")
    assert job.finish() == 0, job.output
    assert set(re.findall(r"\] rank (\d of \d on \S+)", job.output)) == {f"0 of 2 on {FIRST}", f"1 of 2 on {SECOND}"}


def test_what_narrows_a_users_look_at_slurm_or_changes_srun_does_no_harm(
    slurm: SlurmCluster, watch: Watch, start: Start
) -> None:
    slurm.run("scontrol", "update", "PartitionName=main", "Hidden=yes")
    views = {"SQUEUE_PARTITION": "other", "SQUEUE_USERS": "root", "SQUEUE_NAMES": "other", "SINFO_PARTITION": "other"}
    steps = {"SLURM_LABELIO": "1", "SLURM_STDOUTMODE": "none", "SLURM_DEBUG": "1", "SLURM_TIMELIMIT": "1"}
    given = [f"{name}={value}" for name, value in (views | steps).items()]
    salloc = ("salloc", "--nodes=3", "--exclusive", "--no-kill", "env", *given)
    tell = ("sh", "-c", "echo rank $NODE_RANK of $NNODES")
    options = ("--nodes=2", "--resilient", *PER_NODE)
    try:
        job = start(slurm.network.login, slurm.environment, *salloc, "laggard", *options, *tell)
        assert job.finish() == 0, job.output
    finally:
        slurm.run("scontrol", "update", "PartitionName=main", "Hidden=no")
    assert sorted(re.findall(r"\] rank (\d of \d)", job.output)) == ["0 of 2", "1 of 2"], job.output
    watch.expect_no_processes()


def test_the_doctor_compares_the_devices_of_all_nodes(slurm: SlurmCluster, watch: Watch, start: Start) -> None:
    command = *DOCTORS_ROUNDS["slurm"].split(), "--json", "--virtual-gpus=1", "--past=past.json"
    job = start(slurm.network.login, slurm.environment, "salloc", "--quiet", "--nodes=3", "--exclusive", *command)
    assert job.finish() in {0, 1}, job.output  # the machines share two processors: one may be slow
    found = json.loads(job.output)["devices"]
    assert [(device["host"], device["uuid"]) for device in found] == [
        (node, f"virtual-{node}-0") for node in (FIRST, SECOND, THIRD)
    ]
    watch.expect_nothing()


def test_the_prolog_of_the_guide_drains_a_node_with_a_bad_device_and_no_other(slurm: SlurmCluster, site: Site) -> None:
    """Runs on a node whose record of its devices cannot be read, then on one with a GPU whose driver is not loaded.

    As root, as slurmd runs prologs.
    """
    variables = {**environment(slurm.environment), "SLURMD_NODENAME": THIRD}
    record = "mount -t tmpfs tmpfs /var/lib && mkdir /var/lib/laggard"
    unreadable = f"{record} && echo '{{}}' > /var/lib/laggard/devices.json"
    gpu = "/sys/bus/pci/devices/0000:3b:00.0"
    without_driver = (
        f"{record} && mount -t tmpfs tmpfs /sys/bus/pci/devices && mkdir {gpu} "
        f"&& echo 0x10de > {gpu}/vendor && echo 0x030200 > {gpu}/class"
    )

    def run_prolog(before: str) -> None:
        script = f"{before} && {{ {' || '.join(PROLOG)}; }}"
        site.network.nodes[THIRD].run("unshare", "--mount", "sh", "-c", script, environment=variables)

    run_prolog(unreadable)
    assert slurm.states()[THIRD] == "idle"
    run_prolog(without_driver)
    assert slurm.states()[THIRD] in {"draining", "drained"}
    assert "Reason=laggard" in slurm.run("scontrol", "show", "node", THIRD)

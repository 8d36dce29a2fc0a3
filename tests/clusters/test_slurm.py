"""Jobs on real Slurm daemons, on simulated machines: as in the guide, and with nodes that fail."""

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
from tests.clusters.machines import PRIVATE, Network, wait_for
from tests.clusters.slurm_daemons import SlurmCluster
from tests.printed import DOCTORS_ROUNDS, DOWN, IDLE_JOB, PROLOG, REQUEUE, STATUS_STEP, SUBMIT

Start = Callable[..., ClusterJob]

pytestmark = [pytest.mark.usefixtures("repaired"), pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "slurm.md").read_text()
EXAMPLE = ROOT / "examples" / "slow_gpu.py"

# Counts in workers on the last node; prints what the previous launch left in State, and what it saves on SIGTERM.
COUNTING = """
    import signal, sys
    import ray
    from laggard.collectors.ray_actors import node_strategy
    from laggard.kvstore import State
    from laggard.resilience import Job

    job, state = Job.current(), State.current()
    before = {key: state.get(key) for key in ("count", "saved")}
    print(f"launch {job.launch} on {' '.join(n.hostname for n in job.nodes)} after {before}", flush=True)
    ray.init(logging_level="ERROR", log_to_driver=False)

    def save(signum, frame):
        state["saved"] = job.launch
        print("saved in launch", job.launch, flush=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, save)

    @ray.remote(num_gpus=1)
    def count():
        state = State.current()
        while True:
            with state.transaction() as transaction:
                transaction["count"] = transaction.get("count", 0) + 1

    counting = [count.options(scheduling_strategy=node_strategy(job.nodes[-1])).remote()]
    while state.get("count", 0) <= (before["count"] or 0):
        ray.wait(counting, timeout=0.1)
    print("counting", flush=True)
    ray.get(counting)
"""

# A program without Ray: each copy prints its rank; those of the first launch wait to be ended.
TELL = 'echo "rank $NODE_RANK of $NNODES on $(hostname), primary $MASTER_ADDR"; test $LAGGARD_LAUNCH != 0 || sleep 600'
RANKS = ("--per-node", "sh", "-c", TELL)


def block(language: str) -> str:
    """Return the code blocks of the guide in one language."""
    (code,) = re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)
    return str(code)


def job_id(slurm: SlurmCluster) -> str:
    """Return the id of the only job."""
    return slurm.run("squeue", "--noheader", "--format=%i").strip()


def test_the_interactive_form_of_the_guide_runs_the_main_job(
    slurm: SlurmCluster, watch: Watch, start: Start, tmp_path: Path
) -> None:
    """Typed at a terminal on the login machine."""
    shutil.copy(EXAMPLE, tmp_path)
    allocate, laggard, leave = block("sh").splitlines()
    user = start(slurm.network.login, slurm.environment, *allocate.split(), terminal=True)
    user.type(f"{laggard}; echo code=$?\n")
    (code,) = user.wait_for(r"code=(\d+)\s")
    user.type(f"{leave}\n")
    assert user.finish() == int(code) == 0, user.output
    assert "3 launches, 2 nodes excluded (node2, node3)" in user.output, user.output
    assert "launch 0: 4 ranks on 4 devices of 2 nodes" in user.output
    assert "launch 2: 4 ranks on 2 devices of 1 node" in user.output
    assert "all there, none twice" in user.output
    assert (tmp_path / "eigvals.png").exists()
    watch.expect_nothing()


def test_control_c_at_the_terminal_ends_the_job_in_order(
    slurm: SlurmCluster, watch: Watch, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(COUNTING))
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
    slurm: SlurmCluster, watch: Watch, start: Start, tmp_path: Path
) -> None:
    """The script of the guide; the first run is requeued, the second one reaches its time limit."""
    (tmp_path / "train.py").write_text(textwrap.dedent(COUNTING))
    (tmp_path / "job.sh").write_text(block("bash"))
    submit, script = SUBMIT.split()
    job = start(slurm.network.login, slurm.environment, submit, "--wait", "--output=output", script)
    job.wait_for("counting")
    number = job_id(slurm)
    slurm.run(*REQUEUE.split(), number)
    job.wait_for("saved in launch 0")
    wait_for(lambda: slurm.run("squeue", "--noheader", "--format=%T").strip() == "PENDING", "a requeued job")
    slurm.run("scontrol", "update", f"job={number}", "StartTime=now")  # otherwise Slurm lets it wait for two minutes
    (after,) = job.wait_for(r"launch 1 on node1 node2 after .*'saved': 0")
    assert "'count': None" not in after
    job.wait_for("counting", times=2)
    minutes, seconds = map(int, slurm.run("squeue", "--noheader", "--format=%M").split(":"))
    # Slurm checks the time limit every half minute: it must find less than a minute left, but some.
    slurm.run("scontrol", "update", f"job={number}", f"TimeLimit={minutes + (1 if seconds < 25 else 2)}")
    job.wait_for("saved in launch 1", outlived=True)
    job.wait_for("stopped by SIGTERM, Slurm ends the job", outlived=True)
    job.wait_for("stopped by SIGTERM, (the time limit is reached|.* before the time limit)", outlived=True)
    assert job.finish() == 143, job.output
    assert "relaunch" not in job.output
    watch.expect_nothing()


def test_a_crashed_node_and_then_a_cut_one_cost_the_main_job_nothing(
    slurm: SlurmCluster, network: Network, watch: Watch, start: Start, tmp_path: Path
) -> None:
    shutil.copy(EXAMPLE, tmp_path / "program.py")
    salloc = ("salloc", "--nodes=3", "--exclusive", "--no-kill")
    job = start(network.login, slurm.environment, *salloc, *IDLE_JOB.split(), "--no-thrash", "--num_iters=800")
    job.wait_for("launch 0: 4 ranks on 4 devices of 2 nodes")
    secrets = secrets_of(network)
    assert secrets
    assert not [line for line in watch.left() if any(secret in line for secret in secrets)]
    network.nodes["node2"].crash()
    job.wait_for("without node2; node3 comes in from the reserve")
    job.wait_for("launch 1: 4 ranks on 4 devices of 2 nodes")
    network.cut("node3")
    job.wait_for("without node3; the primary goes on alone")
    assert job.finish() == 0, job.output
    assert "launch 2: 4 ranks on 2 devices of 1 node" in job.output
    assert "iterations per rank: [800, 800, 800, 800], expected 800 each" in job.output
    assert "all there, none twice" in job.output
    slurm.replace_crashed()
    watch.expect_nothing()  # also on the node that is cut off


def test_the_doctor_compares_the_devices_of_all_nodes(slurm: SlurmCluster, watch: Watch, start: Start) -> None:
    command = *DOCTORS_ROUNDS["slurm"].split(), "--json", "--virtual-gpus=1", "--past=past.json"
    job = start(slurm.network.login, slurm.environment, "salloc", "--quiet", "--nodes=3", "--exclusive", *command)
    assert job.finish() in {0, 1}, job.output  # the machines share two processors: one may be slow
    found = json.loads(job.output)["devices"]
    assert [(device["host"], device["uuid"]) for device in found] == [
        (f"node{number}", f"virtual-node{number}-0") for number in (1, 2, 3)
    ]
    watch.expect_nothing()


def test_copies_of_a_program_continue_after_a_node_crashes(
    slurm: SlurmCluster, network: Network, watch: Watch, start: Start
) -> None:
    salloc = ("salloc", "--nodes=3", "--exclusive", "--no-kill")
    job = start(network.login, slurm.environment, *salloc, "laggard", "--nodes=2", "--resilient", *RANKS)
    job.wait_for("rank 0 of 2 on node1, primary 10.78.0.1")
    job.wait_for("rank 1 of 2 on node2, primary 10.78.0.1")
    network.nodes["node2"].crash()
    job.wait_for("rank 1 of 2 on node3, primary 10.78.0.1")
    assert job.finish() == 0, job.output
    slurm.replace_crashed()
    watch.expect_nothing()


def test_a_node_that_slurm_calls_down_is_lost_and_scancel_ends_the_job_in_order(
    slurm: SlurmCluster, network: Network, watch: Watch, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(COUNTING))
    salloc = ("salloc", "--nodes=3", "--exclusive", "--no-kill")
    options = ("--nodes=2", "--resilient", "--state-dir=state", "train.py")
    job = start(network.login, slurm.environment, *salloc, "laggard", *options)
    job.wait_for("counting")
    words = STATUS_STEP.replace("ID", job_id(slurm)).split()
    shown = network.login.run(*words, environment=environment(slurm.environment))
    assert len(re.findall(r"^train-\w+ .* on 2 nodes, 1 in reserve$", shown, re.MULTILINE)) == 3, shown  # one a node
    slurm.run("scontrol", "update", "nodename=node2", "state=drain", "reason=test")
    slurm.run(*DOWN.replace("...", "node2").split(), "reason=test")
    job.wait_for(r"launch 1 on node1 node3 after .*'saved': 0")
    job.wait_for("counting", times=2)
    job.wait_for(r"Slurm says node2 is \w+: test")
    slurm.run("scancel", job_id(slurm))
    job.wait_for("saved in launch 1")
    assert job.finish() == 143, job.output
    assert job.output.count("relaunch  ") == 1, job.output  # the nodes that ended with the job are not lost ones
    watch.expect_no_processes()  # an agent that Slurm kills leaves its folder to the next job


def test_the_prolog_of_the_guide_drains_a_node_with_a_bad_device_and_no_other(
    slurm: SlurmCluster, network: Network
) -> None:
    """Runs on a node whose record of its devices cannot be read, then on one with a GPU whose driver is not loaded."""
    variables = {**environment(slurm.environment), "SLURMD_NODENAME": "node3"}
    record = "mount -t tmpfs tmpfs /var/lib && mkdir /var/lib/laggard"
    unreadable = f"{record} && echo '{{}}' > /var/lib/laggard/devices.json"
    gpu = "/sys/bus/pci/devices/0000:3b:00.0"
    without_driver = (
        f"{record} && mount -t tmpfs tmpfs /sys/bus/pci/devices && mkdir {gpu} "
        f"&& echo 0x10de > {gpu}/vendor && echo 0x030200 > {gpu}/class"
    )

    def run_prolog(before: str) -> None:
        script = f"{before} && {{ {' || '.join(PROLOG)}; }}"
        network.nodes["node3"].run("unshare", "--mount", "sh", "-c", script, environment=variables)

    run_prolog(unreadable)
    assert slurm.states()["node3"] == "idle"
    run_prolog(without_driver)
    assert slurm.states()["node3"] in {"draining", "drained"}
    assert "Reason=laggard" in slurm.run("scontrol", "show", "node", "node3")


def secrets_of(network: Network) -> set[str]:
    """Return the passwords and tokens in the nodes' private folders."""
    found = set()
    for node in network.nodes.values():
        for file in node.run("find", PRIVATE, "-name", "endpoint.json", "-o", "-name", "ray-token").split():
            text = node.run("cat", file)
            found.add(json.loads(text)["password"] if file.endswith("json") else text)
    return found

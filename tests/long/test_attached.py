"""A Ray cluster that runs already: used as it is, bad nodes avoided, and left as it was."""

from __future__ import annotations

import re
import shutil
import socket
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from laggard.resilience.command.cli import main
from laggard.resilience.ray.allocation import DriverProcess
from tests.clusters.raylets import Raylets
from tests.integration.jobs import MAIN_JOB_DEADLINE_S, RunningJob
from tests.printed import ATTACHED_JOB
from tests.waiting import wait_until

Start = Callable[..., RunningJob]

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "slow_gpu.py")
ATTACHED = ("--wlm=ray", "--nodes=2", "--virtual-gpus=2", "--resilient")

# Prints where its tasks run; the first launch then waits for what the test does to it.
WHERE = """
    import os, signal, time
    import ray
    from laggard.collectors import local_devices
    from laggard.kvstore import State
    from laggard.resilience import Job
    from laggard.telemetry import AnalysisClient

    job = Job.current()
    ray.init()

    @ray.remote
    def where():
        time.sleep(0.2)
        assert len(local_devices()) == 2
        State.current()[f"by/{job.launch}/{os.getpid()}"] = os.environ["LAGGARD_NODE"]
        return os.environ["LAGGARD_NODE"]

    places = sorted(set(ray.get([where.remote() for _ in range(12)])))
    print("launch", job.launch, "on", *(node.hostname for node in job.nodes), "ran on", *places, flush=True)
    if not job.restarted and IS_TOLD:
        client = AnalysisClient()
        client.connect()
        client.reboot("n2")
    if not job.restarted:
        signal.pause()
    print("State has", len([key for key in State.current() if key.startswith("by/0/")]) > 0, flush=True)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Raylets]:
    directory = Path(tempfile.mkdtemp(prefix="lr-", dir="/tmp"))  # a short path: sockets lie there
    raylets = Raylets(directory)
    try:
        yield raylets
    finally:
        raylets.stop()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def three_nodes(cluster: Raylets, monkeypatch: pytest.MonkeyPatch) -> Raylets:
    cluster.start("n1", "n2", "n3")
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    return cluster


def test_a_bad_node_is_avoided_without_a_line_in_the_program_and_the_cluster_is_left_as_it_was(
    start_job: Start, three_nodes: Raylets
) -> None:
    job = start_job(*ATTACHED, program=WHERE.replace("IS_TOLD", "True"))
    assert job.finish() == 0, job.everything()
    assert "launch 0 on n1 n2 ran on n1 n2\n" in job.output
    assert "without n2; n3 comes in from the reserve" in job.account
    assert "launch 1 on n1 n3 ran on n1 n3\n" in job.output
    assert "State has True" in job.output
    wait_until(lambda: three_nodes.free_cpus() == {"n1": 2, "n2": 2, "n3": 2}, lambda: str(three_nodes.free_cpus()))
    wait_until(lambda: not three_nodes.processes_of_jobs(), lambda: str(three_nodes.processes_of_jobs()))
    assert job.processes() == []


def test_slow_nodes_are_found_and_avoided(start_job: Start, three_nodes: Raylets) -> None:
    job = start_job(*ATTACHED, "--exhaust-resources", EXAMPLE)
    assert job.finish(MAIN_JOB_DEADLINE_S) == 0, job.everything()
    assert re.search(r"verdict +n2 gpu 0.*by chance", job.account), job.everything()
    assert "3 launches, 2 nodes excluded (n2, n3)" in job.account
    wait_until(lambda: not three_nodes.processes_of_jobs(), lambda: str(three_nodes.processes_of_jobs()))
    assert "all there, none twice" in job.output
    assert job.processes() == []


def test_a_copy_runs_on_every_node_and_nothing_else_does(start_job: Start, three_nodes: Raylets) -> None:
    job = start_job(*ATTACHED, "--per-node", "sh", "-c", "echo $NODE_RANK on $LAGGARD_NODE; exec sleep 600")
    job.wait_for(r"\[n1\] 0 on n1")
    job.wait_for(r"\[n2\] 1 on n2")
    assert three_nodes.free_cpus() == {"n1": 0, "n2": 0, "n3": 0}
    job.process.kill()
    wait_until(lambda: three_nodes.free_cpus() == {"n1": 2, "n2": 2, "n3": 2}, lambda: str(three_nodes.free_cpus()))
    wait_until(lambda: not three_nodes.processes_of_jobs(), lambda: str(three_nodes.processes_of_jobs()))


def test_the_copies_of_a_program_see_the_devices_of_their_raylets(start_job: Start, three_nodes: Raylets) -> None:
    three_nodes.devices["n5"] = "6,GPU-7,8"  # of which Ray was told to use two
    three_nodes.start("n5")
    try:
        tell = "echo $LAGGARD_NODE sees $CUDA_VISIBLE_DEVICES"
        job = start_job("--wlm=ray", "--nodes=4", "--per-node", "sh", "-c", tell)
        assert job.finish() == 0, job.everything()
        assert {line for line in job.output.splitlines() if " sees " in line} == {
            *(f"[{name}] {name} sees 0,1" for name in ("n1", "n2", "n3")),
            "[n5] n5 sees 6,GPU-7",
        }
    finally:
        three_nodes.kill("n5")
    wait_until(lambda: "n5" not in three_nodes.free_cpus(), lambda: str(three_nodes.free_cpus()))


def test_a_node_that_joins_later_is_held_too(three_nodes: Raylets) -> None:
    driver = DriverProcess(three_nodes.address)
    try:
        (head,) = (node.id for node in driver.nodes if node.head)
        alive, missed = driver.hold_all_but([head])
        assert (len(alive), missed) == (3, frozenset())
        three_nodes.start("n4")
        wait_until(
            lambda: three_nodes.free_cpus() == {"n1": 2, "n2": 0, "n3": 0, "n4": 0},
            lambda: str(three_nodes.free_cpus()),
        )
    finally:
        driver.close()
        three_nodes.kill("n4")


def test_a_lost_node_is_replaced(
    start_job: Start, three_nodes: Raylets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guide's job, with this cluster's address and two of its three nodes."""
    monkeypatch.setenv("LAGGARD_VIRTUAL_GPUS", "2")
    (tmp_path / "train.py").write_text(textwrap.dedent(WHERE).replace("IS_TOLD", "False"))
    _, _, *words = ATTACHED_JOB.replace("--nodes 7", "--nodes 2").split()
    job = start_job(*words, directory=tmp_path)
    job.wait_for("launch 0 on n1 n2 ran on n1 n2")
    three_nodes.kill("n2")
    assert job.finish() == 0, job.everything()
    assert "launch 1 on n1 n3 ran on n1 n3\n" in job.output
    assert "State has True" in job.output
    wait_until(lambda: three_nodes.free_cpus() == {"n1": 2, "n3": 2}, lambda: str(three_nodes.free_cpus()))


# Runs where its tasks can; the first launch then waits for what the test does to it.
PLACES = """
    import os, signal, time
    import ray
    from laggard import Job, State

    job = Job.current()
    ray.init()

    @ray.remote
    def where():
        time.sleep(0.2)
        return os.environ["LAGGARD_NODE"]

    places = sorted(set(ray.get([where.remote() for _ in range(12)])))
    State.current()[f"launch/{job.launch}"] = places
    print("launch", job.launch, "of", job.primary.hostname, "ran on", *places, flush=True)
    if not job.restarted:
        signal.pause()
"""


@pytest.fixture
def worker_and_empty_head(monkeypatch: pytest.MonkeyPatch) -> Iterator[Raylets]:
    """A head that offers nothing, as the guide's, and one worker."""
    directory = Path(tempfile.mkdtemp(prefix="lr-", dir="/tmp"))
    raylets = Raylets(directory)
    raylets.without_resources = {"n1"}
    try:
        raylets.start("n1", "n2")
        for name, value in raylets.environment.items():
            monkeypatch.setenv(name, value)
        yield raylets
    finally:
        raylets.stop()
        shutil.rmtree(directory, ignore_errors=True)


def test_a_head_that_offers_nothing_keeps_the_books_and_its_worker_is_replaced_by_one_that_joins(
    start_job: Start, worker_and_empty_head: Raylets
) -> None:
    cluster = worker_and_empty_head
    job = start_job("--wlm=ray", "--virtual-gpus=2", "--resilient", "--exhaust-resources", program=PLACES)
    job.wait_for("launch 0 of n1 ran on n2\n")
    assert "0 on n2 (primary: n1, without its devices)" in job.account
    cluster.kill("n2")
    job.wait_for(r"n2 is lost .*; waiting up to 5 min 0 s for n2 to return")
    cluster.start("n3")
    job.wait_for("n3 has joined the cluster")
    assert job.finish(MAIN_JOB_DEADLINE_S) == 0, job.everything()
    assert "n3 is back; with n3 from the reserve" in job.account
    assert "launch 1 of n1 ran on n3\n" in job.output
    assert job.processes() == []


def test_a_program_is_not_launched_on_a_head_that_offers_nothing(
    start_job: Start, worker_and_empty_head: Raylets
) -> None:
    options = ("--wlm=ray", "--virtual-gpus=2", "--resilient", "--exhaust-resources", "--wait-for-nodes=0")
    job = start_job(*options, program=PLACES)
    job.wait_for("launch 0 of n1 ran on n2\n")
    worker_and_empty_head.kill("n2")
    assert job.finish(MAIN_JOB_DEADLINE_S) == 69, job.everything()
    assert "no node is left to run the program: the primary, n1, has no processors or GPUs for it" in job.account
    again = start_job(*options, program=PLACES)
    assert again.finish(MAIN_JOB_DEADLINE_S) == 69, again.everything()
    assert "no node is left to run the program" in again.account


def test_a_node_that_ray_drains_leaves_the_reserve_and_is_not_swapped_in(
    start_job: Start, three_nodes: Raylets
) -> None:
    job = start_job(*ATTACHED, "--exhaust-resources", program=PLACES)
    job.wait_for("launch 0 of n1 ran on n1 n2\n")
    three_nodes.drain("n3")
    try:
        job.wait_for("n3 leaves the reserve: Ray drains it, until")
        three_nodes.kill("n2")
        assert job.finish(MAIN_JOB_DEADLINE_S) == 0, job.everything()
        assert "without n2; n1 goes on alone" in job.account
        assert "launch 1 of n1 ran on n1\n" in job.output
    finally:
        three_nodes.kill("n3")


def test_an_address_that_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert main(["--wlm=ray", "true"]) == 2
    assert main(["--wlm=ray", "true"]) == 2
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert main(["true"]) == 2
    monkeypatch.delenv("RAY_ADDRESS")
    assert main(["--wlm=ray", "true"]) == 2
    assert capfd.readouterr().err.splitlines() == [
        f"laggard: RAY_ADDRESS={address} is not a Ray cluster that laggard can use: no answer in time",
        f"laggard: RAY_ADDRESS={address} does not answer: is the cluster up? --wlm=local runs without it",
        "laggard: RAY_ADDRESS=auto is not an address: give host:port of the head, or --wlm=local",
        "laggard: --wlm=ray needs a Ray cluster: set RAY_ADDRESS to host:port of its head",
    ]

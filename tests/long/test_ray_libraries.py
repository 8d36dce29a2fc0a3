"""Programs of Ray Train, Tune and Data, ours and those in Ray's package, whose nodes are lost or slow."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.jobs import MAIN_JOB_DEADLINE_S, RunningJob
from tests.integration.test_detect import thrashed
from tests.printed import RAY_DATA_LINES, RAY_TRAIN_JOB, RAY_TRAIN_LINES, RAYS_EXAMPLE_JOB
from tests.processes import command_line
from tests.waiting import wait_until

pytest.importorskip(
    "ray.train",
    reason="Ray's libraries need packages of their own: pip install 'ray[data,train,tune]'",
    exc_type=ImportError,
)

parquet = pytest.importorskip("pyarrow.parquet", reason="comes with ray[data]")

Start = Callable[..., RunningJob]

EXAMPLES = Path(__file__).parents[2] / "examples"
ONE_IN_RESERVE = ("--local-nodes=3", "--nodes=2", "--virtual-gpus=1", "--resilient")
DEADLINE_S = 2 * MAIN_JOB_DEADLINE_S
NONE_LOST = {
    "train": "200 steps in all, 2 x 100: none lost, none twice",
    "tune": "400 steps in all, 4 x 100: none lost, none twice",
    "data": "the sum of squares is 2664667000, right",
}
WATCHED = tuple(RAYS_EXAMPLE_JOB.split()[1:-2])
AT_ONCE = ("--grace=1", "--detect-interval=0.5", "--restart-cost=0")
TROUBLES = pytest.mark.parametrize("trouble", ["lost-node", "slow-device"])
EPOCHS = 20
TRIAL_ENDED = "completed after 10 iterations"
# As in Ray Data's documentation; its package has no example.
INFERENCE = """
import ray
{line}

class Model:
    def __call__(self, batch):
        return {{"id": batch["id"], "square": batch["id"] ** 2}}

rows = ray.data.range(400, override_num_blocks=80)
rows.map_batches(Model, compute=ray.data.ActorPoolStrategy(size=2)).write_parquet("/shared/squares")
"""
# What the guide's lines for Ray Train leave to the program: its loop, which loses its node.
LOOP = """
import functools

from ray.train.torch import TorchConfig
from train import train as loop

from laggard import State

train = functools.partial(loop, {"trouble": "lost-node"})
"""


@pytest.mark.timeout(2 * DEADLINE_S)
@pytest.mark.parametrize("trouble", ["lost-node", "slow-device", "preemption"])
def test_ray_train_restarts_its_workers_in_the_same_launch(start_job: Start, tmp_path: Path, trouble: str) -> None:
    (tmp_path / "examples").symlink_to(EXAMPLES)
    _, *words, _ = RAY_TRAIN_JOB.split()
    job = start_job(*words, f"--trouble={trouble}", directory=tmp_path)
    assert job.finish(DEADLINE_S) == 0, job.everything()
    assert NONE_LOST["train"] in job.output
    if trouble != "preemption":  # which Ray sees by itself
        assert "the program restarts its workers by itself" in job.account
    if trouble == "slow-device":
        assert re.search(r"verdict +node[23] gpu 0", job.account), job.everything()
    assert re.search(r"^1 launch,", job.account, re.MULTILINE)


@pytest.mark.timeout(2 * DEADLINE_S)
@pytest.mark.usefixtures("results")
def test_the_guides_lines_for_ray_train_restart_its_workers_when_a_node_is_lost(
    start_job: Start, tmp_path: Path
) -> None:
    folder = shutil.copytree(EXAMPLES / "ray_libraries", tmp_path / "job")
    before, call, after = RAY_TRAIN_LINES.partition("TorchTrainer(train, ")
    without_nccl = f"{before}{call}torch_config=TorchConfig('gloo'), {after}"
    program = f"{LOOP}\n{without_nccl}\nprint(State.current()['steps'], 'steps')\n"
    job = start_job("--local-nodes=3", "--virtual-gpus=1", program=program, directory=folder)
    assert job.finish(DEADLINE_S) == 0, job.everything()
    assert "200 steps\n" in job.output
    assert "the program restarts its workers by itself" in job.account
    assert re.search(r"^1 launch,", job.account, re.MULTILINE), job.everything()


@pytest.mark.timeout(2 * DEADLINE_S)
@pytest.mark.parametrize("trouble", ["lost-node", "slow-device"])
@pytest.mark.parametrize("library", ["tune", "data"])
def test_ray_tune_and_ray_data_go_on_in_the_next_launch(start_job: Start, library: str, trouble: str) -> None:
    job = start_job(*ONE_IN_RESERVE, str(EXAMPLES / "ray_libraries" / f"{library}.py"), f"--trouble={trouble}")
    assert job.finish(DEADLINE_S) == 0, job.everything()
    assert NONE_LOST[library] in job.output
    assert re.search(r"relaunch +.*without node2; node3 comes in from the reserve", job.account), job.everything()
    assert re.search(r"^\d+ launches,", job.account, re.MULTILINE)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which Ray's libraries keep their results by default, in a home of this test's own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / "ray_results"


@pytest.mark.timeout(2 * DEADLINE_S)
@TROUBLES
def test_rays_own_example_of_train_starts_from_scratch_in_the_next_launch(
    start_job: Start, results: Path, trouble: str
) -> None:
    job = start_job(*WATCHED, *AT_ONCE, *RAYS_EXAMPLE_JOB.split()[-2:], f"--epochs={EPOCHS}")
    hold(job, "RayTrainWorker", lambda: any(results.glob("*/checkpoint_*")))
    (first,) = results.iterdir()
    finish_elsewhere(job, trouble)
    last = max(results.iterdir())
    assert len([*first.glob("checkpoint_*")]) < EPOCHS
    assert len([*last.glob("checkpoint_*")]) >= EPOCHS  # two ranks may name one checkpoint differently
    assert "{'loss': " in job.output


@pytest.mark.timeout(2 * DEADLINE_S)
@pytest.mark.usefixtures("results")
@TROUBLES
def test_rays_own_example_of_tune_starts_from_scratch_in_the_next_launch(start_job: Start, trouble: str) -> None:
    job = start_job(*WATCHED, *AT_ONCE, "-m", "ray.tune.examples.custom_func_checkpointing")
    hold(job, "custom_func_checkpointing", lambda: TRIAL_ENDED in job.output)
    finish_elsewhere(job, trouble)
    assert "5 TERMINATED" in job.output, job.everything()


@pytest.mark.timeout(2 * DEADLINE_S)
@TROUBLES
def test_ray_data_leaves_out_what_it_has_written_with_the_guides_line(
    start_job: Start, tmp_path: Path, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_DATA_PARQUET_FOOTER_NUM_ACTORS", "1")  # by default 32 processes read one file
    program = INFERENCE.format(line=RAY_DATA_LINES).replace("/shared", str(tmp_path))
    job = start_job(*WATCHED, *AT_ONCE, program=program)
    hold(job, "program.py", lambda: any((tmp_path / "squares").glob("*.parquet")))
    finish_elsewhere(job, trouble)
    assert sorted(parquet.read_table(tmp_path / "squares")["id"].to_pylist()) == [*range(400)]


def hold(job: RunningJob, part: str, is_amid: Callable[[], bool]) -> None:
    """Stop a process of the program for good once it has got somewhere, so that it does not end before its node."""

    def is_amid_or_over() -> bool:
        return is_amid() or job.process.poll() is not None

    wait_until(is_amid_or_over, job.everything, DEADLINE_S)
    assert job.process.poll() is None, job.everything()
    processes = [process for node in ("node1", "node2") for process in job.processes_of(node)]
    next(process for process in processes if part in command_line(process)).suspend()


def finish_elsewhere(job: RunningJob, trouble: str) -> None:
    """Lose node2 or slow it down, and see the next launch through to its end."""
    if trouble == "lost-node":
        job.agent_of("node2").kill()
        assert job.finish(DEADLINE_S) == 0, job.everything()
    else:
        with thrashed(job, "node2"):
            assert job.finish(DEADLINE_S) == 0, job.everything()
        assert "verdict   node2 gpu 0" in job.account, job.everything()
    relaunches = re.findall(r"relaunch +(.*)", job.account)  # on a busy machine Ray may lose others afterwards
    assert relaunches[0].endswith("without node2; node3 comes in from the reserve"), job.everything()
    assert job.processes() == []

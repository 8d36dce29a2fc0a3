"""Trainings with PyTorch that go on where they stopped: their losses are those of a run in which nothing happened."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.integration.jobs import RunningJob
from tests.local import fresh_local_state
from tests.printed import RESUME_JOBS

pytest.importorskip("torch", reason="needs the extra `torch`")

EXAMPLES = Path(__file__).parents[2] / "examples"
DEADLINE_S = 120.0
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")

# A model that is split over two ranks, with its optimizer.
SPLIT = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import laggard.torch

torch.manual_seed(1)
torch.set_num_threads(1)
dist.init_process_group("gloo")
mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 1))
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
stop, steps = int(sys.argv[1]), 12
run = laggard.torch.resume(model, optimizer, every=5)
for step in range(run.step, steps):
    torch.manual_seed(step)
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    run.save(step, loss=loss)
    if dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.9f}", flush=True)
    if step == stop:
        sys.exit(1)
dist.destroy_process_group()
"""

# PyTorch's tutorial on DistributedDataParallel: the program starts its ranks itself, without torchrun's variables.
SPAWNING = """
import os
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import laggard.torch


def train(rank, stop):
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/group", rank=rank, world_size=2)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run = laggard.torch.resume(model, optimizer, every=2)
    for step in range(run.step, 12):
        torch.manual_seed(10 * step + rank)
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.save(step)
        if rank == 0:
            print(f"step {step}: loss {loss.item():.9f}", flush=True)
        if step == stop:
            raise RuntimeError("stopped")
    dist.destroy_process_group()


if __name__ == "__main__":
    if os.path.exists("group"):
        os.remove("group")
    torch.multiprocessing.spawn(train, (int(sys.argv[1]),), nprocs=2)
"""


def run(folder: Path, *command: str | Path) -> tuple[int, str, str]:
    """Run a command in a folder, outside of any job."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LAGGARD_")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    return done.returncode, done.stdout, done.stderr


def steps(output: str) -> list[str]:
    """Return the lines of steps; a step that was repeated must have the same loss again."""
    lines = sorted(set(re.findall(r"^(?:\[\S+(?: rank 0)?\] )?(step \d+: loss .*)$", output, re.MULTILINE)))
    assert len({line.split(":")[0] for line in lines}) == len(lines), output
    return lines


def losses(output: str) -> list[float]:
    """Return the losses of steps, in their order."""
    return [float(loss) for loss in re.findall(r"^step \d+: loss (.*)$", output, re.MULTILINE)]


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("disturbed", "undisturbed"):
        (tmp_path / name).mkdir()
    return tmp_path / "disturbed", tmp_path / "undisturbed"


def test_a_script_for_torchrun_goes_on_without_laggard(folders: tuple[Path, Path]) -> None:
    disturbed, undisturbed = folders
    script = EXAMPLES / "resume_loop.py"
    failed, before, why = run(disturbed, *TORCHRUN, script, "--fail-at=25")
    assert failed != 0
    assert "uncorrectable ECC" in why
    assert why.count("not in a laggard job") == 1
    ended, after, errors = run(disturbed, *TORCHRUN, script, "--fail-at=25")
    assert ended == 0, errors
    assert "launch 1: 2 ranks, from step 20 of 40" in after
    _, whole, _ = run(undisturbed, *TORCHRUN, script)
    assert steps(before + after) == steps(whole)
    assert len(steps(whole)) == 4


def test_ranks_that_the_program_starts_itself_go_on(folders: tuple[Path, Path]) -> None:
    disturbed, undisturbed = folders
    for folder in folders:
        (folder / "spawning.py").write_text(SPAWNING)
    failed, before, why = run(disturbed, sys.executable, "spawning.py", "7")
    assert failed != 0
    assert why.count("not in a laggard job") == 1, why
    ended, after, errors = run(disturbed, sys.executable, "spawning.py", "-1")
    assert ended == 0, errors
    assert after.startswith("step 8:")
    _, whole, _ = run(undisturbed, sys.executable, "spawning.py", "-1")
    assert steps(before + after) == steps(whole)
    assert len(steps(whole)) == 12


def test_ranks_that_the_program_starts_itself_go_on_in_the_next_launch_of_a_job(
    start_job: Callable[..., RunningJob],
) -> None:
    first = "(7 if os.environ['LAGGARD_LAUNCH'] == '0' else -1,)"
    program = SPAWNING.replace("(int(sys.argv[1]),)", first)
    job = start_job("--local-nodes=1", "--resilient", "--per-node", program=program)
    assert job.finish(DEADLINE_S) == 0, job.everything()
    assert "relaunch  the program on node1 exited with 1" in job.account
    assert re.findall(r"step (\d+): loss", job.output) == [*map(str, range(12))], job.everything()


@pytest.mark.parametrize("ranks", [2, 1])
def test_a_model_that_is_split_over_ranks_goes_on_over_as_many_or_fewer(folders: tuple[Path, Path], ranks: int) -> None:
    disturbed, undisturbed = folders
    for folder in folders:
        (folder / "split.py").write_text(SPLIT)
    _, before, _ = run(disturbed, *TORCHRUN, "split.py", "8")
    assert len(steps(before)) == 9
    later = [word.replace("=2", f"={ranks}") for word in TORCHRUN]
    ended, after, errors = run(disturbed, *later, "split.py", "-1")
    assert ended == 0, errors
    _, whole, _ = run(undisturbed, *TORCHRUN, "split.py", "-1")
    assert after.startswith("step 5:")
    assert losses(after) == pytest.approx(losses(whole)[5:], rel=0 if ranks == 2 else 1e-5)
    assert len(steps(whole)) == 12


def test_all_ranks_go_back_if_one_cannot_read_the_newest_checkpoint(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    disturbed, undisturbed = folders
    for folder in folders:  # the shards are files, and keep=2 is the default
        (folder / "split.py").write_text(SPLIT.replace("Linear(8, 6)", "Linear(8, 50000)").replace("(6", "(50000"))
    _, before, _ = run(disturbed, *TORCHRUN, "split.py", "10")
    assert len(steps(before)) == 11
    state_file = disturbed / "split.laggard-state.db"
    monkeypatch.setenv("LAGGARD_LOCAL_STATE", str(state_file))
    shard_of_rank_1 = str(fresh_local_state()["torch/0/10/1-2/shard"]["id"])
    (disturbed / f"{state_file.name}.shards" / f"{shard_of_rank_1}.shard").unlink()
    ended, after, errors = run(disturbed, *TORCHRUN, "split.py", "-1")
    assert ended == 0, errors
    assert errors.count("the checkpoint of step 10 cannot be read (rank 1: ") == 1
    assert errors.count("goes on from step 5, which an earlier run saved with other arguments (10)") == 1
    _, whole, _ = run(undisturbed, *TORCHRUN, "split.py", "-1")
    assert after.startswith("step 5:")
    assert losses(after) == losses(whole)[5:]


def test_the_job_of_the_guide_names_the_rank_that_failed_and_its_losses_are_those_of_an_undisturbed_one(
    start_job: Callable[..., RunningJob], tmp_path: Path
) -> None:
    (tmp_path / "examples").symlink_to(EXAMPLES)
    _, *arguments = shlex.split(RESUME_JOBS["loop"])
    job = start_job(*arguments, "--steps=40", directory=tmp_path)
    assert job.finish() == 0, job.everything()
    assert re.search(r"rank 3 on node2 exited with 1 .*uncorrectable ECC error", job.account)
    assert re.search(r"\[node\d rank 0\] launch 1: 4 ranks, from step 20 of 40", job.output), job.everything()
    assert job.processes() == []
    undisturbed = start_job(*arguments[:-1], directory=tmp_path)
    assert undisturbed.finish() == 0, undisturbed.everything()
    assert steps(job.output) == steps(undisturbed.output)
    assert len(steps(job.output)) == 4


def test_a_large_model_comes_back_from_the_memory_of_its_node(
    start_job: Callable[..., RunningJob], tmp_path: Path
) -> None:
    (tmp_path / "examples").symlink_to(EXAMPLES)
    _, *arguments = shlex.split(RESUME_JOBS["large"])
    job = start_job(*arguments, directory=tmp_path)
    assert job.finish() == 0, job.everything()
    assert re.search(r"\[node\d rank 0\] launch 1: 2 ranks, from step 20 of 40", job.output), job.everything()
    assert job.processes() == []
    assert list((tmp_path / "checkpoints").iterdir()) == []  # they are gone with the job's State
    undisturbed = start_job(*arguments[:-1], directory=tmp_path)
    assert undisturbed.finish() == 0, undisturbed.everything()
    assert steps(job.output) == steps(undisturbed.output)


@pytest.mark.parametrize(("name", "library"), [("lightning", "lightning"), ("trainer", "transformers")])
def test_a_callback_goes_on_after_a_relaunch(
    name: str, library: str, start_job: Callable[..., RunningJob], tmp_path: Path
) -> None:
    if find_spec(library) is None:
        pytest.skip(f"needs {library}")
    (tmp_path / "examples").symlink_to(EXAMPLES)
    _, *arguments = shlex.split(RESUME_JOBS[name])
    job = start_job("--telemetry-level=1", *arguments, directory=tmp_path)
    assert job.finish() == 0, job.everything()
    assert "was killed by SIGKILL" in job.account
    assert re.search(r"launch 1, resuming from \S+-20\n", job.output)
    assert "weights_only" not in job.output, "Lightning asks for no choice at each checkpoint"
    assert len(steps(job.output)) == 4


@pytest.mark.parametrize(
    ("script", "library", "resumed_from"),
    [
        ("resume_lightning.py", "lightning", "laggard-state-20"),
        ("resume_trainer.py", "transformers", "trained/checkpoint-20"),
    ],
)
def test_an_example_that_is_killed_goes_on_from_its_newest_checkpoint(
    script: str, library: str, resumed_from: str, folders: tuple[Path, Path]
) -> None:
    if find_spec(library) is None:
        pytest.skip(f"needs {library}")
    disturbed, undisturbed = folders
    killed, before, why = run(disturbed, sys.executable, EXAMPLES / script, "--kill-at=25")
    assert killed == -9, why
    assert "launch 0, resuming from None" in before
    ended, after, errors = run(disturbed, sys.executable, EXAMPLES / script, "--kill-at=25")
    assert ended == 0, errors
    assert f"launch 1, resuming from {resumed_from}" in after
    _, whole, _ = run(undisturbed, sys.executable, EXAMPLES / script)
    assert steps(before + after) == steps(whole)
    assert len(steps(whole)) == 4

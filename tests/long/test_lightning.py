"""Trainings with Lightning that are killed three times: they see the batches and have the losses of one that is not."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.local import fresh_local_state
from tests.long.test_resume import TORCHRUN, run

if find_spec("lightning") is None:
    pytest.skip("needs Lightning", allow_module_level=True)

PROGRAM = """
import os
import signal
import sys
import traceback
import warnings

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, Dataset, IterableDataset

from laggard.torch.lightning import Checkpoints



class Augmented(Dataset):
    def __len__(self):
        return 50

    def __getitem__(self, number):
        return torch.tensor([float(number)]), torch.rand(1)


class Streamed(IterableDataset):
    def __iter__(self):
        for number in range(50):
            yield torch.tensor([float(number)]), torch.rand(1)


class Regression(LightningModule):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.register_buffer("total", torch.zeros(()))
        self.network = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))

    def training_step(self, batch, batch_idx):
        if self.kind == "two loaders":
            batch = [torch.cat(each) for each in zip(*batch.values())]
        numbers, targets = batch
        self.total += numbers.mean()
        self.seen.append(numbers.flatten().int().tolist())
        return torch.nn.functional.mse_loss(self.network(numbers / 50), targets)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Printing(Callback):
    def __init__(self, kill_at):
        self.kill_at = kill_at
        self.steps = 0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step > self.steps:
            self.steps = trainer.global_step
            loss, rank = outputs["loss"].item(), trainer.global_rank
            seen = f"{module.seen} {loss:.9f} {module.total:.9f}"
            print(f"step {trainer.global_step}: rank {rank}: {seen}\\n", end="", flush=True)
            module.seen.clear()
        if trainer.global_step == self.kill_at and trainer.global_rank == trainer.world_size - 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_start(self, trainer, module):
        self.steps, module.seen = trainer.global_step, []


def train(kind, kill_at, seed):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = Regression(kind)
    torch.manual_seed(seed)
    match kind:
        case "stateful":
            from torchdata.stateful_dataloader import StatefulDataLoader

            loader = StatefulDataLoader(Augmented(), batch_size=8, shuffle=True)
        case "streamed":
            loader = DataLoader(Streamed(), batch_size=8)
        case "two loaders":
            loader = {size: DataLoader(Augmented(), batch_size=size, shuffle=True) for size in (8, 16)}
        case _:
            loader = DataLoader(Augmented(), batch_size=8, shuffle=True)
    checkpoints = Checkpoints(every=4)
    trainer = Trainer(
        max_steps=22,
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        strategy=DDPStrategy(broadcast_buffers=kind != "own buffers") if "WORLD_SIZE" in os.environ else "auto",
        accumulate_grad_batches=3 if kind == "accumulating" else 1,
        limit_train_batches=4 if kind == "cut short" else None,
        callbacks=[checkpoints, Printing(kill_at)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with warnings.catch_warnings(record=True) as warned:
        trainer.fit(model, loader, ckpt_path=checkpoints.newest())
    assert not [each for each in warned if "before the epoch ended" in str(each.message)]
    print(f"rank {trainer.global_rank} began at {checkpoints.newest()} and ended at {trainer.global_step}\\n", end="")


def launch(folder, *arguments):
    # In a process of its own, which has all modules already.
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.dup2(write, sys.stdout.fileno())
        os.chdir(folder)
        try:
            train(*arguments)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as output:
        return output.read(), os.waitpid(child, 0)[1]


if "WORLD_SIZE" in os.environ:
    train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
else:
    for kind in sys.argv[1:]:
        for name in ("disturbed", "undisturbed"):
            os.makedirs(f"{kind}/{name}")
        kills = [("disturbed", kill_at, seed) for seed, kill_at in enumerate((6, 15, 18, -1), 1)]
        for folder, kill_at, seed in [("undisturbed", -1, 1), *kills]:
            output, status = launch(f"{kind}/{folder}", kind, kill_at, seed)
            assert status == (signal.SIGKILL if kill_at > 0 else 0), output
            for line in output.splitlines():
                print(f"{kind} {folder}: {line}", flush=True)
"""


def steps(output: str) -> list[str]:
    """Return what each rank saw in each step; a step that was repeated must have seen the same again."""
    lines = sorted(set(re.findall(r"^step \d+: rank \d+: .*$", output, re.MULTILINE)))
    assert len({line[: line.index("[")] for line in lines}) == len(lines), output
    return lines


KINDS = ["shuffled", "stateful", "streamed", "two loaders", "accumulating", "cut short"]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what trainings of all kinds have printed."""
    folder = tmp_path_factory.mktemp("trainings")
    (folder / "train.py").write_text(PROGRAM)
    kinds = [kind for kind in KINDS if kind != "stateful" or find_spec("torchdata")]
    ended, output, errors = run(folder, sys.executable, "train.py", *kinds)
    assert ended == 0, errors
    return output


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_that_is_killed_three_times_sees_what_one_that_is_not_sees(kind: str, outputs: str) -> None:
    if f"{kind} undisturbed:" not in outputs:
        pytest.skip("needs torchdata")
    disturbed, whole = (
        "\n".join(re.findall(f"^{kind} {name}: (.*)$", outputs, re.MULTILINE)) for name in ("disturbed", "undisturbed")
    )
    assert "rank 0 began at laggard-state-16 and ended at 22" in disturbed
    assert steps(disturbed) == steps(whole)
    assert len(steps(whole)) == 22


@pytest.mark.parametrize("kind", ["shuffled", "own buffers"])
def test_so_does_one_of_two_ranks(kind: str, tmp_path: Path) -> None:
    for name in ("disturbed", "undisturbed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(PROGRAM)
    ended, whole, errors = run(tmp_path / "undisturbed", *TORCHRUN, "train.py", kind, "-1", "1")
    assert ended == 0, errors
    output = ""
    for seed, kill_at in enumerate(("6", "15", "18", "-1"), 1):
        ended, seen, errors = run(tmp_path / "disturbed", *TORCHRUN, "train.py", kind, kill_at, str(seed))
        assert (ended == 0) == (kill_at == "-1"), errors
        output += seen
    assert output.count("began at laggard-state-16 and ended at 22") == 2
    assert steps(output) == steps(whole)
    assert len(steps(whole)) == 22 * 2
    if kind == "own buffers":
        one = (*TORCHRUN[:-1], "--nproc-per-node=1")
        ended, _, errors = run(tmp_path / "disturbed", *one, "train.py", kind, "-1", "1")
        assert ended != 0
        assert "total cannot be resharded: each rank that saved step 20 has its own" in errors


def test_all_ranks_go_back_if_one_cannot_read_the_newest_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = {}
    for name, kills in (("whole", ["-1"]), ("disturbed", ["15", "-1"])):
        (folder := tmp_path / name).mkdir()
        # The shards are files.
        (folder / "train.py").write_text(re.sub(r"Linear\((1, 8|8, 1)\)", wide, PROGRAM))
        outputs[name] = ""
        for kill_at in kills:
            ended, seen, errors = run(folder, *TORCHRUN, "train.py", "shuffled", kill_at, "1")
            outputs[name] += seen
            if kill_at == "15":
                state_file = folder / "train.laggard-state.db"
                monkeypatch.setenv("LAGGARD_LOCAL_STATE", str(state_file))
                shard = fresh_local_state()["lightning/0/12/0-2/shard"]["id"]
                (folder / f"{state_file.name}.shards" / f"{shard}.shard").unlink()
        assert ended == 0, errors
    assert errors.count("the checkpoint of step 12 cannot be read (rank 0: ") == 1, errors
    assert errors.count("goes on from step 8") == 1
    assert steps(outputs["disturbed"]) == steps(outputs["whole"])


def wide(layer: re.Match[str]) -> str:
    return layer[0].replace("8", "40000")

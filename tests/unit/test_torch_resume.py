"""What ``laggard.torch.resume`` restores, and how far it goes in the data."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

torch: Any = pytest.importorskip("torch", reason="needs the extra `torch`")

from laggard import Checkpointer, Job, State, Telemetry, UnsupportedValueError  # noqa: E402 - what follows needs PyTorch
from laggard.kvstore.control import NodeRecord  # noqa: E402
from laggard.torch import resuming  # noqa: E402
from tests.local import fresh_local_state  # noqa: E402


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of ``resume`` is a run of its own of a program without laggard."""
    for name in [name for name in os.environ if name.startswith(("LAGGARD_", "RANK", "WORLD_SIZE"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LAGGARD_LOCAL_STATE", str(tmp_path / "state.db"))
    runs = iter(map(str, range(100)))
    monkeypatch.setattr(State, "current", lambda: fresh_local_state(next(runs)))
    monkeypatch.setattr(Job, "current", lambda: Job(0, (NodeRecord("node1", "127.0.0.1", ()),), ()))


class Training:
    """A model with all that has a state."""

    def __init__(self, **options: Any) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(), torch.nn.Linear(2, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 4])
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        self.run = resuming.resume(
            self.model, self.optimizer, self.scheduler, also={"average": self.average}, **options
        )

    def step(self, number: int) -> tuple[float, float, float]:
        """Return the loss, which depends on all random generators."""
        noise = torch.full((2,), random.random() + np.random.random())
        loss = self.model(noise).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.average.update_parameters(self.model)
        self.run.save(number, loss=loss)
        return loss.item(), self.scheduler.get_last_lr()[0], self.average.module[0].weight.sum().item()


def test_a_training_goes_on_bit_for_bit_from_the_step_after_the_saved_one() -> None:
    first = Training(every=3)
    assert first.run.step == 0
    steps = [first.step(number) for number in range(8)]

    again = Training(every=3)
    assert again.run.step == 6
    assert repr(again.run) == "<Resumed at step 6: rank 0 of 1, launch 0>"
    assert [again.step(number) for number in range(6, 8)] == steps[6:]


def test_random_numbers_that_a_loader_draws_when_it_is_made_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(state: str, n_steps: int) -> dict[int, float]:
        monkeypatch.setenv("LAGGARD_LOCAL_STATE", str(tmp_path / state))
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(1)
        training = Training(every=2)
        torch.rand(3)  # as a sampler does that seeds a generator of its own
        batches = training.run.batches(range(10))
        return {number: next(batches) + training.step(number)[0] for number in range(training.run.step, n_steps)}

    undisturbed = train("undisturbed", 8)
    disturbed = train("disturbed", 4) | train("disturbed", 8)
    assert disturbed == undisturbed


@pytest.mark.parametrize(("rank", "lines"), [(0, 1), (1, 0)])
def test_with_another_number_of_ranks_the_weights_are_restored_and_the_first_rank_says_what_is_not(
    rank: int, lines: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = Training()
    first.step(0)
    monkeypatch.setattr(resuming, "_rank_and_ranks", lambda: (rank, 2))
    again = Training()
    assert again.run.step == 1
    assert torch.equal(again.model[0].weight, first.model[0].weight)
    assert caplog.text.count("step 1 was saved by 1 ranks, and there are 2: random generators begin anew") == lines


def test_wrappers_that_change_names_are_taken_off_and_the_old_fsdp_is_refused() -> None:
    model = torch.nn.Linear(2, 2)
    compiled = torch.nn.Module()
    compiled._orig_mod = model  # as torch.compile does, which takes seconds to load
    assert resuming._unwrapped(compiled) is model
    split = torch.distributed.fsdp.FullyShardedDataParallel
    with pytest.raises(TypeError, match="split the model with fully_shard"):
        resuming._unwrapped(split.__new__(split))


def test_each_step_reports_its_number_its_time_and_its_loss_and_each_checkpoint_its_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    added: list[tuple[Any, ...]] = []
    steps: list[float] = []
    monkeypatch.setattr(Telemetry, "add_data", lambda _, name, value, **tag: added.append((name, value, *tag.values())))
    monkeypatch.setattr(Job, "progress", lambda _, step: steps.append(step))
    saved: list[float] = []
    monkeypatch.setattr(Job, "checkpointed", lambda _, step: saved.append(step))
    training = Training(every=2)
    training.step(0)
    training.run.save(1)
    names = ["step", "step-time", "loss", "step", "step-time"]
    assert [(name, *tag) for name, _, *tag in added] == [(name, "rank", "0") for name in names]
    assert [value for name, value, *_ in added if name == "step"] == [1, 2]
    assert all(value > 0 for name, value, *_ in added if name == "step-time")
    assert (steps, saved) == ([1, 2], [2])


@pytest.mark.parametrize("every", [1, 3])
def test_the_size_of_a_checkpoint_is_announced_before_the_first_one(
    monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    announced: list[int] = []
    monkeypatch.setattr(Checkpointer, "prepare", lambda _, size_bytes: announced.append(size_bytes))
    training = Training(every=every)
    n_parameters = sum(each.numel() for each in training.model.parameters())
    n_models = 2 * 4 * n_parameters + 8  # the average has counted how many models it is of
    assert announced == [n_models]
    for number in range(4):
        training.step(number)
    n_adam = 2 * 4 * n_parameters + 4 * len(training.optimizer.state)  # two averages, and the number of its steps
    assert announced[1:] == ([] if every == 1 else [n_models + n_adam])


def test_a_checkpoint_at_no_step_is_refused() -> None:
    with pytest.raises(ValueError, match="every is 0; it must be at least 1"):
        Training(every=0)


def test_a_rank_of_several_without_a_process_group_is_told_which_line_to_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert resuming.resume(torch.nn.Linear(1, 1)).step == 0, "one rank alone needs none"
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(RuntimeError) as refused:
        resuming.resume(torch.nn.Linear(1, 1))
    line = refused.traceback[0].lineno + 1
    assert str(refused.value) == (
        f"line {line} of {__file__} calls resume before init_process_group, in rank 1 of 4 (RANK and WORLD_SIZE); "
        "move that line below torch.distributed.init_process_group(...)"
    )


@pytest.mark.parametrize(
    ("launch", "host", "later_s", "is_refused"),
    [(0, None, 0, True), (0, "elsewhere", 9, True), (0, None, 9, False), (1, "elsewhere", 0, False)],
    ids=["lives", "on another host", "has ended, and its number is another's", "of another launch"],
)
def test_a_second_process_of_a_launch_is_refused_if_neither_has_a_process_group(
    launch: int, host: str | None, later_s: float, is_refused: bool
) -> None:
    other = psutil.Process(os.getppid())
    host = host or socket.gethostname()
    State.current()["torch/process"] = [launch, host, other.pid, other.create_time() + later_s]
    if is_refused:
        with pytest.raises(RuntimeError, match=rf"process {other.pid} on {host} has called resume, too, and neither"):
            Training()
        assert Training(name="another").run.step == 0
    else:
        Training()
        assert State.current()["torch/process"][2] == os.getpid()


def test_a_value_that_cannot_be_saved_is_named_by_its_place_in_the_state_dict() -> None:
    training = Training()
    training.optimizer.param_groups[0]["note"] = [1, object()]
    with pytest.raises(UnsupportedValueError, match=r"'optimizer\.param_groups\[0\]\.note\[1\]': object is not a "):
        training.step(0)

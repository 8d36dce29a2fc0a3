"""What ``laggard.torch.resume`` restores, and how far it goes in the data."""

from __future__ import annotations

import os
import random
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch", reason="needs the extra `torch`")

from laggard import Checkpointer, Job, State, Telemetry  # noqa: E402 - what follows needs PyTorch
from laggard.kvstore.control import NodeRecord  # noqa: E402
from laggard.torch import position, resuming, training_state  # noqa: E402
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


def shuffled(kind: str) -> Any:
    """Return a loader of ten numbers in batches of three, shuffled in one of the ways that there are."""
    data, generator = torch.arange(10), torch.Generator().manual_seed(3)
    sampler = torch.utils.data.RandomSampler(data, generator=generator)
    more: dict[str, dict[str, Any]] = {
        "global generator": {"shuffle": True, "batch_size": 3},
        "own generator": {"shuffle": True, "batch_size": 3, "generator": generator},
        "the sampler's generator": {"sampler": sampler, "batch_size": 3},
        "a batch sampler's generator": {"batch_sampler": torch.utils.data.BatchSampler(sampler, 3, drop_last=False)},
        "workers that live on": {"shuffle": True, "batch_size": 3, "num_workers": 1, "persistent_workers": True},
    }
    return torch.utils.data.DataLoader(data, **more[kind])


KINDS = ["global generator", "own generator", "the sampler's generator", "a batch sampler's generator"]


@pytest.mark.parametrize(
    ("kind", "n_read"), [*product(KINDS, [0, 2, 4, 5, 11]), ("workers that live on", 2), ("workers that live on", 6)]
)
def test_the_batches_go_on_within_a_shuffled_epoch(kind: str, n_read: int) -> None:
    def loader() -> Any:
        return shuffled(kind)

    torch.manual_seed(5)
    whole = position.Position()
    expected = [batch.tolist() for batch in islice(whole.batches(loader()), 13)]

    torch.manual_seed(5)
    before = position.Position()
    batches = before.batches(loader())
    for _ in range(n_read):
        next(batches)
    saved, states = before.state_dict(), training_state.random_states()

    torch.manual_seed(77)
    after = position.Position()
    after.load_state_dict(saved)
    training_state.restore_random_states(states)
    assert [batch.tolist() for batch in islice(after.batches(loader()), 13 - n_read)] == expected[n_read:]


def test_a_sampler_is_told_the_epoch() -> None:
    sampler = torch.utils.data.DistributedSampler(range(6), num_replicas=2, rank=0)
    where = position.Position()
    list(islice(where.batches(torch.utils.data.DataLoader(range(6), sampler=sampler)), 7))
    assert (sampler.epoch, where.epoch, where.batch) == (2, 2, 1)


def test_an_empty_loader_is_refused() -> None:
    with pytest.raises(ValueError, match="the loader has no batches"):
        next(position.Position().batches([]))


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


@pytest.mark.parametrize(("saved", "ranks"), [(1, 2), (2, 1), (2, 3), (4, 3), (3, 3)])
@pytest.mark.parametrize("n_read", [0, 3, 5])
def test_with_another_number_of_ranks_no_sample_of_the_epoch_is_left_out(saved: int, ranks: int, n_read: int) -> None:
    def loader(rank: int, ranks: int) -> Any:
        sampler = torch.utils.data.DistributedSampler(range(48), num_replicas=ranks, rank=rank, seed=3)
        return torch.utils.data.DataLoader(range(48), sampler=sampler, batch_size=2)

    def samples(where: Any, rank: int, ranks: int, count: int) -> list[int]:
        return [int(each) for batch in islice(where.batches(loader(rank, ranks)), count) for each in batch]

    def position_of_epoch_1(batch: int) -> Any:
        where = position.Position()
        where.epoch, where.batch = 1, batch
        return where

    before = [each for rank in range(saved) for each in samples(position_of_epoch_1(0), rank, saved, n_read)]
    after = []
    for rank in range(ranks):
        where = position_of_epoch_1(n_read).rescaled(saved, ranks)
        assert where.epoch == 1
        after += samples(where, rank, ranks, 48 // 2 // ranks - where.batch)

    assert set(before) | set(after) == set(range(48))
    assert len(before) + len(after) - 48 < 2 * ranks


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
    assert [(name, *tag) for name, _, *tag in added] == [
        ("step-time", "rank", "0"),
        ("loss", "rank", "0"),
        ("step-time", "rank", "0"),
    ]
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

"""Where a training goes on in its data: losses and batches of one that is killed are those of one that is not."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="needs the extra `torch`")

from laggard.torch import position, resuming, training_state  # noqa: E402 - what follows needs PyTorch
from tests.local import begin_local_launch  # noqa: E402

N_STEPS = 13
KILLED_AT = (3, 7, 12)  # steps


@pytest.fixture
def launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return what begins a launch of a program without laggard, whose State has a name."""
    for name in [name for name in os.environ if name.startswith("LAGGARD_")]:
        monkeypatch.delenv(name)
    runs = iter(range(100))

    def begin(state: str) -> None:
        run = next(runs)
        begin_local_launch(tmp_path / state, str(run), monkeypatch)
        torch.manual_seed(run)  # as if it began with other random numbers
        torch.rand(run)

    return begin


class Killed(Exception):  # noqa: N818 - no error of the program
    """Stands for SIGKILL."""


class Training:
    """A model whose loss depends on the batch and on random numbers, and what each of its steps saw."""

    def __init__(self, loader: Any, killed_at: int | None, seen: dict[int, Any], every: int) -> None:
        self.seen = seen
        self.killed_at = killed_at
        self.model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Dropout(), torch.nn.Linear(4, 1))
        for parameter in self.model.parameters():
            torch.nn.init.constant_(parameter, 0.5)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.5)
        self.run = resuming.resume(self.model, self.optimizer, every=every)
        self.batches = self.run.batches(loader)

    def step(self, number: int, batches: list[Any]) -> None:
        self.optimizer.zero_grad()
        for batch in batches:
            loss = self.model(batch.float().reshape(-1, 1) / 22).square().mean()
            loss.backward()
        if number == self.killed_at:
            raise Killed
        self.optimizer.step()
        self.seen[number] = ([batch.tolist() for batch in batches], loss.item())


def plain(training: Training) -> None:
    for number, batch in zip(range(training.run.step, N_STEPS), training.batches, strict=False):
        training.step(number, [batch])
        training.run.save(number)


def accumulating(training: Training) -> None:
    for number in range(training.run.step, N_STEPS):
        training.step(number, list(islice(training.batches, 3)))
        training.run.save(number)


def drawn_during_the_step(training: Training) -> None:
    """nanoGPT's way."""
    batch = next(training.batches)
    for number in range(training.run.step, N_STEPS):
        used: list[Any] = []
        for _ in range(2):
            used.append(batch)
            batch = next(training.batches)
        training.step(number, used)
        training.run.save(number)


def prefetched(training: Training) -> None:
    """One batch ahead, until there are no more."""
    numbered = zip(range(training.run.step, N_STEPS), training.batches, strict=False)
    ahead = next(numbered, None)
    while ahead is not None:
        (number, batch), ahead = ahead, next(numbered, None)
        training.step(number, [batch])
        training.run.save(number)


def double_buffered(training: Training) -> None:
    """As with pinned memory: one buffer is filled while the other one is read."""
    buffers = [torch.empty(4), torch.empty(4)]
    sizes = [0, 0]

    def fill(which: int) -> None:
        batch = next(training.batches)
        sizes[which] = len(batch)
        buffers[which][: len(batch)].copy_(batch)

    fill(training.run.step % 2)
    for number in range(training.run.step, N_STEPS):
        which = number % 2
        fill(1 - which)
        training.step(number, [buffers[which][: sizes[which]]])
        training.run.save(number, batches=1)


def prefetched_by_a_thread(training: Training) -> None:
    """By as many batches as the thread has time for."""
    ready: queue.Queue[Any] = queue.Queue(2)
    is_over = threading.Event()

    def draw() -> None:
        for batch in training.batches:
            while not is_over.is_set():
                try:
                    ready.put(batch, timeout=0.01)
                    break
                except queue.Full:
                    continue
            if is_over.is_set():
                return

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for number in range(training.run.step, N_STEPS):
            training.step(number, [ready.get(timeout=60)])
            training.run.save(number, batches=1)
    finally:
        is_over.set()
        thread.join()


class Data(torch.utils.data.Dataset):  # type: ignore[misc]  # PyTorch is not imported for mypy
    """Numbers, each with a random augmentation."""

    def __init__(self, *, augmented: bool = True) -> None:
        self._augmented = augmented

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(float(index)) + (torch.rand(()) if self._augmented else 0)


class Counting:
    """A loader that knows its own place, and changes the state that it has returned."""

    def __init__(self) -> None:
        self._state = {"at": 0, "recent": torch.zeros(2)}

    def state_dict(self) -> dict[str, Any]:
        return self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state = state

    def __iter__(self) -> Iterator[Any]:
        while self._state["at"] < 5:
            self._state["at"] += 1
            self._state["recent"][self._state["at"] % 2] = torch.rand(())
            yield torch.full((4,), self._state["at"]) + self._state["recent"].sum()
        self._state["at"] = 0


class Streamed(torch.utils.data.IterableDataset):  # type: ignore[misc]  # PyTorch is not imported for mypy
    """Numbers of a stream, dealt out to the workers of a loader."""

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        yield from map(float, range(worker.id, 23, worker.num_workers))


def loaders() -> dict[str, Callable[[], Any]]:
    """Return what makes each kind of loader."""
    data = torch.utils.data

    def stateful(*arguments: Any, **options: Any) -> Any:
        module = pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata")
        return module.StatefulDataLoader(*arguments, **options)

    return {
        "shuffled": lambda: data.DataLoader(Data(), shuffle=True, batch_size=4),
        "of a generator": lambda: data.DataLoader(
            Data(augmented=False), shuffle=True, batch_size=4, generator=torch.Generator().manual_seed(3)
        ),
        "with workers": lambda: data.DataLoader(Data(), shuffle=True, batch_size=4, num_workers=2),
        "of a stream": lambda: data.DataLoader(Streamed(), batch_size=4, num_workers=2),
        "with a state": Counting,
        "stateful": lambda: stateful(Data(), shuffle=True, batch_size=4),
        "stateful, with a sampler that is not": lambda: stateful(
            Data(), sampler=data.WeightedRandomSampler(torch.ones(22), 22), batch_size=4
        ),
        "stateful, with workers": lambda: stateful(Data(augmented=False), shuffle=True, batch_size=4, num_workers=2),
        "stateful, of a stream": lambda: stateful(Streamed(), batch_size=4, num_workers=2),
    }


LOOPS = [plain, accumulating, drawn_during_the_step, prefetched, double_buffered]
LOADERS = ["shuffled", "with a state", "stateful", "stateful, with a sampler that is not"]
WITH_WORKERS = ["with workers", "of a stream", "stateful, with workers", "stateful, of a stream"]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize(
    ("loop", "loader"),
    [
        *product(LOOPS, LOADERS),
        *product([drawn_during_the_step], WITH_WORKERS),
        (plain, "stateful, of a stream"),  # which is killed at the end of an epoch
        (prefetched_by_a_thread, "of a generator"),
    ],
)
def test_a_training_that_is_killed_three_times_sees_what_one_that_is_not_sees(
    loop: Callable[[Training], None], loader: str, launches: Callable[[str], None]
) -> None:
    def train(state: str, killed_at: int | None, seen: dict[int, Any]) -> None:
        launches(state)
        if not seen:
            torch.manual_seed(1)
        says_how_many = loop in (double_buffered, prefetched_by_a_thread)
        loop(Training(loaders()[loader](), killed_at, seen, every=1 if says_how_many else 2))

    undisturbed: dict[int, Any] = {}
    train("undisturbed", None, undisturbed)
    disturbed: dict[int, Any] = {}
    for killed_at in KILLED_AT:
        with pytest.raises(Killed):
            train("disturbed", killed_at, disturbed)
    train("disturbed", None, disturbed)
    assert disturbed == undisturbed
    assert len(undisturbed) == N_STEPS


def test_a_loop_that_draws_ahead_is_told_what_to_say_before_its_first_step_is_saved(
    launches: Callable[[str], None],
) -> None:
    launches("state")
    training = Training(range(5), None, {}, every=1)
    assert list(islice(training.batches, 2)) == [0, 1]
    with pytest.raises(ValueError, match=r"2 batches were drawn by the end of step 1, .* save\(step, batches=N\)"):
        training.run.save(0)


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
    for step, _ in zip(range(n_read), before.batches(loader()), strict=False):
        before.count(step + 1, None)
    saved, states = before.state_dict(), training_state.random_states()

    torch.manual_seed(77)
    after = position.Position()
    after.load_state_dict(saved, n_read)
    training_state.restore_random_states(states)
    assert [batch.tolist() for batch in islice(after.batches(loader()), 13 - n_read)] == expected[n_read:]


@pytest.mark.parametrize(
    ("kind", "n_read", "has_others"),
    [("workers that live on", 2, False), ("workers that live on", 6, True), ("own generator", 6, False)],
)
def test_workers_that_lived_on_are_others_after_a_relaunch(kind: str, n_read: int, has_others: bool) -> None:
    before = position.Position()
    for step, _ in zip(range(n_read), before.batches(shuffled(kind)), strict=False):
        before.count(step + 1, None)
    after = position.Position()
    after.load_state_dict(before.state_dict(), n_read)
    assert after.has_other_workers(shuffled(kind)) == has_others
    next(after.batches(shuffled(kind)))
    assert not after.has_other_workers(shuffled(kind)), "it is said once"


def test_a_data_set_is_told_the_epoch() -> None:
    class Numbers(torch.utils.data.IterableDataset):  # type: ignore[misc]  # mypy does not read PyTorch
        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[int]:
            return iter(range(10 * self.epoch, 10 * self.epoch + 2))

    batches = position.Position().batches(torch.utils.data.DataLoader(Numbers(), batch_size=None))
    assert list(islice(batches, 5)) == [0, 1, 10, 11, 20]


def test_a_sampler_is_told_the_epoch() -> None:
    sampler = torch.utils.data.DistributedSampler(range(6), num_replicas=2, rank=0)
    where = position.Position()
    list(islice(where.batches(torch.utils.data.DataLoader(range(6), sampler=sampler)), 7))
    where.count(7, None)
    assert (sampler.epoch, where.used.epoch, where.used.batch) == (2, 2, 1)


def test_an_empty_loader_is_refused() -> None:
    with pytest.raises(ValueError, match="the loader has no batches"):
        next(position.Position().batches([]))


def test_the_position_of_one_loader_at_a_time_is_kept() -> None:
    where = position.Position()
    first = where.batches(range(3))
    assert next(first) == 0
    assert next(where.batches(range(3))) == 1, "another call goes on"
    with pytest.raises(RuntimeError, match="read other data, such as that of a validation, from its loader itself"):
        next(first)


def test_a_thread_that_draws_as_many_as_it_has_time_for_is_refused_unless_the_program_says_how_many() -> None:
    where = position.Position()
    batches = where.batches(range(7))
    for step in (1, 2, 3):  # as if each step used two
        thread = threading.Thread(target=lambda: list(islice(batches, 2)))
        thread.start()
        thread.join()
        with pytest.raises(ValueError, match=rf"step {step} has used is not known: another thread draws them; pass"):
            where.count(step, None)
        where.count(step, 1)
    assert where.used.batch == 3


def test_a_loop_that_draws_everything_ahead_is_refused() -> None:
    where = position.Position()
    list(islice(where.batches(range(7)), position.MOST_AHEAD + 2))
    where.count(1, 2)
    list(islice(where.batches(range(7)), 2))
    with pytest.raises(ValueError, match=f"{position.MOST_AHEAD + 1} batches were drawn ahead of step 2; at most"):
        where.count(2, 1)


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
        place = {"epoch": 1, "batch": batch, "shuffled_by": None, "loader": None}
        where.load_state_dict({**place, "ahead": [], "pattern": None}, 0)
        return where

    before = [each for rank in range(saved) for each in samples(position_of_epoch_1(0), rank, saved, n_read)]
    after = []
    for rank in range(ranks):
        where = position_of_epoch_1(n_read).rescaled(saved, ranks)
        assert where.used.epoch == 1
        after += samples(where, rank, ranks, 48 // 2 // ranks - where.used.batch)

    assert set(before) | set(after) == set(range(48))
    assert len(before) + len(after) - 48 < 2 * ranks

"""Where a training is in its data: behind the batch that its last step has used, whatever was drawn ahead of it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import astuple, dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch.utils.data import IterableDataset, SequentialSampler

from laggard.torch.batch_count import BatchCount, Pattern
from laggard.torch.training_state import random_states, restore_random_states

# How far a loop may draw ahead; the random states of each of these batches are kept.
MOST_AHEAD = 256
_END = object()


@dataclass(frozen=True, slots=True)
class Place:
    """A place between two batches."""

    epoch: int = 0  # number of epochs that are over
    batch: int = 0  # number of batches of the epoch before it
    shuffled_by: dict[str, Any] | None = None  # random states with which the epoch began; None: it begins here
    loader: Any = None  # what the loader itself says of it, if it can


class Position:
    """Hands out the batches of a loader, epoch after epoch, and knows which of them were used."""

    def __init__(self, step: int = 0) -> None:
        self.used = Place()  # the place behind the last batch that a step has used
        self._count = BatchCount(step)
        self._newest = Place()  # the place behind the last batch that was drawn
        self._n_drawn = 0
        # For each batch behind `used`: the place behind it, and the random states with which it was drawn. Those of
        # another thread are not known, since they change while it draws.
        self._ahead: deque[tuple[Place, dict[str, Any] | None]] = deque()
        self._redrawn: deque[dict[str, Any]] = deque()  # such states of the launch before: its batches come again
        self._lock = threading.Lock()
        self._thread = threading.get_ident()
        self._drawing: int | None = None  # the thread that has drawn last
        self._has_begun = False
        self._iteration: object = None  # the one that draws

    @property
    def is_known(self) -> bool:
        """Whether its loop draws each batch in the step that uses it, or none at all."""
        with self._lock:
            pattern = self._count.pattern or self._count.earlier
            return self._n_drawn == 0 or (pattern is not None and pattern.ahead == 0)

    def state_dict(self, *, is_last: bool = False) -> dict[str, Any]:
        """Return the position as a value of State; ``is_last``: the epoch ends with the batch before it.

        Raises
        ------
        ValueError
            If it is not known.
        """
        count = self._count
        if count.undecided is not None:
            step, drawn = count.undecided
            raise ValueError(
                f"{drawn - count.used} batches were drawn by the end of step {step}, the first that is saved, and how "
                "many of them are drawn ahead is not known yet; pass save(step, batches=N), where N is how many "
                "batches the steps since the last save have used"
            )
        with self._lock:
            states = [states for _, states in self._ahead if states is not None]
        pattern = None if count.pattern is None else list(astuple(count.pattern))
        place = Place(self.used.epoch + 1) if is_last else self.used
        return {**{name: getattr(place, name) for name in Place.__slots__}, "ahead": states, "pattern": pattern}

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        """Take over the position at a step."""
        self.used = self._newest = Place(*(state[name] for name in Place.__slots__))
        self._redrawn.extend(state["ahead"])
        self._count = BatchCount(step, earlier=state["pattern"] and Pattern(*state["pattern"]))

    def rescaled(self, saved: int, ranks: int) -> Position:
        """Return the position for another number of ranks, which go on in the same epoch."""
        # Together the ranks have used `saved * batch` batches; it is rounded down, so that no batch of the epoch is
        # left out where a `DistributedSampler` deals them out. Any other sampler shuffles the epoch anew.
        moved = Position(self._count.step)
        moved.used = moved._newest = Place(self.used.epoch, self.used.batch * saved // ranks)
        return moved

    def has_other_workers(self, loader: object) -> bool:
        """Whether the workers of a loader have other random numbers than they had in this epoch before."""
        place = self.used
        if self._has_begun or place.shuffled_by is None or not getattr(loader, "num_workers", 0):
            return False
        return bool(place.shuffled_by["has_workers"]) or (place.loader is not None and _has_state(loader))

    def count(self, step: int, batches: int | None) -> None:
        """Note that a step has ended; ``batches``: how many were used since the last one, if the program says so."""
        with self._lock:
            if batches is None and self._drawing not in (None, threading.get_ident()):
                raise ValueError(
                    f"which batch step {step} has used is not known: another thread draws them; pass save(step, "
                    "batches=N), where N is how many batches the steps since the last save have used"
                )
            self._count = self._count.after(step, self._n_drawn, batches)
            if self._count.undecided is None:
                n_ahead = self._n_drawn - self._count.used
                if n_ahead > len(self._ahead):
                    raise ValueError(f"{n_ahead} batches were drawn ahead of step {step}; at most {MOST_AHEAD} may be")
                self._drop(len(self._ahead) - n_ahead)

    def count_ahead(self, step: int, ahead: int) -> None:
        """Note that a step has ended, and how many batches are drawn ahead of it."""
        self.count(step, self._n_drawn - self._count.used - ahead)

    def end_epoch(self) -> None:
        """Go to the beginning of the next epoch, whatever is left of this one, unless this is its beginning."""
        if self._newest.batch > 0:
            self.used = self._newest = Place(self._newest.epoch + 1)

    def rest_of_epoch(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of the current epoch, from the position on."""
        item, epoch = self._draw(loader, None, is_endless=False)
        while item is not _END:
            yield item
            item, epoch = self._draw(loader, epoch, is_endless=False)

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield batches without end, from the position on."""
        this = self._iteration = object()
        epoch: Iterator[Any] | None = None
        while True:
            if self._iteration is not this:
                raise RuntimeError(
                    "batches was called again meanwhile: the position of one loader is kept; read other data, such as "
                    "that of a validation, from its loader itself"
                )
            item, epoch = self._draw(loader, epoch, is_endless=True)
            yield item

    def _draw(
        self, loader: Iterable[Any], epoch: Iterator[Any] | None, *, is_endless: bool
    ) -> tuple[Any, Iterator[Any]]:
        """Return the next batch and its epoch; one that the launch before had drawn comes as it came there."""
        states = random_states() if threading.get_ident() == self._thread else None
        after = states if self._redrawn and states is not None else None
        if after is not None:
            restore_random_states(states := self._redrawn.popleft())
        epoch = self._begin_epoch(loader) if epoch is None else epoch
        while (item := next(epoch, _END)) is _END:
            if not is_endless:
                return _END, epoch
            if self._newest.batch == 0:
                raise ValueError("the loader has no batches")
            self._newest = Place(self._newest.epoch + 1)
            epoch = self._begin_epoch(loader)
        place = replace(self._newest, batch=self._newest.batch + 1, loader=_state_of(loader))
        with self._lock:
            self._newest = place
            self._ahead.append((place, states))
            self._n_drawn += 1
            self._drawing = threading.get_ident()
            self._drop(len(self._ahead) - MOST_AHEAD)
        if after is not None:
            restore_random_states(after)
        return item, epoch

    def _drop(self, n_batches: int) -> None:
        for _ in range(n_batches):
            self.used, _states = self._ahead.popleft()

    def _begin_epoch(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Return the rest of the current epoch; a loader that knows no state is read again up to there."""
        place = self._newest
        for name in ("sampler", "dataset"):
            if set_epoch := getattr(getattr(loader, name, None), "set_epoch", None):
                set_epoch(place.epoch)
        # Workers that live on are started in the first epoch, which takes a random number for them.
        is_first, self._has_begun = not self._has_begun, True
        keeps_workers = bool(getattr(loader, "persistent_workers", False))
        if place.shuffled_by is None:
            states = [generator.get_state() for generator in _generators(loader)]
            has_workers = keeps_workers and not is_first
            shuffled_by = {"torch": torch.get_rng_state(), "generators": states, "has_workers": has_workers}
            self._newest = replace(place, shuffled_by=shuffled_by)
            return _without(iter(loader), place.batch)
        before = random_states()
        if place.loader is not None and _has_state(loader):
            batches = _from_state(loader, place.loader)
        else:
            if place.shuffled_by["has_workers"] and keeps_workers and is_first:
                iter(loader)
            torch.set_rng_state(place.shuffled_by["torch"])
            for generator, state in zip(_generators(loader), place.shuffled_by["generators"], strict=False):
                generator.set_state(state)
            batches = _without(iter(loader), place.batch)
        restore_random_states(before)
        return batches


def _without(batches: Iterator[Any], n_batches: int) -> Iterator[Any]:
    """Return batches without the first ones."""
    for _ in islice(batches, n_batches):
        pass
    return batches


def _state_of(loader: object) -> Any:
    """Return what a loader says of its place, None if it says nothing that it would find again."""
    # A copy, since the batches that are drawn ahead may change it.
    return deepcopy(loader.state_dict()) if _has_state(loader) else None  # type: ignore[attr-defined]  # it has it


def _from_state(loader: Any, state: Any) -> Iterator[Any]:
    """Return the batches of a loader that come after a state of its own."""
    loader.load_state_dict(state)
    try:
        return iter(loader)
    except StopIteration:  # there are none: with workers, StatefulDataLoader says so here, and would say it again
        loader.next_iter_state = None
        return iter(())


def _has_state(loader: object) -> bool:
    """Return whether a loader and what shuffles it can go on from a state of theirs."""
    if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
        return False
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        return True
    # `StatefulDataLoader` would begin a sampler without a state anew, with other random numbers.
    return all(
        isinstance(each, SequentialSampler) or hasattr(each, "state_dict") or hasattr(each, "set_epoch")
        for each in _samplers(loader)
    )


def _samplers(loader: object) -> list[object]:
    batch_sampler = getattr(loader, "batch_sampler", None)
    found = (getattr(loader, "sampler", None), getattr(batch_sampler, "sampler", batch_sampler))
    return [each for each in found if each is not None]


def _generators(loader: object) -> list[torch.Generator]:
    """Return the generators that a loader and its samplers were given, each once."""
    found = [getattr(holder, "generator", None) for holder in (loader, *_samplers(loader))]
    return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())

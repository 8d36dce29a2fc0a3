"""Where a training is in its data: the epoch, the batch, and the order in which the epoch was shuffled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch

from laggard.torch.training_state import random_states, restore_random_states


class Position:
    """Hands out the batches of a loader, epoch after epoch, and goes on within an epoch."""

    def __init__(self) -> None:
        self.epoch = 0  # number of epochs that are over
        self.batch = 0  # number of batches of the current epoch that were handed out
        self._shuffled_by: dict[str, Any] | None = None
        self._has_begun = False

    def state_dict(self) -> dict[str, Any]:
        """Return the position as a value of State."""
        return {"epoch": self.epoch, "batch": self.batch, "shuffled_by": self._shuffled_by}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a position."""
        self.epoch, self.batch, self._shuffled_by = state["epoch"], state["batch"], state["shuffled_by"]

    def rescaled(self, saved: int, ranks: int) -> Position:
        """Return the position for another number of ranks, which go on in the same epoch."""
        # Together the ranks have handed out `saved * batch` batches; it is rounded down, so that no batch of the epoch
        # is left out where a `DistributedSampler` deals them out. Any other sampler shuffles the epoch anew.
        moved = Position()
        moved.epoch, moved.batch = self.epoch, self.batch * saved // ranks
        return moved

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield batches without end, from the position on."""
        while True:
            batches = self._begin_epoch(loader)
            for item in batches:
                self.batch += 1
                yield item
            if self.batch == 0:
                raise ValueError("the loader has no batches")
            self.epoch, self.batch, self._shuffled_by = self.epoch + 1, 0, None

    def _begin_epoch(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Return the rest of the current epoch; what was handed out of it before is read again, and dropped."""
        sampler = getattr(loader, "sampler", None)
        if sampler is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(self.epoch)
        # Workers that live on are started in the first epoch, which takes a random number for them.
        is_first, self._has_begun = not self._has_begun, True
        keeps_workers = bool(getattr(loader, "persistent_workers", False))
        if self._shuffled_by is None:
            states = [generator.get_state() for generator in _generators(loader)]
            has_workers = keeps_workers and not is_first
            self._shuffled_by = {"torch": torch.get_rng_state(), "generators": states, "has_workers": has_workers}
            return self._after_the_first(iter(loader))
        before = random_states()
        if self._shuffled_by["has_workers"] and keeps_workers and is_first:
            iter(loader)
        torch.set_rng_state(self._shuffled_by["torch"])
        for generator, state in zip(_generators(loader), self._shuffled_by["generators"], strict=False):
            generator.set_state(state)
        batches = self._after_the_first(iter(loader))
        restore_random_states(before)
        return batches

    def _after_the_first(self, batches: Iterator[Any]) -> Iterator[Any]:
        for _ in islice(batches, self.batch):
            pass
        return batches


def _generators(loader: object) -> list[torch.Generator]:
    """Return the generators that a loader and its samplers were given, each once."""
    samplers = [getattr(loader, "sampler", None), getattr(getattr(loader, "batch_sampler", None), "sampler", None)]
    found = [getattr(holder, "generator", None) for holder in (loader, *samplers)]
    return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())

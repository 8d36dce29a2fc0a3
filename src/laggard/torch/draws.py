"""Batches that come again when a step is run again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from laggard.torch.training_state import random_states, restore_random_states


class Draws:
    """The batches of the last two steps, with the random states after each."""

    def __init__(self) -> None:
        self.step: int | None = None  # the step that runs; None: no step is ever run again
        self._newest = -1  # the newest that has begun
        self._kept: list[tuple[int, Any, dict[str, Any]]] = []
        self._again: deque[tuple[int, Any, dict[str, Any]]] = deque()

    def through(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield batches, some of them again."""
        while True:
            if self._again:
                _, item, after = self._again.popleft()
                restore_random_states(after)
            else:
                item = next(batches)
                after = random_states() if self.step is not None else {}
            if self.step is not None:
                self._kept.append((self.step, item, after))
            yield item

    def begin(self, step: int) -> None:
        """Take note that a step begins."""
        self.step, self._newest = step, max(step, self._newest)
        self._kept = [each for each in self._kept if each[0] >= step - 1]

    def has_ended(self, step: int) -> bool:
        """Return whether a step has ended before: what it has drawn was counted."""
        return self.step is not None and step < self._newest

    def go_back(self, step: int) -> None:
        """Have what was drawn in a step, and since, come again."""
        self._again.extendleft(reversed([each for each in self._kept if each[0] >= step]))
        self._kept = [each for each in self._kept if each[0] < step]
        self.step = step

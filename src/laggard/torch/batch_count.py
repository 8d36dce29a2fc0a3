"""How many of the batches that a loop has drawn its steps have used. Pure.

Each step uses the same number of batches: one, or as many as are drawn between two saves. What was drawn beyond that
before the first save is drawn ahead, and stays so. Whoever does otherwise says at each save how many were used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NoReturn


@dataclass(frozen=True, slots=True)
class Pattern:
    """How a loop draws its batches."""

    per_step: int  # how many batches each step uses
    ahead: int  # how many are drawn by the end of a step and not used yet


@dataclass(frozen=True, slots=True)
class BatchCount:
    """What is known of a loop's batches at its last `save`."""

    step: int  # number of steps by then, over all launches
    drawn: int = 0  # number of batches that the loop had drawn by then, in this launch
    used: int = 0  # how many of these its steps have used
    pattern: Pattern | None = None  # None: it has saved once at most
    earlier: Pattern | None = None  # of the launch whose checkpoint this one goes on from
    # Steps and drawn batches at the first save, if it is not known yet how many of them were used
    undecided: tuple[int, int] | None = None

    def after(self, step: int, drawn: int, told: int | None = None) -> BatchCount:
        """Return the count after a save; ``told`` is what the program says that its steps since the last one used.

        Raises
        ------
        ValueError
            If the program does not draw as many batches at each step.
        """
        if told is not None:
            used = self.used + told
            if self.undecided is not None:
                _refuse(step, f"{told} are used, but how many until step {self.undecided[0]} was not said")
            if not self.used <= used <= drawn:
                _refuse(step, f"{told} cannot have been used, for {drawn - self.used} are drawn and not used yet")
            return replace(self, step=step, drawn=drawn, used=used, pattern=None, earlier=None)
        if (step, drawn) in (self.undecided, (self.step, self.drawn)):
            return self  # the same step is saved again
        if self.undecided is not None:
            return self._second(step, drawn)
        return self._first(step, drawn) if self.pattern is None else self._later(self.pattern, step, drawn)

    def _first(self, step: int, drawn: int) -> BatchCount:
        n_steps, n_drawn = step - self.step, drawn - self.used
        if n_drawn in (0, n_steps):
            return self._with(Pattern(min(n_drawn, 1), 0), step, drawn)
        if self.earlier is not None and 0 <= n_drawn - self.earlier.per_step * n_steps <= self.earlier.ahead:
            return self._with(self.earlier, step, drawn)
        if n_drawn < n_steps or n_steps < 1:
            _refuse(step, f"{n_drawn} batches were drawn for {n_steps} steps")
        return replace(self, undecided=(step, drawn))

    def _second(self, step: int, drawn: int) -> BatchCount:
        step_1, drawn_1 = self.undecided or (0, 0)
        per_step, rest = divmod(drawn - drawn_1, step - step_1) if step > step_1 else (0, 1)
        ahead = drawn_1 - self.used - per_step * (step_1 - self.step)
        if rest or per_step < 1 or ahead < 0:
            drawn_by = f"{drawn_1 - self.used} batches were drawn by step {step_1}"
            _refuse(step, f"{drawn_by}, and {drawn - drawn_1} more by step {step}")
        return self._with(Pattern(per_step, ahead), step, drawn)

    def _later(self, pattern: Pattern, step: int, drawn: int) -> BatchCount:
        after = self._with(pattern, step, drawn)
        ahead, n_drawn = drawn - after.used, drawn - self.drawn
        # At the end of its data a loop uses what it has drawn ahead, and draws no more.
        has_ended = 0 <= ahead < pattern.ahead and (n_drawn == 0 or self.drawn - self.used == pattern.ahead)
        if ahead != pattern.ahead and not has_ended:
            each = f"where each step before used {pattern.per_step} and left {pattern.ahead} drawn ahead"
            _refuse(step, f"{n_drawn} batches were drawn for {step - self.step} steps, {each}")
        return after

    def _with(self, pattern: Pattern, step: int, drawn: int) -> BatchCount:
        used = self.used + pattern.per_step * (step - self.step)
        return BatchCount(step, drawn, used, pattern)


def _refuse(step: int, why: str) -> NoReturn:
    raise ValueError(
        f"which batch step {step} has used is not known: {why}; pass save(step, batches=N), where N is how many "
        "batches the steps since the last save have used"
    )

"""How long a job has that is told to stop. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TimeToSave"]


@dataclass(frozen=True, slots=True)
class TimeToSave:
    """How long a job that is told to stop has to save its work.

    Attributes
    ----------
    seconds
        Until the resource manager ends it; 0: it is ending it already; ``None``: not known.
    why
        Why it is told to stop, as far as that is known; may be empty.
    """

    seconds: float | None = None
    why: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the resource manager is ending the job already."""
        return self.seconds == 0

    def grace_s(self, wished_s: float, least_s: float, reserved_s: float) -> float:
        """Return how long the program may take to save, in seconds.

        Parameters
        ----------
        wished_s
            What the user allows it.
        least_s
            What it gets in any case, unless the user allows less.
        reserved_s
            What is needed afterwards to end everything else.
        """
        if self.seconds is None:
            return wished_s
        return min(wished_s, max(least_s, self.seconds - reserved_s))

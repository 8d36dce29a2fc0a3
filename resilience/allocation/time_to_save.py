"""How long a job has that is told to stop. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TimeToSave:
    """How long a job that is told to stop has to save its work."""

    seconds: float | None = None  # until the resource manager ends it; 0: it is ending it already; `None`: not known
    why: str = ""  # why it is told to stop, as far as that is known; may be empty

    @property
    def is_over(self) -> bool:
        """Whether the resource manager is ending the job already."""
        return self.seconds == 0

    def grace_s(self, wished_s: float, least_s: float, reserved_s: float) -> float:
        """Return how long the program may take to save, in seconds."""
        if self.seconds is None:
            return wished_s
        return min(wished_s, max(least_s, self.seconds - reserved_s))

"""What a restart costs, and whether it can pay."""

from __future__ import annotations

from dataclasses import dataclass

from laggard.settings import number

UNKNOWN_START_S = 60.0  # how long a program is taken to need to its first progress as long as that was not seen
UNKNOWN_WORK_S = 600.0  # how much work it is taken to lose at most if it shows no sign of checkpoints
# What it is taken to cost at least: a relaunch within seconds would be paid for every phase of the program.
LEAST_COST_S = 30.0
_MOST = 1e6  # slowdowns: a reading may be any, and the whole is lost to none


def share_lost(slowdown: float) -> float:
    """Return the share of its wall time that a job loses if it waits for a device that is this much slower."""
    return 1 - 1 / min(slowdown, _MOST)


@dataclass(frozen=True, slots=True)
class RestartCost:
    """What a restart costs, and how long the job still has to run.

    Attributes
    ----------
    cost_s
        Time from the decision to the first new useful step, lost work included. 0: restart at once.
    remaining_s
        Wall time that the job still needs at its present pace; ``None`` if unknown.
    """

    cost_s: float
    remaining_s: float | None = None

    def __post_init__(self) -> None:
        if not number(self.cost_s) >= 0:
            raise ValueError(f"restart cost must be zero or more seconds, got {self.cost_s!r}")
        if self.remaining_s is not None and not number(self.remaining_s) >= 0:
            raise ValueError(f"remaining time must be zero or more seconds (or None), got {self.remaining_s!r}")

    @classmethod
    def of(cls, given: RestartCost | float | None) -> RestartCost | None:
        """Return a cost that may have been given as a number of seconds."""
        return given if given is None or isinstance(given, RestartCost) else cls(given)

    def can_pay(self, slowdown: float) -> bool:
        """Return whether a restart could still earn its cost in the remaining time."""
        return not self.cost_s or self.remaining_s is None or share_lost(slowdown) * self.remaining_s >= self.cost_s

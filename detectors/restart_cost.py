"""Is a restart worth its cost?  Expected loss if the remaining time is known, ski rental if it is not."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RestartCost"]


@dataclass(frozen=True, slots=True)
class RestartCost:
    """What a restart costs, and how long the job still has to run.

    Attributes
    ----------
    cost_s
        Measured time from the decision to the first new useful step, lost work included.
    remaining_s
        Wall time that the job still needs at its present pace; ``None`` if unknown.
    """

    cost_s: float
    remaining_s: float | None = None

    def __post_init__(self) -> None:
        if not self.cost_s >= 0:
            raise ValueError(f"restart cost must be zero or more seconds, got {self.cost_s}")
        if self.remaining_s is not None and not self.remaining_s >= 0:
            raise ValueError(f"remaining time must be zero or more seconds (or None), got {self.remaining_s}")

    def worthwhile(self, slowdown: float, slow_for_s: float) -> bool:
        """Tell whether a restart saves more than it costs.

        A job that waits for its slowest device loses ``(slowdown - 1) / slowdown`` of its wall time.
        If the remaining time is known, restart when that share of it is more than the cost. If it is unknown, restart
        once as much has been lost as a restart costs: the total loss is then at most twice that of an oracle that knows
        when the job ends (ski rental, Karlin et al. 1988).

        Parameters
        ----------
        slowdown
            Reading over reference.
        slow_for_s
            Time since the slowdown began; ``NaN``, an unknown time, counts as long enough.
        """
        horizon_s = slow_for_s if self.remaining_s is None else self.remaining_s
        return not (slowdown - 1) / slowdown * horizon_s <= self.cost_s

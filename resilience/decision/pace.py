"""How often the agents of a job send a heartbeat, and how long one may be silent. Pure.

The controller spends about a tenth of a millisecond on every heartbeat. So in a large job they are rarer, and silence
is judged later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["FIRST_HEARTBEAT_TIMEOUT_S", "Pace"]

# Of an agent that has not sent anything yet: it is still starting.
FIRST_HEARTBEAT_TIMEOUT_S = 60.0
SHORTEST_S, LONGEST_S = 0.5, 2.0
# Up to so many nodes the interval is the shortest; with four times as many it is twice as long.
N_NODES = 250


@dataclass(frozen=True, slots=True)
class Pace:
    """The intervals of one job.

    Attributes
    ----------
    interval_s
        From one heartbeat of an agent to the next.
    """

    interval_s: float = SHORTEST_S

    @classmethod
    def of_job(cls, n_nodes: int) -> Pace:
        """Return the pace for a number of nodes."""
        return cls(min(max(SHORTEST_S, SHORTEST_S * math.sqrt(n_nodes / N_NODES)), LONGEST_S))

    @property
    def unheard_s(self) -> float:
        """How long an agent gets no reply, in seconds, before it raises its count in the state server."""
        return 2 * self.interval_s + 0.2

    @property
    def look_after_s(self) -> float:
        """How long an agent is silent before the controller looks at its count: a late heartbeat is nothing."""
        return 2 * self.interval_s + 0.5

    @property
    def timeout_s(self) -> float:
        """How long an agent may be silent: at the shortest interval seven heartbeats, at the longest four."""
        return 3 * self.interval_s + 2.0

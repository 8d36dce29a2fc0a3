"""How often the agents of a job send a heartbeat, and how long one may be silent. Pure.

The controller spends time on every heartbeat, and more on every agent that dials. So in a large job heartbeats are
rarer, silence is judged later, and everybody is more patient: all agents may dial at one moment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SHORTEST_INTERVAL_S, LONGEST_INTERVAL_S = 0.5, 2.0
# Up to so many nodes the interval is the shortest; with four times as many it is twice as long.
N_NODES = 250
# For each node above these it may take so much longer until all agents have dialled: three times as long as it takes
# on a controller that has a core for itself.
_PER_NODE_S = 0.005
# A node that cannot be told what to do is of no use for longer, and its agent gives us up soon after.
LONGEST_S, LEASE_S = 25.0, 30.0
# An agent waits so long for its turn when it dials.
ANSWER_S = 30.0
# Of an agent that has not sent anything yet: it is still starting.
FIRST_HEARTBEAT_S = 60.0


@dataclass(frozen=True, slots=True)
class HeartbeatTiming:
    """The intervals and limits of one job."""

    n_nodes: int = 1  # how many nodes it has

    @property
    def interval_s(self) -> float:
        """From one heartbeat of an agent to the next, in seconds."""
        longer_s = SHORTEST_INTERVAL_S * math.sqrt(self.n_nodes / N_NODES)
        return min(max(SHORTEST_INTERVAL_S, longer_s), LONGEST_INTERVAL_S)

    @property
    def timeout_s(self) -> float:
        """How long an agent may be silent: at the shortest interval seven heartbeats, at the longest four."""
        return 3 * self.interval_s + 2.0

    @property
    def replace_s(self) -> float:
        """How long nothing comes through a connection before the agent dials again, so that its node is not lost."""
        return 3 * self.interval_s + 0.5

    @property
    def answer_s(self) -> float:
        """How long an agent that dials waits for the controller's answer: the last of all has to wait for its turn."""
        return ANSWER_S + self._dialling_s

    @property
    def first_heartbeat_s(self) -> float:
        """How long an agent may take until its first heartbeat."""
        return FIRST_HEARTBEAT_S + self._dialling_s

    @property
    def longest_s(self) -> float:
        """How long an agent may be silent while very many are: all of them dial again, and it waits for its turn."""
        return LONGEST_S + self._dialling_s

    @property
    def lease_s(self) -> float:
        """How long the controller may be silent before an agent that dials takes it for gone."""
        return LEASE_S + self._dialling_s

    @property
    def _dialling_s(self) -> float:
        return _PER_NODE_S * max(0, self.n_nodes - N_NODES)

"""How long an agent may be silent.

Each agent sends a heartbeat twice a second. The controller takes a node for lost when its agent has been silent for
`HEARTBEAT_TIMEOUT_S`, or for `FIRST_HEARTBEAT_TIMEOUT_S` if it has not sent anything yet, because it is still starting.
Only time in which the controller was awake counts (:mod:`laggard.resilience.agent.awake`).
"""

from __future__ import annotations

__all__ = ["FIRST_HEARTBEAT_TIMEOUT_S", "HEARTBEAT_TIMEOUT_S"]

# Seven heartbeats. The controller looks every half second, so a frozen or cut off node is noticed within five seconds.
HEARTBEAT_TIMEOUT_S = 3.5
FIRST_HEARTBEAT_TIMEOUT_S = 60.0

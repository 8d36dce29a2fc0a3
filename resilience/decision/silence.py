"""Whether a node whose agent is silent is lost. Pure.

What carries the heartbeats may be at fault rather than the node: ``srun``, ``ssh``, or a connection that somebody
disturbs. So an agent whose heartbeats get no reply raises a count in the state server, and a node is lost only when
that count stands still, too.
"""

from __future__ import annotations

from dataclasses import dataclass

# An agent whose heartbeats get no reply raises its count twice a second.
CONFIRMED_S = 1.2


@dataclass(frozen=True, slots=True)
class Silence:
    """How long nothing has come from an agent."""

    silent_s: float  # seconds without a heartbeat, counted only while we were awake
    # For how many of them its count has stood still, as far as that was seen; None: the state server has not answered
    # since
    unchanged_s: float | None


def is_lost(silence: Silence, timeout_s: float, longest_s: float, confirmed_s: float = CONFIRMED_S) -> bool:
    """Return whether a node is lost."""
    if silence.silent_s <= timeout_s:
        return False
    if silence.silent_s > max(timeout_s, longest_s):
        return True
    return silence.unchanged_s is not None and silence.unchanged_s >= confirmed_s

"""Strikes: failures that point at a node without proof. Pure.

A strike counts for a day, whatever job it comes from. Strikes on more than a quarter of the nodes within ten minutes
have a cause that the nodes share, so none of them counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# A node is excluded at its second strike.
MAX_STRIKES = 2
STRIKE_WINDOW_S = 86400.0
SHARED_WINDOW_S = 600.0
SHARED_PART = 0.25


@dataclass(frozen=True, slots=True)
class Strike:
    """A failure that began on a node, or the loss of a node, without evidence that the node is to blame."""

    host: str
    time_s: float


def recent_strikes(strikes: Sequence[Strike], now_s: float, window_s: float = STRIKE_WINDOW_S) -> tuple[Strike, ...]:
    """Return the strikes that are not older than a number of seconds."""
    return tuple(strike for strike in strikes if strike.time_s > now_s - window_s)


def strikes_of(host: str, strikes: Sequence[Strike], now_s: float) -> int:
    """Return how many strikes of a node count."""
    return sum(strike.host == host for strike in recent_strikes(strikes, now_s))


def is_shared(host: str, strikes: Sequence[Strike], now_s: float, n_nodes: int) -> bool:
    """Return whether a strike against a node now would have a cause that it shares with other nodes."""
    recent = {strike.host for strike in recent_strikes(strikes, now_s, SHARED_WINDOW_S)} | {host}
    return len(recent) > 1 and len(recent) > SHARED_PART * n_nodes


def with_strike(host: str, strikes: Sequence[Strike], now_s: float, n_nodes: int) -> tuple[Strike, ...]:
    """Return the strikes that count after another one; a cause that several nodes share takes its strikes back."""
    counting = recent_strikes(strikes, now_s)
    if is_shared(host, strikes, now_s, n_nodes):
        return tuple(strike for strike in counting if strike.time_s <= now_s - SHARED_WINDOW_S)
    return (*counting, Strike(host, now_s))

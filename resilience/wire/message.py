"""The two kinds of messages, by their direction, and the two heartbeats."""

from __future__ import annotations

from dataclasses import dataclass

ALIVE = b'{"event": "alive"}\n'
"""The agent's heartbeat."""

KEEP_ALIVE = b'{"do": "keep-alive"}\n'
"""The controller's reply to it."""


@dataclass(frozen=True, slots=True)
class Command:
    """What the controller sends to an agent."""


@dataclass(frozen=True, slots=True)
class Report:
    """What an agent sends to the controller."""

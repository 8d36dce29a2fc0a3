"""About the Ray processes of a node."""

from __future__ import annotations

from dataclasses import dataclass

from laggard.resilience.wire.message import Command, Report


@dataclass(frozen=True, slots=True)
class WarmUpRay(Command):
    """Start a command that loads Ray and waits for its arguments."""

    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StartRay(Command):
    """Start it, unless it is warm, and pass it its arguments."""

    command: tuple[str, ...]
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StopRay(Command):
    """End it: the raylet gracefully, the rest by force."""


@dataclass(frozen=True, slots=True)
class RayEnded(Report):
    """It has ended, and all that it had started."""

    last_words: str = ""  # why, by its logs
    exit_code: int | None = None  # of `ray start`; None: one of its parts has ended before it

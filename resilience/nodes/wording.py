"""What a user is told of a node, from what its agent has reported. Nothing reads these sentences back."""

from __future__ import annotations

from laggard.resilience.text import duration
from laggard.resilience.wire.node import Crashed
from laggard.resilience.wire.tasks import TaskEnded, WillRestart
from laggard.system.clock_offset import ClockOffset


def ended(end: TaskEnded | WillRestart) -> str:
    """Say how a process has ended, and what becomes of it."""
    # The last line of a process that was killed is about something else.
    why = f": {end.why}" if end.why and end.exit_code > 0 else ""
    then = f"it will be restarted in {duration(end.again_s)}" if isinstance(end, WillRestart) else "it stays down"
    return f"{end.name} ended with exit code {end.exit_code}; {then}{why}"


def wrong_clock(measured: ClockOffset) -> str:
    """Say how far a node's clock is from the primary's."""
    where = "ahead of" if measured.offset_s > 0 else "behind"
    return f"its clock is {duration(abs(measured.offset_s))} {where} the primary's"


def crashed(crash: Crashed) -> str:
    """Say why an agent has ended."""
    return f"its agent crashed: {crash.why}"


def unreadable(error: Exception) -> str:
    """Say that an agent's messages mean nothing to us."""
    return f"its agent's messages cannot be read ({type(error).__name__}: {error})"

"""What a user is told of the nodes. Nothing reads these sentences back."""

from __future__ import annotations

from signal import Signals

from laggard.resilience.decision import wording
from laggard.resilience.decision.reasons import StuckProcesses
from laggard.resilience.nodes.notices import About, NotHeld, Notice, Unreadable
from laggard.resilience.text import duration
from laggard.resilience.wire.node import Crashed
from laggard.resilience.wire.ray import RayEnded
from laggard.resilience.wire.tasks import TaskEnded, WillRestart
from laggard.system.clock_offset import ClockOffset


def notice(of: Notice) -> str:
    """Return what there is to say about a node."""
    return f"{of.host}{'' if isinstance(of.about, NotHeld) else ':'} {_about(of.about)}"


def _about(of: About) -> str:
    match of:
        case TaskEnded(why=why, exit_code=code):
            return f"{of.name} ended with exit code {code}; it stays down{_last_line(code, why)}"
        case WillRestart(why=why, exit_code=code):
            then = f"it will be restarted in {duration(of.again_s)}"
            return f"{of.name} ended with exit code {code}; {then}{_last_line(code, why)}"
        case ClockOffset(offset_s):
            return f"its clock is {duration(abs(offset_s))} {'ahead of' if offset_s > 0 else 'behind'} the primary's"
        case Crashed(why):
            return f"its agent crashed: {why}"
        case StuckProcesses():
            return held(wording.stuck(of))
        case Unreadable(kind, problem):
            return f"its agent's messages cannot be read ({kind}: {problem})"
        case NotHeld():
            return "could not be held: others use it, and Ray may place the program on the rest of it"


def held(sentence: str) -> str:
    """Return why processes that cannot be ended do no harm: one that was killed never leaves the kernel again."""
    return f"{sentence}; they were killed and run nothing more, but the kernel still holds them; the job goes on"


def ray_ended(end: RayEnded) -> str:
    """Return why Ray is not up on a node."""
    if end.last_words or end.exit_code is None:
        return end.last_words or "Ray's processes say nothing"
    how = f"ended with exit code {end.exit_code}" if end.exit_code >= 0 else f"died of {Signals(-end.exit_code).name}"
    return f"'ray start' {how} and says nothing"


def _last_line(exit_code: int, why: str) -> str:
    """Return the last line of a process's log; that of one that was killed is about something else."""
    return f": {why}" if why and exit_code > 0 else ""

"""What the record of a job says to people. Nothing reads these texts back."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from laggard.collectors.causes import Cause
from laggard.detectors.verdict import Verdict
from laggard.resilience.decision import wording
from laggard.resilience.decision.failure import Failure
from laggard.resilience.decision.site import Standing
from laggard.resilience.record.effective_time import SHOWN_FROM_S, Basis, EffectiveTime
from laggard.resilience.record.timeline import RecordedFailure
from laggard.resilience.text import abbreviated, counted, duration
from laggard.telemetry.course import Gap, LaunchBegan

PART_NAMES: Mapping[str, str] = {
    "effective_s": "effective",
    "slow_s": "waiting for a slow device",
    "start_s": "starting",
    "repeated_s": "repeated work",
    "lost_s": "lost work",
    "relaunch_s": "relaunching",
    "waiting_s": "back-off",
    "unsaved_s": "not kept yet",
    "ending_s": "ending",
    "unknown_s": "running, progress unknown",
}
"""What people call the parts of :class:`laggard.resilience.record.effective_time.TimeParts`."""
_MEASURED_BY: Mapping[Basis | None, str] = {"steps": "steps that it reported", "commits": "commits to State", None: ""}


def verdict(of: Verdict) -> str:
    """Return a verdict as the user reads it while the job runs."""
    return f"{of.evidence} ({of.severity}){likely_cause(of.cause)}"


def likely_cause(cause: Cause) -> str:
    """Return the cause of a verdict, after it; empty if it is unknown."""
    return f"; likely cause: {cause}" if cause.is_known else ""


def failure(of: RecordedFailure) -> str:
    """Return a failure or a hang in one sentence."""
    return wording.failure(of.of) if isinstance(of.of, Failure) else wording.hang(of.of)


def gap(of: Gap) -> str:
    """Return how long a relaunch took."""
    return (
        f"the gap was {of.total_s:.1f} s: {of.stop_s:.2f} s to end the program, "
        f"{of.fence_s:.2f} s to fence it, {of.nodes_s:.2f} s to change the nodes"
    )


def launch(of: LaunchBegan) -> str:
    """Return which launch has begun on which nodes."""
    waiting = f"; reserve: {abbreviated(of.reserve)}" if of.reserve else ""
    only = "" if of.primary in of.nodes else ", without its devices"
    return f"{of.launch} on {abbreviated(of.nodes)} (primary: {of.primary}{only}){waiting}"


def summary(n_launches: int, excluded: Sequence[str], set_aside: str, took_s: float, exit_code: int) -> str:
    """Return what became of a job, in one sentence."""
    names = f" ({abbreviated(excluded)})" if excluded else ""
    names += f", the primary ({set_aside}) without its devices" if set_aside else ""
    return (
        f"{counted(n_launches, 'launch', 'launches')}, {counted(len(excluded), 'node', 'nodes')} excluded{names}, "
        f"{took_s:.1f} s in all, exit code {exit_code}"
    )


def ending(exit_code: int | None, times: EffectiveTime) -> str:
    """Return how a job ended and after how long, in a few words."""
    return f"{'no end recorded' if exit_code is None else f'exit code {exit_code}'} after {duration(times.total_s)}"


def lost(times: EffectiveTime) -> str:
    """Return how much work a job lost or did again; empty if none."""
    lost_s = times.parts.lost_s + times.parts.repeated_s
    return f"{duration(lost_s)} of work lost" if lost_s >= SHOWN_FROM_S else ""


def effective_time(of: EffectiveTime) -> str:
    """Return how much of a job's time became progress."""
    if of.ratio is None:
        why = "the program reports no steps and does not commit to State" if of.launches else "no launch began"
        return f"effective training time: not known, since {why}"
    return (
        f"effective training time: {duration(of.parts.effective_s)} of {duration(of.total_s)} "
        f"({100 * of.ratio:.0f} %), by the {_MEASURED_BY[of.basis]}"
    )


def standing(of: Standing, node: str) -> str:
    """Return why a node is used last, as the user reads it when the job begins; ``of`` is its machine."""
    failed = counted(len(of.failures), "job", "jobs")
    name = node if node == of.host else f"{node}, which is on {of.host},"
    return f"{name} is used last ({chance_of(of)} likely to be bad): {failed} had to leave it; {newest_failure(of)}"


def chance_of(of: Standing) -> str:
    """Return the chance that a node is bad."""
    return "pinned" if math.isinf(of.odds) else f"{100 * of.chance:.0f} %"


def newest_failure(of: Standing) -> str:
    """Return what speaks against a node most recently; empty if nothing does."""
    if not of.failures:
        return ""
    last = of.failures[-1]
    day = time.strftime("%Y-%m-%d", time.gmtime(last.time_s))
    return f"{day}, {last.job}" + (f": {last.why}" if last.why else "")

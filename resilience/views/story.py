"""A job's story in at most twenty lines: what it was worth, and each loss with its cause and what to do. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from laggard.resilience.decision import wording as decision_wording
from laggard.resilience.record import wording
from laggard.resilience.record.effective_time import SHOWN_FROM_S, EffectiveTime, TimeParts
from laggard.resilience.record.timeline import Launch, RecordedFailure, RecordedVerdict, Timeline
from laggard.resilience.text import abbreviated, clock, counted, duration

MAX_LINES = 20
_INDENT = " " * 9
# From here on it is worth saying that work is lost for want of a checkpoint.
_LONG_LOSS_S = 60.0


@dataclass(frozen=True, slots=True)
class _Loss:
    """A loss: when it happened (Unix time), for how many seconds (NaN if unknown), what it was, and what to do."""

    time_s: float
    length_s: float
    what: str
    to_do: str

    def lines(self, began_s: float) -> list[str]:
        return [f"{clock(self.time_s - began_s):>7}  {self.what}", f"{_INDENT}to do: {self.to_do}"]


def story(timeline: Timeline, times: EffectiveTime, *, running: bool) -> list[str]:
    """Return the story of a job."""
    lines = [f"{timeline.name}: {_outcome(timeline, times, running=running)}", wording.effective_time(times)]
    if times.basis is None and times.launches:
        lines.append(f"{_INDENT}to do: report steps with Job.current().progress(step), or commit to State")
    if times.rest:
        lines.append(
            f"the rest: {', '.join(f'{wording.PART_NAMES[part]} {duration(seconds)}' for part, seconds in times.rest)}"
        )
    if timeline.error or (not timeline.launches and not running):
        lines.append(f"it ended {_before_what(timeline)}: {_last_words(timeline)}")
        lines.append(f"{_INDENT}to do: the log has more: 'laggard report {timeline.name}', and --verbose next time")
    losses = list(_losses(timeline, times))
    room = (MAX_LINES - len(lines) - 1) // 2
    most = sorted(losses, key=lambda loss: -math.inf if math.isnan(loss.length_s) else -loss.length_s)[:room]
    for loss in sorted(most, key=lambda loss: loss.time_s):
        lines += loss.lines(timeline.began_s)
    if rest := [loss for loss in losses if loss not in most]:
        in_all_s = sum(loss.length_s for loss in rest if not math.isnan(loss.length_s))
        smaller = counted(len(rest), "smaller loss", "smaller losses")
        lines.append(f"{_INDENT}{smaller}, {duration(in_all_s)} in all: 'laggard report {timeline.name}'")
    return lines


def _outcome(timeline: Timeline, times: EffectiveTime, *, running: bool) -> str:
    launches = counted(len(timeline.launches), "launch", "launches")
    nodes = f" on {abbreviated(timeline.hosts)}" if timeline.launches else ""
    if running:
        return f"running for {duration(times.total_s)}, {launches} so far{nodes}"
    return f"{wording.ending(timeline.exit_code, times)}, {launches}{nodes}"


def _before_what(timeline: Timeline) -> str:
    return "because of an error in laggard" if timeline.launches else "before its first launch"


def _last_words(timeline: Timeline) -> str:
    if timeline.error:
        return timeline.error
    told = [line.text for line in timeline.log if line.what in {"end", "stop", "lost"}]
    return told[-1] if told else "it was killed before it could say why"


def _losses(timeline: Timeline, times: EffectiveTime) -> Iterator[_Loss]:
    if not timeline.launches:
        return
    yield from _in_all(timeline, times)
    for launch, parts in zip(timeline.launches, times.launches, strict=True):
        if parts.repeated_s >= SHOWN_FROM_S:
            yield _Loss(
                launch.began_s,
                parts.repeated_s,
                f"launch {launch.number} repeated {duration(parts.repeated_s)} of work that was kept before",
                "check that its newest checkpoint was there and could be read",
            )
        yield from _slow(timeline, launch, parts)
        if launch.cause not in {"", "end"} or (launch.why and parts.lost_s >= SHOWN_FROM_S):
            yield _end(timeline, launch, parts)


def _in_all(timeline: Timeline, times: EffectiveTime) -> Iterator[_Loss]:
    """Yield the losses that have one cause in the whole job."""
    parts, launches = times.parts, timeline.launches
    if parts.start_s >= SHOWN_FROM_S:
        nodes_s = max(0.0, launches[0].began_s - timeline.began_s)
        programs_s = max(0.0, parts.start_s - nodes_s)
        what = f"starting took {duration(parts.start_s)}: {duration(nodes_s)} before launch 0"
        what += f", {duration(programs_s)} from the starts of launches to their first progress"
        to_do = "keep compiled code and data where the next launch finds them"
        if nodes_s > programs_s:
            to_do = "nothing in the program; many nodes take longer to start"
        yield _Loss(timeline.began_s, parts.start_s, what, to_do)
    if parts.relaunch_s >= SHOWN_FROM_S and len(launches) > 1:
        phases = {name: sum(each.gap_s.get(name, 0.0) for each in launches) for name in _PHASES}
        most = max(phases, key=lambda name: phases[name])
        shown = ", ".join(f"{duration(phases[name])} to {words}" for name, (words, _) in _PHASES.items())
        relaunches = counted(len(launches) - 1, "relaunch", "relaunches")
        what = f"{relaunches} took {duration(parts.relaunch_s)} (with the back-off: {shown})"
        if parts.waiting_s < SHOWN_FROM_S:
            what = f"{relaunches} took {duration(parts.relaunch_s)}: {shown}"
        yield _Loss(launches[1].began_s, parts.relaunch_s, what, _PHASES[most][1])
    if parts.waiting_s >= SHOWN_FROM_S:
        first = next(each for each in launches if each.wait_s > 0)
        what = f"waits after failures took {duration(parts.waiting_s)}"
        to_do = "fix what failed or did not answer; --backoff sets the first wait"
        yield _Loss(first.ended_s, parts.waiting_s, what, to_do)


_PHASES = {
    "stop_s": ("end the program", "let the program end soon after SIGTERM; --grace limits how long it may take"),
    "fence_s": ("fence it", "nothing, unless it takes seconds: then give --state-dir a faster disk"),
    "nodes_s": ("change the nodes", "nothing: the old launch's processes have to end, and nodes to join"),
}


def _slow(timeline: Timeline, launch: Launch, parts: TimeParts) -> Iterator[_Loss]:
    accusing = (each for each in timeline.verdicts if not each.is_over and timeline.launch_at(each.time_s) == launch)
    verdict = next(accusing, None)
    if verdict is None or parts.slow_s < SHOWN_FROM_S:
        return
    what = f"launch {launch.number} waited {duration(parts.slow_s)} for a slow device: {verdict.of.evidence}"
    yield _Loss(verdict.time_s, parts.slow_s, what, _about_device(verdict, excluded=verdict.of.host in launch.excluded))


def _end(timeline: Timeline, launch: Launch, parts: TimeParts) -> _Loss:
    length_s = math.nan if parts.unknown_s else parts.lost_s
    lost = f"; {duration(length_s)} lost since the last work that was kept" if length_s >= SHOWN_FROM_S else ""
    if math.isnan(length_s):
        lost = "; how much of its work was lost is not known"
    time_s = timeline.ended_s if math.isnan(launch.ended_s) else launch.ended_s
    to_do = _to_do(timeline, launch)
    if length_s >= _LONG_LOSS_S:
        to_do += "; to lose less, commit or checkpoint more often"
    verdict = timeline.verdict_that_ended(launch)
    evidence = f" ({verdict.of.evidence})" if verdict is not None and parts.slow_s < SHOWN_FROM_S else ""
    return _Loss(
        time_s, length_s, f"launch {launch.number} ended: {decision_wording.reason(launch.why)}{evidence}{lost}", to_do
    )


def _to_do(timeline: Timeline, launch: Launch) -> str:
    failure, verdict = timeline.failure_of(launch), timeline.verdict_that_ended(launch)
    if launch.cause == "stop":
        return "nothing: it was asked to stop"
    if launch.cause == "hang":
        what = "see what its ranks waited for"
        return f"{what}: {failure.stacks} beside the report" if failure and failure.stacks else what
    if launch.cause == "node lost":
        return "ask the nodes' administrator; run 'laggard doctor' there before they are used again"
    if verdict is not None:
        return _about_device(verdict, excluded=True)
    if failure is not None:
        return _about_failure(failure)
    return "see the job's log"


def _about_device(verdict: RecordedVerdict, *, excluded: bool) -> str:
    rest = "before it is used again" if excluded else "or replace it: --resilient does, with a reserve (--idle)"
    return f"run 'laggard doctor' on {verdict.of.host} {rest}{wording.likely_cause(verdict.of.cause)}"


def _about_failure(failure: RecordedFailure) -> str:
    match failure.kind:
        case "program":
            return "fix the program: its standard error has the traceback"
        case "hardware":
            return f"have {failure.host} checked: 'laggard doctor' and the kernel's log there"
        case "network":
            return f"nothing, unless it happens again: then have the links of {failure.host} checked"
        case "capacity":
            return f"more room on {failure.host} (disk, /dev/shm, memory), or less use of it by the program"
        case "transient":
            return "nothing, unless it happens again"
    return f"see the end of its standard error, and the kernel's log on {failure.host}"

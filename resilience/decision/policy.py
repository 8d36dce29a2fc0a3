"""The restart policy: what to do about what happened. Pure: no clock, no process, no network.

`decide` takes the first of the `RULES` of an event that applies. If its decision is a relaunch, `LIMITS` are checked,
and the first limit that is reached ends the job instead. ``docs/restart.md`` shows both lists as tables, generated from
these modules.

The primary node is never excluded: accused, it goes on as a head-only node, without its devices, if the other
nodes are enough (`Case.sparing`). Its devices are used again before the job would end for want of nodes (`without`).
If it is lost while the controller still runs, it is used again with a new cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from laggard.resilience.decision.case import Case
from laggard.resilience.decision.enough import may_wait, too_few
from laggard.resilience.decision.events import (
    Decision,
    End,
    Event,
    JobStatus,
    ProgramFailed,
    ProgramHung,
    Reason,
    Relaunch,
    Report,
    Settings,
)
from laggard.resilience.decision.placement import Below
from laggard.resilience.decision.reasons import Change, Fact
from laggard.resilience.decision.rules import RULES

STORM_WINDOW_S = 3600.0  # of `--max-restarts-per-hour`


@dataclass(frozen=True, slots=True)
class Limit:
    """What ends the job instead of a relaunch.

    ``reached`` takes the settings and the status that the job would have after the relaunch; it returns the reason to
    end, or None.
    """

    when: str
    reached: Callable[[Settings, JobStatus], Fact | None]


def _no_progress(settings: Settings, status: JobStatus) -> Fact | None:
    since_s = status.launched_s if status.stalled_since_s is None else status.stalled_since_s
    stalled_s = status.launched_s - since_s
    return Fact("no progress", number=stalled_s) if stalled_s >= settings.give_up_after_s else None


def _budget(settings: Settings, status: JobStatus) -> Fact | None:
    if settings.max_restarts is None or len(status.relaunched_s) <= settings.max_restarts:
        return None
    return Fact("restarts used up", number=settings.max_restarts)


def _storm(settings: Settings, status: JobStatus) -> Fact | None:
    recent = sum(moment > status.launched_s - STORM_WINDOW_S for moment in status.relaunched_s)
    if recent <= settings.max_restarts_per_hour:
        return None
    return Fact("hourly restarts used up", number=settings.max_restarts_per_hour)


TOO_FEW = Limit(
    "fewer than `--nodes` good nodes are left, or with `--exhaust-resources` none that can run the program (none with "
    "devices, if the job began with any), and there are not enough lost ones to wait for",
    too_few,
)
LIMITS: Sequence[Limit] = (
    TOO_FEW,
    Limit("there has been no progress since the first relaunch `--give-up-after` seconds ago", _no_progress),
    Limit("`--max-restarts` is used up", _budget),
    Limit("`--max-restarts-per-hour` is used up", _storm),
)


def decide(
    settings: Settings, status: JobStatus, event: Event, *, now_s: float, progressed: bool, below: Below = lambda _: 0
) -> Decision:
    """Return what to do about an event; ``below`` draws by chance where suspects go."""
    case = Case(settings, status, event, now_s, progressed, below)
    rule = next(rule for rule in RULES[type(event)] if rule.applies(case))
    decision = rule.decision(case)
    if isinstance(decision, Relaunch):
        return _within_limits(case, decision)
    if not isinstance(decision, Report) or status.waits_since_s is None or may_wait(settings, decision.status):
        return decision
    fewer = too_few(settings, decision.status)
    return decision if fewer is None else End((*decision.reason, fewer), decision.status)


def _within_limits(case: Case, decision: Relaunch) -> Relaunch | End:
    """Return a relaunch with its count, one that waits for lost nodes, or the end of the job at a limit."""
    settings, status, now_s = case.settings, case.status, case.now_s
    after = decision.status
    if after.placement is status.placement:
        after = replace(after, placement=after.placement.kept())
    if status.waits_since_s is None and status.outage is None:  # else no launch began since the last relaunch
        after = replace(
            after,
            launched_s=now_s,
            relaunched_s=(*status.relaunched_s, now_s),
            went_back=() if case.progressed else after.went_back,
            survived=case.survived,
            stalled_since_s=now_s if case.progressed or status.stalled_since_s is None else status.stalled_since_s,
        )
    if case.roster.is_head_only != after.roster.is_head_only:
        decision = replace(decision, new_cluster=True)  # Ray's head is started with or without its devices
    waits = too_few(settings, after) is not None and may_wait(settings, after)
    for limit in LIMITS:
        if (fact := limit.reached(settings, after)) and not (limit is TOO_FEW and waits):
            return End((fact, *_last_trouble(case.event), *after.went_back), after)
    if not waits:
        return replace(decision, status=replace(after, launched_s=now_s, waits_since_s=None))
    since_s = now_s if status.waits_since_s is None else status.waits_since_s
    left_s = since_s + settings.wait_for_nodes_s - now_s
    waiting = Fact("waiting", after.roster.lost_hosts, max(0.0, left_s))
    # Nobody goes on.
    before = (replace(fact, alone="") if isinstance(fact, Change) else fact for fact in decision.reason)
    return replace(decision, status=replace(after, waits_since_s=since_s), reason=(*before, waiting))


def _last_trouble(event: Event) -> Reason:
    match event:
        case ProgramFailed(failure):
            return Fact("last failure"), failure, *([event.unanswered] if event.unanswered else [])
        case ProgramHung():
            return Fact("last hang"), event
        case _:
            return ()

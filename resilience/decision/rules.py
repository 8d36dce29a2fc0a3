"""What to do about each kind of event: the first rule that applies decides. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from laggard.resilience.decision import events
from laggard.resilience.decision.backoff import backoff_s
from laggard.resilience.decision.case import Case
from laggard.resilience.decision.enough import too_few, without
from laggard.resilience.decision.events import (
    Decision,
    End,
    JobStatus,
    NodesDrained,
    OutageTooLong,
    ReasonPart,
    Relaunch,
    Report,
)
from laggard.resilience.decision.reasons import Change, Fact
from laggard.resilience.decision.roster import Exclusion, Roster
from laggard.resilience.decision.strikes import Strike

MAX_BACKOFF_S = 300.0  # what is away for long is looked for every five minutes


@dataclass(frozen=True, slots=True)
class Rule:
    """What to do about a kind of event; ``when`` and ``then`` say in words what ``applies`` and ``decision`` do."""

    event: type
    when: str
    then: str
    applies: Callable[[Case], bool]
    decision: Callable[[Case], Decision]


def _always(_: Case) -> bool:
    return True


def _not_resilient(case: Case) -> bool:
    return not case.settings.resilient


def _on(case: Case, after: JobStatus, *why: ReasonPart) -> Relaunch:
    return Relaunch(after, (*why, _change(case.roster, after.roster)))


def _keep_in_use(case: Case) -> Report:
    hosts = tuple(sorted(case.event.hosts & {*case.roster.active}))
    may_shrink = not case.settings.exhaust_resources and len(case.roster.active) > 1
    advice = (Fact("--exhaust-resources would go on"),) if may_shrink else ()
    return Report(case.status, (Fact("irreplaceable", hosts), *advice))


def _without_lost(case: Case) -> Decision:
    host = case.event.host
    after = replace(case.status_without(frozenset({host}), lost=True), strikes=case.with_strike(host))
    return _on(case, after, case.event)


def _drop_lost(case: Case) -> Report:
    host = case.event.host
    strikes = case.with_strike(host) if host in case.roster.reserve else case.status.strikes
    after = replace(case.status, roster=case.roster.with_lost(host, case.now_s), strikes=strikes)
    return Report(after, (case.event, Fact("unused")))


def _drain(case: Case) -> Report:
    """Take nodes out of the reserve, until the resource manager has nothing against them; no strike."""
    words = tuple(word for word in case.event.words if word.host in case.roster.reserve)
    hosts = frozenset(word.host for word in words)
    roster = case.roster.without(hosts, len(case.roster.active), case.now_s, lost=True)
    return Report(replace(case.status, roster=roster), (NodesDrained(words),))


def _stay_out(case: Case, exclusion: Exclusion, why: ReasonPart) -> Report:
    after = replace(case.status, roster=case.roster.with_renewed(exclusion))
    left_s = exclusion.until_s(case.settings.quarantine_s) - case.now_s
    return Report(after, (why, Fact("excluded for", number=left_s)))


def _unfit(case: Case) -> Report:
    host, before = case.event.host, _exclusion(case)
    again = Exclusion(host, case.now_s, count=before.count if before.lost else before.count + 1)
    return _stay_out(case, again, case.event)


def _exclusion(case: Case) -> Exclusion:
    return case.roster.exclusion_of(case.event.host) or Exclusion(case.event.host, case.now_s)


def _returned(case: Case) -> JobStatus:
    """Return the status with a node back: after a quarantine with one strike, so that one more is enough."""
    host, strikes = case.event.host, case.status.strikes
    if not _exclusion(case).lost:
        strikes = (*(strike for strike in strikes if strike.host != host), Strike(host, case.now_s))
    return replace(case.status, roster=case.roster.readmitting(host), strikes=strikes)


def _go_on(case: Case) -> Relaunch:
    back = _returned(case)
    after = replace(back, roster=without(case.settings, back.roster, frozenset(), case.now_s))
    return _on(case, after, case.event)


def _join(case: Case) -> Report:
    roster = case.roster.expecting(case.event.host, case.now_s, has_devices=case.event.has_devices)
    return Report(replace(case.status, roster=roster), (case.event, Fact("examined first")))


def _strike(case: Case) -> Fact:
    return Fact("strike", (case.suspect,), case.strikes)


def _after_hang(case: Case, excluded: frozenset[str]) -> Relaunch:
    after = replace(case.status_without(excluded), strikes=case.strikes_after)
    return _on(case, after, Fact("hangs"), case.event, *([_strike(case)] if case.struck else []))


def _after_failure(case: Case, excluded: frozenset[str]) -> Relaunch:
    in_a_row = 1 if case.progressed else case.status.failures_in_a_row + 1
    after = replace(
        case.status_without(excluded | case.unfit_reserve),
        strikes=case.status.strikes if case.proven else case.strikes_after,
        failures_in_a_row=in_a_row,
        last_failure=case.failure.fingerprint,
    )
    strikes = [_strike(case)] if case.struck and not case.proven else []
    relaunch = _on(case, after, case.failure, *case.event.evidence, *strikes)
    # The first relaunch is immediate.
    wait_s = 0.0 if excluded else backoff_s(in_a_row - 1, case.settings.backoff_s, MAX_BACKOFF_S)
    pause = (Fact("pause", number=wait_s),) if wait_s else ()
    return replace(relaunch, reason=(*relaunch.reason, *pause), wait_s=wait_s)


def _wait_for_answer(case: Case) -> Relaunch:
    """Wait for what does not answer: nobody is to blame for it."""
    after = replace(
        case.status_without(case.unfit_reserve),
        outage=case.event.unanswered,
        stalled_since_s=case.stalled_since_s,
        failures_in_a_row=0 if case.progressed else case.status.failures_in_a_row,
    )
    return Relaunch(after, (case.event.unanswered, case.failure))


def _given_up(case: Case) -> End:
    waited_s = case.now_s - (case.stalled_since_s or case.now_s)
    return End((OutageTooLong(case.event.unanswered, waited_s), case.failure))


def _missing(case: Case) -> End:
    waited_s = case.now_s - (case.status.waits_since_s or case.now_s)
    fewer = too_few(case.settings, case.status) or Fact("nodes too few", number=len(case.roster.active))
    return End((fewer, Fact("not returned", case.roster.lost_hosts, waited_s)))


def _change(before: Roster, after: Roster) -> Change:
    stay = {*before.active} & {*after.active}
    gone = [host for host in before.active if host not in stay]
    is_back = before.set_aside in after.active  # nobody is set aside if it is empty
    return Change(
        without=tuple(host for host in gone if host != before.primary),
        came=tuple(host for host in after.active if host not in stay | {before.set_aside}),
        primary=before.primary if before.primary in gone or is_back else "",
        primary_is_back=is_back,
        alone=after.active[0] if gone and len(after.active) == 1 else "",
        alone_is_primary=after.active == (after.primary,),
    )


SAME = "relaunch on the same nodes"
RULES: Sequence[Rule] = (
    Rule(events.ProgramEnded, "", "end with 0", _always, lambda c: End((c.event,))),
    Rule(
        events.ProgramFailed,
        "without `--resilient`",
        "end with its exit code",
        _not_resilient,
        lambda c: End((c.failure, *([Fact("--resilient would relaunch it")] if c.failure.response != "end" else []))),
    ),
    Rule(
        events.ProgramFailed,
        "with `--on-failure=end`",
        "end with its exit code",
        lambda c: c.settings.on_failure == "end",
        lambda c: End((c.failure,)),
    ),
    Rule(
        events.ProgramFailed,
        "it is the program's own error: wrong arguments (exit code 2), wrong use of a library",
        "end with its exit code",
        lambda c: c.failure.response == "end",
        lambda c: End((c.failure, Fact("own error"))),
    ),
    Rule(
        events.ProgramFailed,
        "a check of all nodes finds a bad one in use: a GPU is lost or has new memory errors, a disk is full; a bad "
        "one in reserve is excluded in any case",
        "relaunch without it",
        lambda c: bool(c.proven),
        lambda c: _after_failure(c, c.proven),
    ),
    Rule(
        events.ProgramFailed,
        "it names something that does not answer, and no progress was made for `--give-up-after`",
        "end with 93",
        lambda c: c.stalled_since_s is not None and c.now_s - c.stalled_since_s >= c.settings.give_up_after_s,
        _given_up,
    ),
    Rule(
        events.ProgramFailed,
        "it names something that does not answer",
        "relaunch on the same nodes once it answers",
        lambda c: c.stalled_since_s is not None,
        _wait_for_answer,
    ),
    Rule(
        events.ProgramFailed,
        "an error in the program or lack of memory, of the same type and place as last time, with no progress since",
        "end with its exit code",
        lambda c: c.failure.response == "once" and not c.progressed and c.failure.fingerprint == c.status.last_failure,
        lambda c: End((c.failure, Fact("same again"))),
    ),
    Rule(
        events.ProgramFailed,
        "it began on the same node a second time within a day, and the job can go on without the node",
        "relaunch without it",
        lambda c: c.is_struck_out,
        lambda c: _after_failure(c, frozenset({c.failure.host})),
    ),
    Rule(
        events.ProgramFailed,
        "",
        "relaunch on the same nodes, after a wait that grows; a strike against the node if it may be to blame",
        _always,
        lambda c: _after_failure(c, frozenset()),
    ),
    Rule(
        events.ProgramHung,
        "without `--resilient`",
        "report",
        _not_resilient,
        lambda c: Report(c.status, (c.event, Fact("--resilient would relaunch it"))),
    ),
    Rule(
        events.ProgramHung,
        "its ranks wait for one on the same node a second time within a day, and the job can go on without the node",
        "relaunch without it",
        lambda c: c.is_struck_out,
        lambda c: _after_hang(c, frozenset({c.suspect})),
    ),
    Rule(
        events.ProgramHung,
        "",
        f"{SAME}; a strike against the node whose rank the others wait for",
        _always,
        lambda c: _after_hang(c, frozenset()),
    ),
    Rule(
        events.NodesAccused,
        "without `--resilient`",
        "report",
        _not_resilient,
        lambda c: Report(c.status, (Fact("--resilient relaunches"),)),
    ),
    Rule(
        events.NodesAccused,
        "of the accused nodes only the primary is in use, and without its devices there would be too few nodes; or "
        "with `--exhaust-resources` no node that can run the program would be left",
        "report",
        lambda c: not c.excludable and not c.event.hosts.isdisjoint(c.roster.active),
        _keep_in_use,
    ),
    Rule(
        events.NodesAccused,
        "no accused node is in use or in reserve",
        "report",
        lambda c: bool(c.event.hosts) and not c.excludable,
        lambda c: Report(c.status, (Fact("not accused in use"),)),
    ),
    Rule(
        events.NodesAccused,
        "the only accused nodes are in reserve",
        "exclude them, no relaunch",
        lambda c: bool(c.excludable) and c.excludable.isdisjoint(c.roster.active),
        lambda c: Report(c.reserve_without(c.excludable), (Fact("out of reserve"),)),
    ),
    Rule(
        events.NodesAccused,
        "",
        "relaunch without them (none named: on the same nodes); the primary goes on without its devices",
        _always,
        lambda c: _on(c, c.status_without(c.excludable)),
    ),
    Rule(
        events.NodeLost,
        "it is not in use",
        "drop it from the job",
        lambda c: c.event.host not in c.roster.up,
        _drop_lost,
    ),
    Rule(
        events.NodeLost,
        "without `--resilient`",
        "end with 69",
        _not_resilient,
        lambda c: End((Fact("node"), c.event, Fact("--resilient would relaunch without it"))),
    ),
    Rule(
        events.NodeLost,
        "it is the primary: its agent or Ray's head has ended, but the controller still runs",
        "relaunch on the same nodes, on a new Ray cluster",
        lambda c: c.event.host == c.roster.primary,
        lambda c: Relaunch(c.status, (c.event, Change()), new_cluster=True),
    ),
    Rule(events.NodeLost, "", "relaunch without it", _always, _without_lost),
    Rule(
        events.NodesDrained,
        "",
        "take them out of the reserve, until it says otherwise and they pass their probe",
        _always,
        _drain,
    ),
    Rule(
        events.NodeReturned,
        "it is not excluded any more",
        "report",
        lambda c: c.roster.exclusion_of(c.event.host) is None,
        lambda c: Report(c.status, (Fact("not excluded", (c.event.host,)),)),
    ),
    Rule(
        events.NodeReturned,
        "it does not pass its probe",
        "exclude it anew, twice as long if it had served its quarantine",
        lambda c: bool(c.event.faults),
        _unfit,
    ),
    Rule(
        events.NodeReturned,
        "its quarantine is not over; a node that was only lost has one if it has two strikes within a day, and the job "
        "does not wait for it",
        "keep it excluded",
        lambda c: c.is_kept_out,
        lambda c: _stay_out(c, replace(_exclusion(c), lost=False), Fact("answers again", (c.event.host,))),
    ),
    Rule(
        events.NodeReturned,
        "the job waits for lost nodes",
        "relaunch, once there are enough",
        lambda c: c.status.waits_since_s is not None,
        _go_on,
    ),
    Rule(
        events.NodeReturned,
        "",
        "put it at the end of the reserve",
        _always,
        lambda c: Report(_returned(c), (c.event, Fact("in reserve"))),
    ),
    Rule(
        events.NodeJoined,
        "",
        "examine it, and put it at the end of the reserve",
        _always,
        _join,
    ),
    Rule(
        events.NodesMissing,
        "",
        "end with 69",
        _always,
        _missing,
    ),
    Rule(
        events.OutageEnded,
        "",
        "begin the launch",
        _always,
        lambda c: Report(replace(c.status, outage=None, launched_s=c.now_s), (c.event,)),
    ),
    Rule(events.OutageTooLong, "", "end with 93", _always, lambda c: End((c.event,))),
)

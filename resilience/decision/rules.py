"""What to do about each kind of event: the first rule that applies decides. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from laggard.resilience.decision import events
from laggard.resilience.decision.case import AGAIN_AND_AGAIN, Case
from laggard.resilience.decision.enough import too_few, without
from laggard.resilience.decision.events import (
    Decision,
    End,
    JobStatus,
    NodesDrained,
    ProgramFailed,
    ReasonPart,
    Relaunch,
    Report,
)
from laggard.resilience.decision.ledger import BAR, device_on, suspects
from laggard.resilience.decision.placement import MOST_MOVED, SCHEDULERS, draw, draw_devices
from laggard.resilience.decision.reasons import Change, Fact
from laggard.resilience.decision.roster import Exclusion, Roster
from laggard.resilience.decision.row import is_the_programs, is_the_saves

# The wait before a relaunch is this part of the row's age: no job waits for much longer than what it waits for lasts.
PAUSE_PART = 0.25
MOST_PAUSE_S = 300.0  # what is away for long is looked for every five minutes
RECOVERS = "[Ray Train restarts the workers](guides/kubernetes.md#ray-train)"
FOLLOWS = 2.0  # with evidence from here to the bar a failure follows a node that moves: nothing is waited for


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing to do about an event; ``when`` and ``then`` say in words what ``applies`` and ``decision`` do."""

    when: str
    then: str
    applies: Callable[[Case], bool]
    decision: Callable[[Case], Decision]


def _otherwise(then: str, decision: Callable[[Case], Decision]) -> Rule:
    return Rule("", then, lambda _: True, decision)


def _not_resilient(case: Case) -> bool:
    return not case.settings.resilient


def _on(case: Case, after: JobStatus, *why: ReasonPart) -> Relaunch:
    return Relaunch(after, (*why, _change(case.roster, after.roster)))


def _keep_in_use(case: Case) -> Report:
    hosts = tuple(sorted(case.event.hosts & {*case.roster.active}))
    may_shrink = not case.settings.exhaust_resources and len(case.roster.active) > 1
    advice = (Fact("--exhaust-resources would go on"),) if may_shrink else ()
    return Report(case.status, (Fact("irreplaceable", hosts), *advice))


def _without_accused(case: Case) -> Relaunch:
    return _on(case, replace(case.status_without(case.excludable), ledger=case.with_verdicts(case.excludable)))


def _without_lost(case: Case) -> Decision:
    host = case.event.host
    after = replace(case.status_without(frozenset({host}), lost=True), ledger=case.with_loss(host))
    return _on(case, after, case.event)


def _drop_lost(case: Case) -> Report:
    host = case.event.host
    ledger = case.with_loss(host) if host in case.roster.reserve else case.status.ledger
    after = replace(case.status, roster=case.roster.with_lost(host, case.now_s), ledger=ledger)
    return Report(after, (case.event, Fact("unused")))


def _leave_to_program(case: Case) -> Report:
    host = case.event.host
    after = case.roster.without(frozenset({host}), len(case.roster.active) - 1, case.now_s, lost=True)
    return Report(replace(case.status, roster=after, ledger=case.with_loss(host)), (case.event, Fact("recovers")))


def _drain(case: Case) -> Report:
    """Take nodes out of the reserve, until the resource manager has nothing against them."""
    words = tuple(word for word in case.event.words if word.host in case.roster.reserve)
    hosts = frozenset(word.host for word in words)
    roster = case.roster.without(hosts, len(case.roster.active), case.now_s, lost=True)
    return Report(replace(case.status, roster=roster), (NodesDrained(words),))


def _relieve(case: Case) -> Report:
    after = case.relieved or case.status
    return Report(after, (case.event, _change(case.roster, after.roster)))


def _after_replacement(case: Case) -> JobStatus:
    """Return the status once ranks are replaced on their nodes, and bad nodes have left the reserve."""
    return replace(case.reserve_without(case.unfit_reserve), ledger=case.ledger)


def _move_from(case: Case, hosts: frozenset[str]) -> Report:
    after = replace(case.status_without(hosts | case.unfit_reserve), ledger=case.ledger)
    return Report(after, (case.failure, *case.event.evidence, *case.evidence, _change(case.roster, after.roster)))


def _move_aside(case: Case) -> Report:
    after = _after_replacement(case)
    after = replace(after, roster=after.roster.setting_aside(case.suspect))
    return Report(after, (case.failure, *case.evidence, _change(case.roster, after.roster)))


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
    """Return the status with a node back in the reserve; the ledger forgets what it was excluded for after a day."""
    return replace(case.status, roster=case.roster.readmitting(case.event.host))


def _go_on(case: Case) -> Relaunch:
    back = _returned(case)
    after = replace(back, roster=without(case.settings, back.roster, frozenset(), case.now_s))
    return _on(case, after, case.event)


def _join(case: Case) -> Report:
    roster = case.roster.expecting(case.event.host, case.now_s, has_devices=case.event.has_devices)
    return Report(replace(case.status, roster=roster), (case.event, Fact("examined first")))


def _after_setback(case: Case, *first: ReasonPart, waits: bool = True) -> Relaunch:
    """Relaunch after a failure or a hang that is nobody's yet: suspects change places."""
    after = replace(case.status_without(case.unfit_reserve), row=case.row, ledger=case.ledger)
    if aside := case.set_aside:
        after = replace(after, roster=after.roster.setting_aside(aside))
    elif case.settings.places_ranks:
        after = _with_suspects_moved(case, after)
    relaunch = _on(case, after, *first, *case.evidence)
    pause_s = _pause_s(case) if waits else 0.0
    more = [*_moves(case.status, after), *([Fact("pause", number=pause_s)] if pause_s else [])]
    return replace(relaunch, reason=(*relaunch.reason, *more), wait_s=pause_s)


def _moves(before: JobStatus, after: JobStatus) -> list[Fact]:
    """Return which nodes that stay in use have changed places, and on which nodes devices have."""
    places = dict(enumerate(before.placed.active))
    stay = {*before.roster.active} & {*after.roster.active}
    moved = [host for at, host in enumerate(after.placed.active) if host in stay and places.get(at) in stay - {host}]
    devices = [host for host, order in after.placement.devices.items() if before.placement.devices.get(host) != order]
    found = [Fact("moved", tuple(moved))] if moved else []
    return [*found, *([Fact("devices moved", tuple(devices))] if devices else [])]


def _with_suspects_moved(case: Case, after: JobStatus) -> JobStatus:
    found = suspects(after.roster.active, after.ledger, case.now_s)
    if not found:
        return replace(after, placement=SCHEDULERS)
    of_hosts = {each.host: device_on(each.host, after.ledger) for each in found[:MOST_MOVED]}
    with_devices = draw_devices(after.placement, of_hosts, case.settings.devices, case.below)
    # Devices change within their node at first, which moves no data.
    moved = [each.host for each in found if each.failures > 1 or each.host not in with_devices.devices_drawn]
    roster, placement = draw(after.roster, with_devices, moved, case.settings.leaves, case.below)
    return replace(after, roster=roster, placement=placement)


def _pause_s(case: Case) -> float:
    if len(case.row) == 1:
        is_away = case.setback.kind in ("network", "transient")
        return case.settings.backoff_s if is_away else 0.0
    was_drawn = case.suspect in case.status.placement.drawn
    if was_drawn and any(FOLLOWS <= each.value < BAR for each in case.evidence):
        return case.settings.backoff_s
    age_s = case.now_s - case.row[0].time_s
    return min(MOST_PAUSE_S, max(case.settings.backoff_s, PAUSE_PART * age_s))


def _without_bad(case: Case, hosts: frozenset[str]) -> Relaunch:
    after = replace(case.status_without(hosts | case.unfit_reserve), row=case.row, ledger=case.ledger)
    failed = isinstance(case.event, ProgramFailed)
    first = (case.failure, *case.event.evidence) if failed else (Fact("hangs"), case.event)
    return _on(case, after, *first, *case.evidence)


def _without_convicted(case: Case) -> Relaunch:
    return _without_bad(case, frozenset({case.suspect}))


def _one_save_back(case: Case) -> Relaunch:
    """Relaunch from the checkpoint before the newest, with all else as it is: once in a row of failures."""
    saves = case.event.course.saves
    relaunch = _after_setback(case, case.failure, *case.event.evidence, Fact("one save back"), waits=False)
    return replace(relaunch, status=replace(relaunch.status, went_back=saves), goes_back=saves)


def _wait_for_answer(case: Case) -> Relaunch:
    """Wait for what does not answer: nobody is to blame for it."""
    row = () if case.progressed else case.status.row
    after = replace(case.status_without(case.unfit_reserve), outage=case.event.unanswered, row=row)
    return Relaunch(after, (case.event.unanswered, case.failure))


def _missing(case: Case) -> End:
    waited_s = case.now_s - (case.status.waits_since_s or case.now_s)
    fewer = too_few(case.settings, case.status) or Fact("nodes too few", number=len(case.roster.active))
    return End((fewer, Fact("not returned", case.roster.lost_hosts, waited_s)))


def _change(before: Roster, after: Roster) -> Change:
    stay = {*before.active} & {*after.active}
    gone = [host for host in before.active if host not in stay]
    is_back = before.set_aside in after.active  # nobody is set aside if it is empty
    waiting = tuple(host for host in gone if host in after.reserve)
    return Change(
        without=tuple(host for host in gone if host != before.primary and host not in waiting),
        came=tuple(host for host in after.active if host not in stay | {before.set_aside}),
        primary=before.primary if before.primary in gone or is_back else "",
        primary_is_back=is_back,
        alone=after.active[0] if gone and len(after.active) == 1 else "",
        set_aside=waiting,
    )


RULES: Mapping[type, Sequence[Rule]] = {
    events.ProgramEnded: (_otherwise("end with 0", lambda c: End((c.event,))),),
    events.ProgramFailed: (
        Rule(
            "without `--resilient`",
            "end with its exit code",
            _not_resilient,
            lambda c: End((c.failure, *([] if c.failure.is_usage else [Fact("--resilient would relaunch it")]))),
        ),
        Rule(
            "with `--on-failure=end`",
            "end with its exit code",
            lambda c: c.settings.on_failure == "end",
            lambda c: End((c.failure,)),
        ),
        Rule(
            "its arguments are wrong: it prints its usage, or all of its ranks exit with 2 within seconds",
            "end with its exit code",
            lambda c: c.failure.is_usage,
            lambda c: End((c.failure, Fact("own error"))),
        ),
        Rule(
            "a check of all nodes finds a bad one in use: a GPU is lost or has new memory errors, a disk is full; a "
            "bad one in reserve is excluded in any case",
            "relaunch without it",
            lambda c: bool(c.proven),
            lambda c: _without_bad(c, c.proven),
        ),
        Rule(
            "it names something that does not answer",
            "relaunch on the same nodes once it answers",
            lambda c: c.event.unanswered is not None,
            _wait_for_answer,
        ),
        Rule(
            "the evidence against a node is 100 or more, and the job can go on without the node",
            "relaunch without it",
            lambda c: c.convicted is not None,
            _without_convicted,
        ),
        Rule(
            "the failures speak against the [checkpoint](#the-checkpoint-or-the-program), there is an older one, and "
            "the job has not gone back since its last progress",
            "relaunch at once, from the checkpoint before the newest",
            lambda c: is_the_saves(c.row) and not c.went_back,
            _one_save_back,
        ),
        Rule(
            "the failures speak against the [program](#the-checkpoint-or-the-program)",
            "end with its exit code",
            lambda c: is_the_programs(c.row, can_move=c.can_move, went_back=bool(c.went_back), survived=c.survived),
            lambda c: End(
                (c.failure, Fact("the program's", number=len(c.row)), *c.went_back),
                replace(c.status, ledger=c.acquitted),
            ),
        ),
        _otherwise(
            "relaunch; suspects change places; from the second failure without progress on, after a quarter of the "
            "time since the first (10 s to 5 min), or after 10 s while the evidence against a node that has moved is 2 "
            "to 100",
            lambda c: _after_setback(c, c.failure, *c.event.evidence),
        ),
    ),
    events.RanksReplaced: (
        Rule(
            "a check of all nodes finds a bad one in use, or the evidence against one is 100 or more",
            "have its ranks go on in reserve, if all others keep their processes; otherwise it stays in use",
            lambda c: bool(c.proven) or c.convicted is not None,
            lambda c: _move_from(c, c.proven or frozenset({c.suspect})),
        ),
        Rule(
            f"within a day {AGAIN_AND_AGAIN} or more began on a node, and fewer on all others together; not the "
            "primary",
            "have its ranks go on in reserve, where it waits, if all others keep their processes",
            lambda c: c.fails_most,
            _move_aside,
        ),
        _otherwise("enter it in the ledger", lambda c: Report(_after_replacement(c), (c.failure, Fact("in place")))),
    ),
    events.ProgramHung: (
        Rule(
            "without `--resilient`",
            "report",
            _not_resilient,
            lambda c: Report(c.status, (c.event, Fact("--resilient would relaunch it"))),
        ),
        Rule(
            "the evidence against a node is 100 or more, and the job can go on without the node",
            "relaunch without it",
            lambda c: c.convicted is not None,
            _without_convicted,
        ),
        _otherwise(
            "the same as after a failure of the rank that the others wait for",
            lambda c: _after_setback(c, Fact("hangs"), c.event),
        ),
    ),
    events.NodesAccused: (
        Rule(RECOVERS, "report", lambda c: c.event.recovers, lambda c: Report(c.status, (Fact("recovers"),))),
        Rule(
            "without `--resilient`",
            "report",
            _not_resilient,
            lambda c: Report(c.status, (Fact("--resilient relaunches"),)),
        ),
        Rule(
            "of the accused nodes only the primary is in use, and without its devices there would be too few nodes; or "
            "with `--exhaust-resources` no node that can run the program would be left",
            "report",
            lambda c: not c.excludable and not c.event.hosts.isdisjoint(c.roster.active),
            _keep_in_use,
        ),
        Rule(
            "no accused node is in use or in reserve",
            "report",
            lambda c: bool(c.event.hosts) and not c.excludable,
            lambda c: Report(c.status, (Fact("not accused in use"),)),
        ),
        Rule(
            "the only accused nodes are in reserve",
            "exclude them, no relaunch",
            lambda c: bool(c.excludable) and c.excludable.isdisjoint(c.roster.active),
            lambda c: Report(c.reserve_without(c.excludable), (Fact("out of reserve"),)),
        ),
        _otherwise(
            "relaunch without them (none named: on the same nodes); the primary goes on without its devices",
            _without_accused,
        ),
    ),
    events.NodeLost: (
        Rule("it is not in use", "drop it from the job", lambda c: c.event.host not in c.roster.up, _drop_lost),
        Rule(
            f"{RECOVERS}, and others are in use; not the primary",
            "drop it from the job",
            lambda c: c.event.recovers and c.event.host != c.roster.primary and len(c.roster.active) > 1,
            _leave_to_program,
        ),
        Rule(
            "without `--resilient`",
            "end with 69",
            _not_resilient,
            lambda c: End((Fact("node"), c.event, Fact("--resilient would relaunch without it"))),
        ),
        Rule(
            "it is the primary: its agent or Ray's head has ended, but the controller still runs",
            "relaunch on the same nodes, on a new Ray cluster",
            lambda c: c.event.host == c.roster.primary,
            lambda c: Relaunch(c.status, (c.event, Change()), new_cluster=True),
        ),
        _otherwise("relaunch without it", _without_lost),
    ),
    events.NodesDrained: (
        _otherwise("take them out of the reserve, until the manager says otherwise and they pass their probe", _drain),
    ),
    events.NodeDrained: (
        Rule(
            "it is not the primary, and one in reserve can take its place",
            "have its ranks go on there, if all others keep their processes; otherwise it stays in use",
            lambda c: c.relieved is not None,
            _relieve,
        ),
        _otherwise("it stays in use", lambda c: Report(c.status, (c.event,))),
    ),
    events.NodeReturned: (
        Rule(
            "it is no longer excluded",
            "report",
            lambda c: c.roster.exclusion_of(c.event.host) is None,
            lambda c: Report(c.status, (Fact("not excluded", (c.event.host,)),)),
        ),
        Rule(
            "it does not pass its probe",
            "exclude it again, for twice as long if it had served its quarantine",
            lambda c: bool(c.event.faults),
            _unfit,
        ),
        Rule(
            "its quarantine is not over; a node that was only lost has one if the evidence against it is 100 or more, "
            "and the job does not wait for it",
            "keep it excluded",
            lambda c: c.is_kept_out,
            lambda c: _stay_out(c, replace(_exclusion(c), lost=False), Fact("answers again", (c.event.host,))),
        ),
        Rule(
            "the job waits for lost nodes",
            "relaunch once there are enough",
            lambda c: c.status.waits_since_s is not None,
            _go_on,
        ),
        _otherwise("put it at the end of the reserve", lambda c: Report(_returned(c), (c.event, Fact("in reserve")))),
    ),
    events.NodeJoined: (_otherwise("examine it, and put it at the end of the reserve", _join),),
    events.NodesMissing: (_otherwise("end with 69", _missing),),
    events.OutageEnded: (
        _otherwise(
            "begin the launch", lambda c: Report(replace(c.status, outage=None, launched_s=c.now_s), (c.event,))
        ),
    ),
    events.OutageTooLong: (_otherwise("end with 93", lambda c: End((c.event,))),),
}

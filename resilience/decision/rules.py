"""What to do about each kind of event: the first rule that applies decides. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from laggard.resilience.decision.backoff import backoff_s
from laggard.resilience.decision.case import Case
from laggard.resilience.decision.enough import is_enough, too_few, without
from laggard.resilience.decision.events import (
    Decision,
    End,
    GrowthPays,
    JobStatus,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    NodeReturned,
    NodesAccused,
    NodesMissing,
    NodesWithheld,
    ProgramEnded,
    ProgramFailed,
    ProgramHung,
    Relaunch,
    Report,
)
from laggard.resilience.decision.limits import EXIT_TOO_FEW_NODES
from laggard.resilience.decision.roster import Exclusion, Roster
from laggard.resilience.decision.strikes import Strike
from laggard.resilience.text import abbreviated, duration

__all__ = ["ALONE", "RULES", "Rule"]

MAX_BACKOFF_S = 300.0


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


def _without_accused(case: Case) -> Decision:
    after = case.status_without(case.excludable)
    return Relaunch(after, _describe_change(case.roster, after.roster))


def _keep_in_use(case: Case) -> Report:
    hosts = abbreviated(sorted(case.event.hosts & {*case.roster.active}))
    may_shrink = not case.settings.exhaust_resources and len(case.roster.active) > 1
    advice = "; --exhaust-resources would go on without it" if may_shrink else ""
    return Report(case.status, f"no other node could take the place of {hosts}{advice}")


def _without_lost(case: Case) -> Decision:
    host = case.event.host
    after = replace(case.status_without(frozenset({host}), lost=True), strikes=case.with_strike(host))
    return Relaunch(after, f"{_lost(case)}; {_describe_change(case.roster, after.roster)}")


def _drop_lost(case: Case) -> Report:
    host = case.event.host
    strikes = case.with_strike(host) if host in case.roster.reserve else case.status.strikes
    after = replace(case.status, roster=case.roster.with_lost(host, case.now_s), strikes=strikes)
    return Report(after, f"{_lost(case)}, but was not in use")


def _withhold(case: Case) -> Report:
    """Take nodes out of the reserve, until the resource manager has nothing against them; no strike."""
    words = {host: word for host, word in case.event.words if host in case.roster.reserve}
    roster = case.roster.without(frozenset(words), len(case.roster.active), case.now_s, lost=True)
    leave = "leaves" if len(words) == 1 else "leave"
    return Report(
        replace(case.status, roster=roster),
        f"{abbreviated(sorted(words))} {leave} the reserve: {'; '.join(words.values())}",
    )


def _stay_out(case: Case, exclusion: Exclusion, why: str) -> Report:
    after = replace(case.status, roster=case.roster.with_renewed(exclusion))
    left_s = exclusion.until_s(case.settings.quarantine_s) - case.now_s
    return Report(after, f"{case.event.host} {why}: excluded for {duration(left_s)}")


def _unfit(case: Case) -> Report:
    host, before = case.event.host, _exclusion(case)
    again = Exclusion(host, case.now_s, count=before.count if before.lost else before.count + 1)
    return _stay_out(case, again, f"does not pass its probe ({case.event.fault})")


def _exclusion(case: Case) -> Exclusion:
    return case.roster.exclusion_of(case.event.host) or Exclusion(case.event.host, case.now_s)


def _returned(case: Case) -> JobStatus:
    """Return the status with a node back: after a quarantine with one strike, so that one more is enough."""
    host, strikes = case.event.host, case.status.strikes
    if not _exclusion(case).lost:
        strikes = (*(strike for strike in strikes if strike.host != host), Strike(host, case.now_s))
    return replace(case.status, roster=case.roster.readmitting(host), strikes=strikes)


def _to_reserve(case: Case) -> Report:
    return Report(_returned(case), f"{case.event.host} is back: it is in the reserve")


def _go_on(case: Case) -> Relaunch:
    back = _returned(case)
    after = replace(back, roster=without(case.settings, back.roster, frozenset(), case.now_s))
    return Relaunch(after, f"{case.event.host} is back; {_describe_change(case.roster, after.roster)}")


def _grow(case: Case) -> Relaunch:
    after = case.status_without(frozenset())
    change = _describe_change(case.roster, after.roster)
    return Relaunch(after, f"there are more nodes again, and a relaunch pays; {change}")


def _lost(case: Case) -> str:
    why = f" ({case.event.why})" if case.event.why else ""
    return f"{case.event.host} is lost{why}"


def _join(case: Case) -> Report:
    roster = case.roster.expecting(case.event.host, case.now_s, has_devices=case.event.has_devices)
    return Report(
        replace(case.status, roster=roster), f"{case.event.host} has joined the cluster: it is examined first"
    )


def _without_leaving(case: Case) -> Relaunch:
    after = case.status_without(frozenset({case.event.host}))
    return Relaunch(after, f"{case.event.why}; {_describe_change(case.roster, after.roster)}")


def _end_of_program(case: Case, remark: str) -> End:
    sentence = case.failure.sentence
    return End(case.failure.job_exit_code, f"{sentence}; {remark}" if remark else sentence)


def _after_hang(case: Case, excluded: frozenset[str]) -> Relaunch:
    strikes = case.strikes_after
    after = replace(case.status_without(excluded), strikes=strikes)
    reasons = [f"the program hangs: {case.event.sentence}"]
    if case.struck:
        reasons.append(f"strike {case.strikes} for {case.suspect}")
    reasons.append(_describe_change(case.roster, after.roster))
    return Relaunch(after, "; ".join(reasons))


def _after_failure(case: Case, excluded: frozenset[str]) -> Relaunch:
    failure = case.failure
    in_a_row = 1 if case.progressed else case.status.failures_in_a_row + 1
    after = replace(
        case.status_without(excluded | case.unfit_reserve),
        strikes=case.status.strikes if case.proven else case.strikes_after,
        failures_in_a_row=in_a_row,
        last_failure=failure.fingerprint,
    )
    reasons = [failure.sentence, *(f"{host}: {text}" for host, text in case.event.evidence)]
    if case.struck and not case.proven:
        reasons.append(f"strike {case.strikes} for {failure.host}")
    reasons.append(_describe_change(case.roster, after.roster))
    # The first relaunch is immediate.
    wait_s = 0.0 if excluded else backoff_s(in_a_row - 1, case.settings.backoff_s, MAX_BACKOFF_S)
    if wait_s:
        reasons.append(f"after a wait of {duration(wait_s)}")
    return Relaunch(after, "; ".join(reasons), wait_s=wait_s)


def _missing(case: Case) -> str:
    waited_s = case.now_s - (case.status.waits_since_s or case.now_s)
    lost = case.roster.lost_hosts
    return f"{abbreviated(lost)} {'has' if len(lost) == 1 else 'have'} not returned within {duration(waited_s)}"


def _describe_change(before: Roster, after: Roster) -> str:
    stay = {*before.active} & {*after.active}
    gone = [host for host in before.active if host not in stay]
    came = [host for host in after.active if host not in stay | {before.set_aside}]
    parts = []
    if gone:
        others = [host for host in gone if host != before.primary]
        devices = [f"the devices of {before.primary} (the primary)"] if before.primary in gone else []
        parts.append(f"without {', '.join([*([abbreviated(others)] if others else []), *devices])}")
    if came:
        swap = f"{abbreviated(came)} comes in from the reserve"
        parts.append(swap if gone else f"with {abbreviated(came)} from the reserve")
    if before.set_aside in after.active:
        parts.append(f"the devices of {before.primary} (the primary) are used again")
    if gone and len(after.active) == 1:
        parts.append(f"{'the primary' if after.active[0] == after.primary else after.active[0]}{ALONE}")
    return "; ".join(parts) or "on the same nodes"


ALONE = " goes on alone"
SAME = "relaunch on the same nodes"
RULES: Sequence[Rule] = (
    Rule(ProgramEnded, "", "end with 0", _always, lambda _: End(0, "the program ended with exit code 0")),
    Rule(
        ProgramFailed,
        "without `--resilient`",
        "end with its exit code",
        _not_resilient,
        lambda c: _end_of_program(c, "--resilient would relaunch it" if c.failure.response != "end" else ""),
    ),
    Rule(
        ProgramFailed,
        "with `--on-failure=end`",
        "end with its exit code",
        lambda c: c.settings.on_failure == "end",
        lambda c: _end_of_program(c, ""),
    ),
    Rule(
        ProgramFailed,
        "it is the program's own error: wrong arguments (exit code 2), wrong use of a library",
        "end with its exit code",
        lambda c: c.failure.response == "end",
        lambda c: _end_of_program(c, "the error is the program's own"),
    ),
    Rule(
        ProgramFailed,
        "a check of all nodes finds a bad one in use: a GPU is lost or has new memory errors, a disk is full; a bad "
        "one in reserve is excluded in any case",
        "relaunch without it",
        lambda c: bool(c.proven),
        lambda c: _after_failure(c, c.proven),
    ),
    Rule(
        ProgramFailed,
        "an error in the program or lack of memory, of the same type and place as last time, with no progress since",
        "end with its exit code",
        lambda c: c.failure.response == "once" and not c.progressed and c.failure.fingerprint == c.status.last_failure,
        lambda c: _end_of_program(c, "the same as the last time, without progress in between"),
    ),
    Rule(
        ProgramFailed,
        "it began on the same node a second time within a day, and the job can go on without the node",
        "relaunch without it",
        lambda c: c.is_struck_out,
        lambda c: _after_failure(c, frozenset({c.failure.host})),
    ),
    Rule(
        ProgramFailed,
        "",
        "relaunch on the same nodes, after a wait that grows; a strike against the node if it may be to blame",
        _always,
        lambda c: _after_failure(c, frozenset()),
    ),
    Rule(
        ProgramHung,
        "without `--resilient`",
        "report",
        _not_resilient,
        lambda c: Report(c.status, f"{c.event.sentence}; --resilient would relaunch it"),
    ),
    Rule(
        ProgramHung,
        "its ranks wait for one on the same node a second time within a day, and the job can go on without the node",
        "relaunch without it",
        lambda c: c.is_struck_out,
        lambda c: _after_hang(c, frozenset({c.suspect})),
    ),
    Rule(
        ProgramHung,
        "",
        f"{SAME}; a strike against the node whose rank the others wait for",
        _always,
        lambda c: _after_hang(c, frozenset()),
    ),
    Rule(
        NodesAccused,
        "without `--resilient`",
        "report",
        _not_resilient,
        lambda c: Report(c.status, "without --resilient nothing is relaunched"),
    ),
    Rule(
        NodesAccused,
        "of the accused nodes only the primary is in use, and without its devices there would be too few nodes; or "
        "with `--exhaust-resources` no node that can run the program would be left",
        "report",
        lambda c: not c.excludable and not c.event.hosts.isdisjoint(c.roster.active),
        _keep_in_use,
    ),
    Rule(
        NodesAccused,
        "no accused node is in use or in reserve",
        "report",
        lambda c: bool(c.event.hosts) and not c.excludable,
        lambda c: Report(c.status, "no accused node is in use"),
    ),
    Rule(
        NodesAccused,
        "the only accused nodes are in reserve",
        "exclude them, no relaunch",
        lambda c: bool(c.excludable) and c.excludable.isdisjoint(c.roster.active),
        lambda c: Report(c.reserve_without(c.excludable), "removed from the reserve"),
    ),
    Rule(
        NodesAccused,
        "",
        "relaunch without them (none named: on the same nodes); the primary goes on without its devices",
        _always,
        _without_accused,
    ),
    Rule(
        NodeLost,
        "it is not in use",
        "drop it from the job",
        lambda c: c.event.host not in c.roster.up,
        _drop_lost,
    ),
    Rule(
        NodeLost,
        "without `--resilient`",
        "end with 69",
        _not_resilient,
        lambda c: End(EXIT_TOO_FEW_NODES, f"node {_lost(c)}; --resilient would relaunch without it"),
    ),
    Rule(
        NodeLost,
        "it is the primary: its agent or Ray's head has ended, but the controller still runs",
        "relaunch on the same nodes, on a new Ray cluster",
        lambda c: c.event.host == c.roster.primary,
        lambda c: Relaunch(c.status, f"{_lost(c)}; on the same nodes", new_cluster=True),
    ),
    Rule(NodeLost, "", "relaunch without it", _always, _without_lost),
    Rule(
        NodesWithheld,
        "",
        "take them out of the reserve, until it says otherwise and they pass their probe",
        _always,
        _withhold,
    ),
    Rule(
        NodeReturned,
        "it is not excluded any more",
        "report",
        lambda c: c.roster.exclusion_of(c.event.host) is None,
        lambda c: Report(c.status, f"{c.event.host} is not excluded"),
    ),
    Rule(
        NodeReturned,
        "it does not pass its probe",
        "exclude it anew, twice as long if it had served its quarantine",
        lambda c: bool(c.event.fault),
        _unfit,
    ),
    Rule(
        NodeReturned,
        "its quarantine is not over; a node that was only lost has one if it has two strikes within a day, and the job "
        "does not wait for it",
        "keep it excluded",
        lambda c: c.is_kept_out,
        lambda c: _stay_out(c, replace(_exclusion(c), lost=False), "answers again"),
    ),
    Rule(
        NodeReturned,
        "the job waits for lost nodes",
        "relaunch, once there are enough",
        lambda c: c.status.waits_since_s is not None,
        _go_on,
    ),
    Rule(NodeReturned, "", "put it at the end of the reserve", _always, _to_reserve),
    Rule(
        NodeJoined,
        "",
        "examine it, and put it at the end of the reserve",
        _always,
        _join,
    ),
    Rule(
        NodeLeaving,
        "it is in use, with `--resilient`, and the others are enough",
        "relaunch without it",
        lambda c: (
            c.settings.resilient
            and c.event.host in c.roster.active
            and bool(c.sparing(frozenset({c.event.host})))
            and is_enough(c.settings, c.status_without(frozenset({c.event.host})).roster)
        ),
        _without_leaving,
    ),
    Rule(
        NodeLeaving,
        "",
        "report",
        _always,
        lambda c: Report(c.status, f"{c.event.why}: {c.event.host} is used as long as it is there"),
    ),
    Rule(
        GrowthPays,
        "with `--grow-back`",
        "relaunch with them",
        lambda c: c.settings.grow_back,
        _grow,
    ),
    Rule(GrowthPays, "", "report", _always, lambda c: Report(c.status, "--grow-back would relaunch with more nodes")),
    Rule(
        NodesMissing,
        "",
        "end with 69",
        _always,
        lambda c: End(EXIT_TOO_FEW_NODES, f"{too_few(c.settings, c.status)}; {_missing(c)}"),
    ),
)

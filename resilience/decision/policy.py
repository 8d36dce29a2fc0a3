"""The restart policy: what to do about what happened. Pure: no clock, no process, no network.

`decide` takes the first rule of `RULES` that applies to an event. If its decision is a relaunch, `LIMITS` are checked,
and the first limit that is reached ends the job instead. ``docs/restart.md`` shows both lists as tables, generated from
this module.

The primary node is never excluded: accused, it goes on as the job's book-keeper, without its devices, if the other
nodes are enough (`Case.sparing`). Its devices are used again before the job would end for want of nodes (`_without`).
If it is lost while the controller still runs, it is used again with a new cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from laggard.resilience.decision.backoff import backoff_s
from laggard.resilience.decision.events import (
    Decision,
    End,
    Event,
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
    Settings,
)
from laggard.resilience.decision.failure import Failure
from laggard.resilience.decision.roster import MEMORY_S, Exclusion, Roster
from laggard.resilience.decision.strikes import (
    MAX_STRIKES,
    Strike,
    is_shared,
    recent_strikes,
    strikes_of,
    with_strike,
)
from laggard.resilience.text import abbreviated, duration

__all__ = ["EXIT_NO_PROGRESS", "EXIT_TOO_FEW_NODES", "LIMITS", "RULES", "Limit", "Rule", "begin", "decide"]

EXIT_TOO_FEW_NODES = 69
EXIT_NO_PROGRESS = 93
MAX_LAUNCHES_WITHOUT_PROGRESS = 3
# A program may write checkpoints of its own that we know nothing of: a launch this long counts as progress.
LONG_LAUNCH_S = 3600.0
STORM_WINDOW_S = 3600.0
MAX_BACKOFF_S = 300.0


@dataclass(frozen=True, slots=True)
class Case:
    """One event, and everything that a rule may look at."""

    settings: Settings
    status: JobStatus
    event: Any  # of the type that the rule is for
    now_s: float
    progressed: bool

    @property
    def roster(self) -> Roster:
        """Which node does what."""
        return self.status.roster

    @property
    def excludable(self) -> frozenset[str]:
        """The accused hosts that may be excluded: those in use or in reserve that can be spared."""
        accused: frozenset[str] = self.event.hosts
        return self.sparing(accused & {*self.roster.active, *self.roster.reserve})

    @property
    def failure(self) -> Failure:
        """Why the program failed."""
        failure: Failure = self.event.failure
        return failure

    @property
    def proven(self) -> frozenset[str]:
        """The nodes in use that were found bad when they were checked, and can be spared."""
        return self.sparing(frozenset(host for host, _ in self.event.evidence) & frozenset(self.roster.active))

    @property
    def unfit_reserve(self) -> frozenset[str]:
        """The nodes in reserve that were found bad when they were checked after a failure."""
        evidence = self.event.evidence if isinstance(self.event, ProgramFailed) else ()
        return frozenset(host for host, _ in evidence) & frozenset(self.roster.reserve)

    @property
    def suspect(self) -> str:
        """The node that may be to blame for a failure or a hang; empty if there is none."""
        if isinstance(self.event, ProgramHung):
            return self.event.suspect
        return self.failure.host if self.failure.response == "strike" else ""

    @property
    def may_strike(self) -> bool:
        """Whether there is a suspect that may be struck out, which would help."""
        stays = isinstance(self.event, ProgramFailed) and self.failure.stays
        return self.suspect != "" and not stays

    @property
    def struck(self) -> bool:
        """Whether this is a strike against the suspect: not if several nodes fail for a reason that they share."""
        return self.may_strike and not is_shared(self.suspect, self.status.strikes, self.now_s, self.n_nodes)

    @property
    def strikes(self) -> int:
        """How many strikes the suspect has, this one included."""
        return 1 + strikes_of(self.suspect, self.status.strikes, self.now_s)

    @property
    def n_nodes(self) -> int:
        """How many nodes there are, but for those that were excluded before."""
        return len({*self.roster.active, *self.roster.reserve})

    @property
    def is_struck_out(self) -> bool:
        """Whether the suspect has its last strike, and the job can go on without it."""
        host = self.suspect
        if not self.struck or self.strikes < MAX_STRIKES or host not in self.roster.active:
            return False
        after = self.status_without(self.unfit_reserve | {host})
        return host not in after.roster.active and _too_few(self.settings, after) is None

    @property
    def is_kept_out(self) -> bool:
        """Whether a node that could come back must serve its quarantine first, and the job does not wait for it."""
        host = self.event.host
        exclusion = self.roster.exclusion_of(host)
        if exclusion is None or self.now_s >= exclusion.until_s(self.settings.quarantine_s):
            return False
        struck_out = strikes_of(host, self.status.strikes, self.now_s) >= MAX_STRIKES
        return not exclusion.lost or (struck_out and self.status.waits_since_s is None)

    @property
    def strikes_after(self) -> tuple[Strike, ...]:
        """The strikes after this failure or hang."""
        return self.with_strike(self.suspect) if self.may_strike else self.status.strikes

    def with_strike(self, host: str) -> tuple[Strike, ...]:
        """Return the strikes after another one against a node."""
        return with_strike(host, self.status.strikes, self.now_s, self.n_nodes)

    def status_without(self, hosts: frozenset[str], *, lost: bool = False) -> JobStatus:
        """Return the job's status with some hosts excluded, and free places filled from the reserve.

        There may be free places although no host is excluded: a job that went on with fewer nodes grows back.
        """
        return replace(self.status, roster=_without(self.settings, self.roster, hosts, self.now_s, lost=lost))

    def reserve_without(self, hosts: frozenset[str]) -> JobStatus:
        """Return the job's status with some hosts of the reserve excluded, and the nodes in use as they are."""
        n_in_use = len(self.roster.active)
        return replace(self.status, roster=self.roster.without(hosts, n_in_use, self.now_s))

    def sparing(self, hosts: frozenset[str]) -> frozenset[str]:
        """Return which of these hosts to go on without: not the primary, nor the last ones, if they are needed."""
        if _is_enough(self.settings, self.roster.without(hosts, self.settings.nodes, self.now_s)):
            return hosts
        others = hosts - {self.roster.primary}
        if self.settings.exhaust_resources and not self.status_without(others).roster.can_run:
            return others - {*self.roster.active}
        return others


@dataclass(frozen=True, slots=True)
class Rule:
    """What to do about a kind of event; ``when`` and ``then`` say in words what ``applies`` and ``decision`` do."""

    event: type
    when: str
    then: str
    applies: Callable[[Case], bool]
    decision: Callable[[Case], Decision]


@dataclass(frozen=True, slots=True)
class Limit:
    """What ends the job instead of a relaunch.

    ``reached`` takes the settings and the status that the job would have after the relaunch; it returns the reason to
    end, or None.
    """

    when: str
    exit_code: int
    reached: Callable[[Settings, JobStatus], str | None]


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
    after = replace(back, roster=_without(case.settings, back.roster, frozenset(), case.now_s))
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
            and _is_enough(c.settings, c.status_without(frozenset({c.event.host})).roster)
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
        lambda c: End(EXIT_TOO_FEW_NODES, f"{_too_few(c.settings, c.status)}; {_missing(c)}"),
    ),
)


def _without(settings: Settings, roster: Roster, hosts: frozenset[str], now_s: float, *, lost: bool = False) -> Roster:
    """Return the roster without some hosts; the primary's devices are used again if the others are too few."""
    after = roster.without(hosts, settings.nodes, now_s, lost=lost)
    if _is_enough(settings, after):
        return after
    again = after.readmitting(after.primary).without(frozenset(), settings.nodes, now_s)
    return again if _is_enough(settings, again) else after


def _is_enough(settings: Settings, roster: Roster) -> bool:
    return roster.can_run and len(roster.active) >= _needed(settings)


def _needed(settings: Settings) -> int:
    return 1 if settings.exhaust_resources else settings.nodes


def _too_few(settings: Settings, status: JobStatus) -> str | None:
    roster = status.roster
    if _is_enough(settings, roster):
        return None
    left = len(roster.active)
    if left >= _needed(settings):
        return f"no node with devices is left: {abbreviated(roster.active)} cannot run the program"
    if settings.exhaust_resources:
        return (
            f"no node is left to run the program: the primary, {roster.primary}, has no processors and no GPUs for it"
        )
    good = "1 good node is" if left == 1 else f"{left} good nodes are"
    return f"{good} left for --nodes={settings.nodes}; --exhaust-resources would go on with fewer"


def _missing(case: Case) -> str:
    waited_s = case.now_s - (case.status.waits_since_s or case.now_s)
    lost = case.roster.lost_hosts
    return f"{abbreviated(lost)} {'has' if len(lost) == 1 else 'have'} not returned within {duration(waited_s)}"


def _may_wait(settings: Settings, status: JobStatus) -> bool:
    """Return whether there would be enough nodes if the lost ones returned."""
    n_hoped = len(status.roster.active) + len(status.roster.lost_hosts)
    return settings.wait_for_nodes_s > 0 and n_hoped >= _needed(settings)


def _no_progress(_: Settings, status: JobStatus) -> str | None:
    if status.launches_without_progress < MAX_LAUNCHES_WITHOUT_PROGRESS:
        return None
    return (
        f"{status.launches_without_progress} launches in a row made no progress: no commit to State, no step reported"
    )


def _budget(settings: Settings, status: JobStatus) -> str | None:
    if settings.max_restarts is None or len(status.relaunched_s) <= settings.max_restarts:
        return None
    return f"--max-restarts={settings.max_restarts} is used up"


def _storm(settings: Settings, status: JobStatus) -> str | None:
    recent = sum(moment > status.launched_s - STORM_WINDOW_S for moment in status.relaunched_s)
    if recent <= settings.max_restarts_per_hour:
        return None
    return f"--max-restarts-per-hour={settings.max_restarts_per_hour} is used up"


TOO_FEW = Limit(
    "fewer than `--nodes` good nodes are left, or with `--exhaust-resources` none that can run the program (none with "
    "devices, if the job began with any), and there are not enough lost ones to wait for",
    EXIT_TOO_FEW_NODES,
    _too_few,
)
LIMITS: Sequence[Limit] = (
    TOO_FEW,
    Limit("the last three launches made no progress", EXIT_NO_PROGRESS, _no_progress),
    Limit("`--max-restarts` is used up", EXIT_NO_PROGRESS, _budget),
    Limit("`--max-restarts-per-hour` is used up", EXIT_NO_PROGRESS, _storm),
)


def begin(
    settings: Settings,
    hosts: Sequence[str],
    remembered: Sequence[Exclusion],
    now_s: float,
    strikes: Sequence[Strike] = (),
    *,
    with_devices: frozenset[str] = frozenset(),
    book_keeper: bool = False,
    missing: Collection[str] = (),
    withheld: Collection[str] = (),
) -> JobStatus | End:
    """Return the status of a job that begins, or its end where exclusions by earlier jobs leave too few nodes.

    Nodes that were only lost are back, unless they are missing.

    Parameters
    ----------
    settings
        What the user asked for.
    hosts
        The nodes of the allocation; the first one is the primary. If it is remembered as excluded, its devices are used
        only where they are needed.
    remembered
        Exclusions by earlier jobs, those that are over included.
    now_s
        Unix time.
    strikes
        Strikes by earlier jobs.
    with_devices
        The nodes that have devices.
    book_keeper
        Whether the primary cannot run programs at all.
    missing
        Nodes that do not answer: they are lost.
    withheld
        Nodes with which something is wrong, as the resource manager says: they are used only if there are no others.
    """
    quarantine_s = settings.quarantine_s
    hosts, primary = hosts[1:] if book_keeper else hosts, hosts[0]
    known = [e for e in remembered if e.host in hosts and e.until_s(quarantine_s) > now_s - MEMORY_S]
    over = [e for e in known if e.until_s(quarantine_s) <= now_s]
    back = [e for e in known if e in over or (e.lost and strikes_of(e.host, strikes, now_s) < MAX_STRIKES)]
    excluded = tuple(replace(e, lost=False) for e in known if e not in back)
    out = {e.host for e in excluded}
    last = {*(e.host for e in back), *withheld} - {primary, *out}
    good = (*(h for h in hosts if h not in out | last), *(h for h in hosts if h in last))
    served = {e.host: e.until_s(quarantine_s) for e in over if not e.lost}
    of_others = (strike for strike in strikes if strike.host not in served)
    counting = recent_strikes((*of_others, *(Strike(*each) for each in served.items())), now_s)
    past = tuple(kept for e in back if (kept := e.kept()))
    needed = with_devices if not with_devices.isdisjoint(hosts[: settings.nodes]) else frozenset[str]()
    roster = Roster((), good, excluded, past, primary, needed)
    status = JobStatus(_without(settings, roster, frozenset(), now_s), now_s, strikes=counting)
    for host in (host for host in hosts if host in missing):
        status = _begin_without(settings, status, host)
    if reason := _too_few(settings, status):
        way_out = f", and --quarantine=1 would take {abbreviated(sorted(out))} back" if out else ""
        return End(EXIT_TOO_FEW_NODES, f"{reason}{way_out}")
    return status


def _begin_without(settings: Settings, status: JobStatus, host: str) -> JobStatus:
    """Return the status with a node lost before the first launch: a strike, as for every loss."""
    case = Case(settings, status, NodeLost(host), status.launched_s, progressed=False)
    return replace(case.status_without(frozenset({host}), lost=True), strikes=case.with_strike(host))


def decide(settings: Settings, status: JobStatus, event: Event, *, now_s: float, progressed: bool) -> Decision:
    """Return what to do about an event.

    Parameters
    ----------
    settings, status
        What the user asked for, and where the job stands.
    event
        What happened.
    now_s
        Unix time.
    progressed
        Whether the current launch has committed anything to State, or has reported a step.
    """
    made_progress = progressed or now_s - status.launched_s >= LONG_LAUNCH_S
    case = Case(settings, status, event, now_s, made_progress)
    rule = next(rule for rule in RULES if isinstance(event, rule.event) and rule.applies(case))
    decision = rule.decision(case)
    if isinstance(decision, Relaunch):
        return _within_limits(case, decision)
    if isinstance(decision, Report) and status.waits_since_s is not None and not _may_wait(settings, decision.status):
        reason = f"{decision.reason}; {_too_few(settings, decision.status)}"
        return End(EXIT_TOO_FEW_NODES, reason, decision.status)
    return decision


def _within_limits(case: Case, decision: Relaunch) -> Relaunch | End:
    """Return a relaunch with its count, one that waits for lost nodes, or the end of the job at a limit."""
    settings, status, now_s = case.settings, case.status, case.now_s
    after = decision.status
    if status.waits_since_s is None:  # else there was no launch since the last relaunch, which is counted
        after = replace(
            after,
            launched_s=now_s,
            relaunched_s=(*status.relaunched_s, now_s),
            launches_without_progress=0 if case.progressed else status.launches_without_progress + 1,
        )
    if case.roster.is_book_keeper != after.roster.is_book_keeper:
        decision = replace(decision, new_cluster=True)  # Ray's head is started with or without its devices
    waits = _too_few(settings, after) is not None and _may_wait(settings, after)
    for limit in LIMITS:
        if (reason := limit.reached(settings, after)) and not (limit is TOO_FEW and waits):
            return End(limit.exit_code, f"{reason}{_last_trouble(case.event)}", after)
    if not waits:
        return replace(decision, status=replace(after, launched_s=now_s, waits_since_s=None))
    since_s = now_s if status.waits_since_s is None else status.waits_since_s
    left_s = since_s + settings.wait_for_nodes_s - now_s
    waiting = f"waiting up to {duration(max(0.0, left_s))} for {abbreviated(after.roster.lost_hosts)} to return"
    reason = decision.reason
    if reason.endswith(ALONE):  # nobody goes on
        reason = reason.rpartition("; ")[0]
    return replace(decision, status=replace(after, waits_since_s=since_s), reason=f"{reason}; {waiting}")


def _last_trouble(event: Event) -> str:
    match event:
        case ProgramFailed(failure):
            return f"; the last failure: {failure.sentence}"
        case ProgramHung():
            return f"; the last hang: {event.sentence}"
        case _:
            return ""


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

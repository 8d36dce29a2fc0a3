"""The restart policy: what to do about what happened. Pure: no clock, no process, no network.

`decide` takes the first rule of `RULES` that applies to an event. If its decision is a relaunch, `LIMITS` are checked,
and the first limit that is reached ends the job instead. ``docs/restart.md`` shows both lists as tables, generated from
this module.

The primary node is never excluded: `begin` always takes it, and `Case.excludable`, the only place where accused hosts
become hosts to exclude, leaves it out. If it is lost while the controller still runs, it is used again with a new
cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from laggard.resilience.decision.backoff import backoff_s
from laggard.resilience.decision.failure import Failure
from laggard.resilience.decision.roster import Exclusion, Roster
from laggard.resilience.text import duration

__all__ = [
    "EXIT_NO_PROGRESS",
    "EXIT_TOO_FEW_NODES",
    "LIMITS",
    "RULES",
    "Decision",
    "End",
    "Event",
    "JobStatus",
    "Limit",
    "NodeLost",
    "NodesAccused",
    "OnFailure",
    "ProgramEnded",
    "ProgramFailed",
    "ProgramHung",
    "Relaunch",
    "Report",
    "Rule",
    "Settings",
    "Strike",
    "begin",
    "decide",
]

EXIT_TOO_FEW_NODES = 69
EXIT_NO_PROGRESS = 93
MAX_LAUNCHES_WITHOUT_PROGRESS = 3
# A program may write checkpoints of its own that we know nothing of: a launch this long counts as progress.
LONG_LAUNCH_S = 3600.0
STORM_WINDOW_S = 3600.0
# A node is excluded at its second strike within a day.
MAX_STRIKES = 2
STRIKE_WINDOW_S = 86400.0
# Strikes on more than a quarter of the nodes within ten minutes have a cause that the nodes share.
SHARED_WINDOW_S = 600.0
SHARED_PART = 0.25
MAX_BACKOFF_S = 300.0

OnFailure = Literal["relaunch", "end"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user asked for.

    Attributes
    ----------
    nodes
        Nodes in use.
    resilient
        Whether to relaunch at all.
    exhaust_resources
        Whether to continue with fewer nodes, down to the primary alone.
    quarantine_s
        How long a node stays excluded, in seconds.
    max_restarts
        Most relaunches in total; ``None``: no limit.
    max_restarts_per_hour
        Most relaunches within any hour.
    on_failure
        What to do when the program fails, with ``resilient``.
    backoff_s
        How long to wait before the second relaunch in a row after failures without progress; each time twice as long.
    """

    nodes: int
    resilient: bool = False
    exhaust_resources: bool = False
    quarantine_s: float = 86400.0
    max_restarts: int | None = None
    max_restarts_per_hour: int = 60
    on_failure: OnFailure = "relaunch"
    backoff_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Strike:
    """A failure that began on a node, without evidence that the node is to blame."""

    host: str
    time_s: float


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Where the job stands: everything that the policy remembers from one event to the next.

    Attributes
    ----------
    roster
        Which node does what.
    launched_s
        Unix time at which the latest launch was decided on.
    relaunched_s
        Unix time of each relaunch so far.
    launches_without_progress
        How many launches in a row ended without progress.
    strikes
        The nodes on which failures began, and when.
    failures_in_a_row
        How many failures there were since the last progress.
    last_failure
        Fingerprint of the latest of them; empty if there was none.
    """

    roster: Roster
    launched_s: float
    relaunched_s: tuple[float, ...] = ()
    launches_without_progress: int = 0
    strikes: tuple[Strike, ...] = ()
    failures_in_a_row: int = 0
    last_failure: str = ""


@dataclass(frozen=True, slots=True)
class ProgramEnded:
    """The program ended with exit code 0."""


@dataclass(frozen=True, slots=True)
class ProgramFailed:
    """The program exited with an error, or was killed by a signal that we did not send."""

    failure: Failure
    evidence: tuple[tuple[str, str], ...] = ()  # hosts, and what was found on each when it was checked


@dataclass(frozen=True, slots=True)
class ProgramHung:
    """The program hangs: it has shown no sign of life for too long.

    Attributes
    ----------
    silent_s
        For how many seconds.
    silent
        Who was silent, if not all: ``from rank 3 on node2``.
    stacks
        Where its ranks stand, in one sentence; empty if that is not known.
    suspect
        The node of the rank that the others wait for; empty if that is not known.
    """

    silent_s: float
    silent: str = ""
    stacks: str = ""
    suspect: str = ""

    @property
    def sentence(self) -> str:
        """The hang in one sentence."""
        silent = f" {self.silent}" if self.silent else ""
        stacks = f": {self.stacks}" if self.stacks else ""
        return f"no sign of life{silent} for {self.silent_s:.0f} s{stacks}"


@dataclass(frozen=True, slots=True)
class NodesAccused:
    """A detector, or the program itself, asks for a relaunch without some nodes (or on the same ones)."""

    hosts: frozenset[str]


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node does not answer, or its processes have ended."""

    host: str
    why: str = ""


Event = ProgramEnded | ProgramFailed | ProgramHung | NodesAccused | NodeLost


@dataclass(frozen=True, slots=True)
class Relaunch:
    """Begin the next launch.

    Attributes
    ----------
    status
        The job's status from now on.
    reason
        Why, and on which nodes.
    new_cluster
        Whether a new Ray cluster is needed, since the old one has lost its head.
    wait_s
        How long to wait before it, in seconds.
    """

    status: JobStatus
    reason: str
    new_cluster: bool = False
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class End:
    """End the job; ``status``: the new status of the job, if the event changed it."""

    exit_code: int
    reason: str
    status: JobStatus | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Report:
    """Let the program go on, and tell the user why."""

    status: JobStatus
    reason: str


Decision = Relaunch | End | Report


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
        """The accused hosts that may be excluded: those in use or in reserve, and never the primary."""
        accused: frozenset[str] = self.event.hosts
        return accused & {*self.roster.active, *self.roster.reserve} - {self.roster.primary}

    @property
    def failure(self) -> Failure:
        """Why the program failed."""
        failure: Failure = self.event.failure
        return failure

    @property
    def proven(self) -> frozenset[str]:
        """The nodes in use, but for the primary, that were found bad when they were checked."""
        return frozenset(host for host, _ in self.event.evidence) & frozenset(self.roster.active[1:])

    @property
    def suspect(self) -> str:
        """The node that may be to blame for a failure or a hang; empty if there is none."""
        if isinstance(self.event, ProgramHung):
            return self.event.suspect
        return self.failure.host if self.failure.response == "strike" else ""

    @property
    def struck(self) -> bool:
        """Whether this is a strike against the suspect: not if several nodes fail for a reason that they share."""
        if not self.suspect or self.suspect == self.roster.primary:
            return False  # the primary is never excluded, so its strikes would lead to nothing
        recent = {strike.host for strike in self._strikes(SHARED_WINDOW_S)} | {self.suspect}
        n_nodes = len({*self.roster.active, *self.roster.reserve})
        return len(recent) < 2 or len(recent) <= SHARED_PART * n_nodes

    @property
    def strikes(self) -> int:
        """How many strikes the suspect has, this one included."""
        return 1 + sum(strike.host == self.suspect for strike in self._strikes(STRIKE_WINDOW_S))

    @property
    def is_struck_out(self) -> bool:
        """Whether the suspect has its last strike, and the job can go on without it."""
        host = self.suspect
        if not self.struck or self.strikes < MAX_STRIKES or host not in self.roster.active[1:]:
            return False
        return _too_few(self.settings, self.status_without(frozenset({host}))) is None

    def _strikes(self, window_s: float) -> list[Strike]:
        return [strike for strike in self.status.strikes if strike.time_s > self.now_s - window_s]

    def status_without(self, hosts: frozenset[str], *, lost: bool = False) -> JobStatus:
        """Return the job's status with some hosts excluded, and free places filled from the reserve.

        There may be free places although no host is excluded: a job that went on with fewer nodes grows back.
        """
        return replace(self.status, roster=self.roster.without(hosts, self.settings.nodes, self.now_s, lost=lost))


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


def _without_lost(case: Case) -> Decision:
    after = case.status_without(frozenset({case.event.host}), lost=True)
    return Relaunch(after, f"{_lost(case)}; {_describe_change(case.roster, after.roster)}")


def _lost(case: Case) -> str:
    why = f" ({case.event.why})" if case.event.why else ""
    return f"{case.event.host} is lost{why}"


def _end_of_program(case: Case, remark: str) -> End:
    sentence = case.failure.sentence
    return End(case.failure.job_exit_code, f"{sentence}; {remark}" if remark else sentence)


def _after_hang(case: Case, excluded: frozenset[str]) -> Relaunch:
    strikes = (*case.status.strikes, *([Strike(case.suspect, case.now_s)] if case.struck else []))
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
        case.status_without(excluded),
        strikes=(
            *case.status.strikes,
            *([Strike(failure.host, case.now_s)] if case.struck and not case.proven else []),
        ),
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
        "a check of the nodes in use finds a bad one: a GPU is lost or has new memory errors, a disk is full",
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
        "of the accused nodes only the primary is in use",
        "report: the primary is never excluded",
        lambda c: not c.excludable and c.roster.primary in c.event.hosts,
        lambda c: Report(c.status, "the primary is never excluded"),
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
        lambda c: Report(c.status_without(c.excludable), "removed from the reserve"),
    ),
    Rule(
        NodesAccused,
        "",
        "relaunch without them (none named: on the same nodes)",
        _always,
        _without_accused,
    ),
    Rule(
        NodeLost,
        "it is not in use",
        "drop it from the job",
        lambda c: c.event.host not in c.roster.active,
        lambda c: Report(replace(c.status, roster=c.roster.with_lost(c.event.host)), f"{_lost(c)}, but was not in use"),
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
        lambda c: Relaunch(c.status, f"Ray's head on {_lost(c)}; starting a new cluster", new_cluster=True),
    ),
    Rule(NodeLost, "", "relaunch without it", _always, _without_lost),
)


def _too_few(settings: Settings, status: JobStatus) -> str | None:
    left = len(status.roster.active)
    if left >= settings.nodes or settings.exhaust_resources:
        return None
    good = "1 good node is" if left == 1 else f"{left} good nodes are"
    return f"{good} left for --nodes={settings.nodes}; --exhaust-resources would go on with fewer"


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


LIMITS: Sequence[Limit] = (
    Limit("fewer than `--nodes` good nodes are left, without `--exhaust-resources`", EXIT_TOO_FEW_NODES, _too_few),
    Limit("the last three launches made no progress", EXIT_NO_PROGRESS, _no_progress),
    Limit("`--max-restarts` is used up", EXIT_NO_PROGRESS, _budget),
    Limit("`--max-restarts-per-hour` is used up", EXIT_NO_PROGRESS, _storm),
)


def begin(settings: Settings, hosts: Sequence[str], remembered: Sequence[Exclusion], now_s: float) -> JobStatus | End:
    """Return the status of a job that begins, or its end where exclusions by earlier jobs leave too few nodes.

    Parameters
    ----------
    settings
        What the user asked for.
    hosts
        The nodes of the allocation; the first one is the primary and is used even if it is remembered as excluded.
    remembered
        Exclusions by earlier jobs.
    now_s
        Unix time.
    """
    others = {*hosts[1:]}
    excluded = tuple(e for e in remembered if e.since_s > now_s - settings.quarantine_s and e.host in others)
    out = {exclusion.host for exclusion in excluded}
    good = tuple(host for host in hosts if host not in out)
    status = JobStatus(Roster(good[: settings.nodes], good[settings.nodes :], excluded), now_s)
    if reason := _too_few(settings, status):
        return End(EXIT_TOO_FEW_NODES, f"{reason}, and --quarantine=1 would take {', '.join(sorted(out))} back")
    return status


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
    status = replace(status, roster=status.roster.readmitting(now_s - settings.quarantine_s))
    made_progress = progressed or now_s - status.launched_s >= LONG_LAUNCH_S
    case = Case(settings, status, event, now_s, made_progress)
    rule = next(rule for rule in RULES if isinstance(event, rule.event) and rule.applies(case))
    decision = rule.decision(case)
    if not isinstance(decision, Relaunch):
        return decision
    after = replace(
        decision.status,
        launched_s=now_s,
        relaunched_s=(*status.relaunched_s, now_s),
        launches_without_progress=0 if made_progress else status.launches_without_progress + 1,
    )
    for limit in LIMITS:
        if reason := limit.reached(settings, after):
            return End(limit.exit_code, f"{reason}{_last_trouble(event)}", after)
    return replace(decision, status=after)


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
    came = [host for host in after.active if host not in stay]
    if not gone:
        return f"with {', '.join(came)} from the reserve" if came else "on the same nodes"
    swap = f"; {', '.join(came)} comes in from the reserve" if came else ""
    alone = "; the primary goes on alone" if len(after.active) == 1 else ""
    return f"without {', '.join(gone)}{swap}{alone}"

"""The restart policy: from what happened to what to do. Pure: no clock, no process, no network.

The first rule of `RULES` that fits an event makes the decision; a relaunch is then held against `LIMITS`, the first of
which that is reached ends the job in its place. ``docs/restart.md`` shows both as tables, drawn from these lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from resilience.roster import Exclusion, Roster

__all__ = [
    "EXIT_NO_PROGRESS",
    "EXIT_TOO_FEW_NODES",
    "LIMITS",
    "RULES",
    "Decision",
    "End",
    "Event",
    "Limit",
    "NodeLost",
    "NodesAccused",
    "ProgramDied",
    "ProgramEnded",
    "ProgramHung",
    "Relaunch",
    "Report",
    "Rule",
    "Settings",
    "Standing",
    "WorkerDied",
    "begin",
    "decide",
]

EXIT_TOO_FEW_NODES = 69
EXIT_NO_PROGRESS = 93
MAX_LAUNCHES_WITHOUT_PROGRESS = 3
# A program may keep checkpoints of its own, of which we see nothing: one that ran this long did not run in vain.
LONG_LAUNCH_S = 3600.0
STORM_WINDOW_S = 3600.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user asked for.

    Attributes
    ----------
    nodes
        Nodes in use.
    resilient
        Relaunch at all.
    exhaust_resources
        Go on with fewer nodes, down to the primary alone.
    quarantine_s
        How long a node stays excluded.
    max_restarts
        Relaunches in all; ``None``: no limit.
    max_restarts_per_hour
        Relaunches within any hour.
    """

    nodes: int
    resilient: bool = False
    exhaust_resources: bool = False
    quarantine_s: float = 86400.0
    max_restarts: int | None = None
    max_restarts_per_hour: int = 60


@dataclass(frozen=True, slots=True)
class Standing:
    """How the job stands: all that the policy remembers.

    Attributes
    ----------
    roster
        Which node does what.
    launched_s
        When the newest launch was decided, as Unix time.
    relaunched_s
        When each relaunch so far was decided.
    barren
        Launches in a row that ended without progress.
    """

    roster: Roster
    launched_s: float
    relaunched_s: tuple[float, ...] = ()
    barren: int = 0


@dataclass(frozen=True, slots=True)
class ProgramEnded:
    """The program ended by itself."""

    exit_code: int


@dataclass(frozen=True, slots=True)
class ProgramDied:
    """The program was ended by a signal that we did not send."""

    signal: int


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """The program ended with an error after one of its workers had been killed."""

    exit_code: int


@dataclass(frozen=True, slots=True)
class ProgramHung:
    """The program hangs: it showed no sign of progress for this long."""

    silent_s: float


@dataclass(frozen=True, slots=True)
class NodesAccused:
    """A detector's restart verdict, or the program's own wish, to go on without these hosts (none: the same nodes)."""

    hosts: frozenset[str]


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node does not answer, or its processes have ended."""

    host: str


Event = ProgramEnded | ProgramDied | WorkerDied | ProgramHung | NodesAccused | NodeLost


@dataclass(frozen=True, slots=True)
class Relaunch:
    """Begin the next launch; ``anew``: with a new Ray cluster, since the old one has lost its head."""

    standing: Standing
    reason: str
    anew: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """End the job; ``standing``: what is to be remembered, where it has changed."""

    exit_code: int
    reason: str
    standing: Standing | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Report:
    """Let the program go on, and tell the user."""

    standing: Standing
    reason: str


Decision = Relaunch | End | Report


@dataclass(frozen=True, slots=True)
class Case:
    """One event, and all that a rule may look at."""

    settings: Settings
    standing: Standing
    event: Any  # of the type that the rule is for
    now_s: float

    @property
    def roster(self) -> Roster:
        """Which node does what."""
        return self.standing.roster

    @property
    def bad(self) -> frozenset[str]:
        """The accused hosts that can be done without."""
        hosts: frozenset[str] = self.event.hosts
        return hosts & {*self.roster.active, *self.roster.reserve} - {self.roster.primary}

    def lacks(self, hosts: frozenset[str], *, lost: bool = False) -> Standing:
        """Return how the job stands without some hosts."""
        return replace(self.standing, roster=self.roster.without(hosts, self.settings.nodes, self.now_s, lost=lost))


@dataclass(frozen=True, slots=True)
class Rule:
    """What to do about an event; ``when`` and ``then`` say in words what ``holds`` and ``decision`` do."""

    event: type
    when: str
    then: str
    holds: Callable[[Case], bool]
    decision: Callable[[Case], Decision]


@dataclass(frozen=True, slots=True)
class Limit:
    """What ends the job in place of a relaunch.

    ``reached`` takes the settings and how the job would stand, and returns the reason, or None.
    """

    when: str
    exit_code: int
    reached: Callable[[Settings, Standing], str | None]


def _always(_: Case) -> bool:
    return True


def _plain(case: Case) -> bool:
    return not case.settings.resilient


def _same_nodes(reason: Callable[[Any], str]) -> Callable[[Case], Decision]:
    return lambda case: Relaunch(case.standing, reason(case.event))


def _swap(hosts: Callable[[Case], frozenset[str]], *, lost: bool = False) -> Callable[[Case], Decision]:
    def decision(case: Case) -> Decision:
        after = case.lacks(hosts(case), lost=lost)
        return Relaunch(after, _change(case.roster, after.roster))

    return decision


SAME = "relaunch on the same nodes"
RULES: Sequence[Rule] = (
    Rule(
        ProgramEnded,
        "",
        "end with its exit code",
        _always,
        lambda c: End(c.event.exit_code, f"the program ended with exit code {c.event.exit_code}"),
    ),
    Rule(
        ProgramDied,
        "without `--resilient`",
        "end with 128 + signal",
        _plain,
        lambda c: End(
            128 + c.event.signal, f"the program died by signal {c.event.signal}; --resilient would relaunch it"
        ),
    ),
    Rule(ProgramDied, "", SAME, _always, _same_nodes(lambda e: f"the program died by signal {e.signal}")),
    Rule(
        WorkerDied,
        "without `--resilient`",
        "end with its exit code",
        _plain,
        lambda c: End(c.event.exit_code, "a worker was killed and the program failed; --resilient would relaunch it"),
    ),
    Rule(
        WorkerDied,
        "",
        SAME,
        _always,
        _same_nodes(lambda e: f"a worker was killed and the program failed with exit code {e.exit_code}"),
    ),
    Rule(
        ProgramHung,
        "without `--resilient`",
        "report",
        _plain,
        lambda c: Report(c.standing, f"no progress for {c.event.silent_s:.0f} s; --resilient would relaunch it"),
    ),
    Rule(
        ProgramHung, "", SAME, _always, _same_nodes(lambda e: f"the program hangs: no progress for {e.silent_s:.0f} s")
    ),
    Rule(
        NodesAccused,
        "without `--resilient`",
        "report",
        _plain,
        lambda c: Report(c.standing, "without --resilient nothing is relaunched"),
    ),
    Rule(
        NodesAccused,
        "the primary is the only one accused that is in use",
        "report: it is never excluded",
        lambda c: not c.bad and c.roster.primary in c.event.hosts,
        lambda c: Report(c.standing, "the primary is never excluded"),
    ),
    Rule(
        NodesAccused,
        "nobody accused is in use",
        "report",
        lambda c: bool(c.event.hosts) and not c.bad,
        lambda c: Report(c.standing, "it is not in use"),
    ),
    Rule(
        NodesAccused,
        "only nodes of the reserve are accused",
        "exclude them, without a relaunch",
        lambda c: bool(c.bad) and c.bad.isdisjoint(c.roster.active),
        lambda c: Report(c.lacks(c.bad), "taken from the reserve"),
    ),
    Rule(NodesAccused, "", "relaunch without them (nobody named: on the same nodes)", _always, _swap(lambda c: c.bad)),
    Rule(
        NodeLost,
        "it is not in use",
        "forget it",
        lambda c: c.event.host not in c.roster.active,
        lambda c: Report(
            replace(c.standing, roster=c.roster.with_lost(c.event.host)), f"{c.event.host} is lost and was not in use"
        ),
    ),
    Rule(
        NodeLost,
        "without `--resilient`",
        "end with 69",
        _plain,
        lambda c: End(EXIT_TOO_FEW_NODES, f"node {c.event.host} is lost; --resilient would relaunch without it"),
    ),
    Rule(
        NodeLost,
        "it is the primary: Ray's head or its agent ended, but we still run",
        "relaunch on the same nodes, with a new Ray cluster",
        lambda c: c.event.host == c.roster.primary,
        lambda c: Relaunch(c.standing, f"Ray's head on {c.event.host} is lost; a new cluster comes up", anew=True),
    ),
    Rule(NodeLost, "", "relaunch without it", _always, _swap(lambda c: frozenset({c.event.host}), lost=True)),
)


def _too_few(settings: Settings, standing: Standing) -> str | None:
    left = len(standing.roster.active)
    if left >= settings.nodes or settings.exhaust_resources:
        return None
    return f"{left} good nodes are left and --nodes is {settings.nodes}; --exhaust-resources would go on"


def _no_progress(_: Settings, standing: Standing) -> str | None:
    if standing.barren < MAX_LAUNCHES_WITHOUT_PROGRESS:
        return None
    return f"{standing.barren} launches in a row committed nothing to State"


def _budget(settings: Settings, standing: Standing) -> str | None:
    if settings.max_restarts is None or len(standing.relaunched_s) <= settings.max_restarts:
        return None
    return f"--max-restarts={settings.max_restarts} are used up"


def _storm(settings: Settings, standing: Standing) -> str | None:
    recent = sum(moment > standing.launched_s - STORM_WINDOW_S for moment in standing.relaunched_s)
    if recent <= settings.max_restarts_per_hour:
        return None
    return f"--max-restarts-per-hour={settings.max_restarts_per_hour} are used up"


LIMITS: Sequence[Limit] = (
    Limit("fewer than `--nodes` good nodes are left, without `--exhaust-resources`", EXIT_TOO_FEW_NODES, _too_few),
    Limit("the last three launches made no progress", EXIT_NO_PROGRESS, _no_progress),
    Limit("`--max-restarts` are used up", EXIT_NO_PROGRESS, _budget),
    Limit("`--max-restarts-per-hour` are used up", EXIT_NO_PROGRESS, _storm),
)


def begin(settings: Settings, hosts: Sequence[str], remembered: Sequence[Exclusion], now_s: float) -> Standing | End:
    """Return how a job begins on an allocation, with the exclusions of the jobs before it.

    The first host is the primary, and is taken whatever is remembered of it.
    """
    others = {*hosts[1:]}
    excluded = tuple(e for e in remembered if e.since_s > now_s - settings.quarantine_s and e.host in others)
    out = {exclusion.host for exclusion in excluded}
    good = tuple(host for host in hosts if host not in out)
    standing = Standing(Roster(good[: settings.nodes], good[settings.nodes :], excluded), now_s)
    if reason := _too_few(settings, standing):
        return End(EXIT_TOO_FEW_NODES, f"{reason}, and --quarantine=1 would take back {', '.join(sorted(out))}")
    return standing


def decide(settings: Settings, standing: Standing, event: Event, *, now_s: float, progressed: bool) -> Decision:
    """Return what to do about an event.

    Parameters
    ----------
    settings, standing
        What the user asked for, and how the job stands.
    event
        What happened.
    now_s
        Unix time.
    progressed
        Whether the launch that runs has committed anything to State, or has told of a step.
    """
    standing = replace(standing, roster=standing.roster.readmitting(now_s - settings.quarantine_s))
    case = Case(settings, standing, event, now_s)
    rule = next(rule for rule in RULES if isinstance(event, rule.event) and rule.holds(case))
    decision = rule.decision(case)
    if not isinstance(decision, Relaunch):
        return decision
    fruitful = progressed or now_s - standing.launched_s >= LONG_LAUNCH_S
    after = replace(
        decision.standing,
        launched_s=now_s,
        relaunched_s=(*standing.relaunched_s, now_s),
        barren=0 if fruitful else standing.barren + 1,
    )
    for limit in LIMITS:
        if reason := limit.reached(settings, after):
            return End(limit.exit_code, reason, after)
    return replace(decision, standing=after)


def _change(before: Roster, after: Roster) -> str:
    stay = {*before.active} & {*after.active}
    gone = [host for host in before.active if host not in stay]
    came = [host for host in after.active if host not in stay]
    if not gone:
        return "on the same nodes"
    swap = f"; {', '.join(came)} comes in from the reserve" if came else ""
    alone = "; the primary goes on alone" if len(after.active) == 1 else ""
    return f"without {', '.join(gone)}{swap}{alone}"

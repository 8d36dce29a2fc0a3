"""The restart policy: from what happened to what to do. Pure: no clock, no process, no network.

====================================  =============================================================================
event                                 decision
====================================  =============================================================================
program ended by itself               end with its exit code
restart verdict, or the program asks  relaunch without the bad nodes; against the primary, or without
                                      ``--resilient``: report
node lost                             primary: end with 69; active: relaunch without it; reserve: forget it
program died by a signal              relaunch on the same nodes; after three launches without progress: end with 93
====================================  =============================================================================

A relaunch fills the places that became free from the reserve. Too few nodes left: with ``--exhaust-resources`` it goes
on with fewer, down to the primary alone; otherwise the job ends with 69. Without ``--resilient`` nothing is relaunched.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

__all__ = [
    "EXIT_NO_PROGRESS",
    "EXIT_TOO_FEW_NODES",
    "Decision",
    "End",
    "Event",
    "NodeLost",
    "NodesAccused",
    "ProgramDied",
    "ProgramEnded",
    "Relaunch",
    "Report",
    "Roster",
    "Settings",
    "decide",
]

EXIT_TOO_FEW_NODES = 69
EXIT_NO_PROGRESS = 93
MAX_LAUNCHES_WITHOUT_PROGRESS = 3


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user asked for: nodes in use, and how far to go when there are fewer."""

    nodes: int
    resilient: bool = False
    exhaust_resources: bool = False


@dataclass(frozen=True, slots=True)
class Roster:
    """Which node does what, by host name. The first active node is the primary."""

    active: tuple[str, ...]
    reserve: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()

    @property
    def primary(self) -> str:
        """The node that holds the state server and the controller."""
        return self.active[0]

    def without(self, hosts: frozenset[str], places: int) -> Roster:
        """Return the roster without the given hosts, its ``places`` filled from the reserve in order."""
        good = [host for host in self.active if host not in hosts]
        waiting = [host for host in self.reserve if host not in hosts]
        free = max(0, places - len(good))
        gone = [host for host in (*self.active, *self.reserve) if host in hosts]
        return Roster((*good, *waiting[:free]), tuple(waiting[free:]), (*self.excluded, *gone))


@dataclass(frozen=True, slots=True)
class ProgramEnded:
    """The program ended by itself."""

    exit_code: int


@dataclass(frozen=True, slots=True)
class ProgramDied:
    """The program was ended by a signal that we did not send.

    ``launches_without_progress`` counts the launches in a row, this one included, that committed nothing to State.
    """

    signal: int
    launches_without_progress: int = 0


@dataclass(frozen=True, slots=True)
class NodesAccused:
    """A detector's restart verdict, or the program's own wish, to go on without these hosts (none: the same nodes)."""

    hosts: frozenset[str]


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node does not answer, or its processes have ended."""

    host: str


Event = ProgramEnded | ProgramDied | NodesAccused | NodeLost


@dataclass(frozen=True, slots=True)
class Relaunch:
    """Begin the next launch with this roster."""

    roster: Roster
    reason: str


@dataclass(frozen=True, slots=True)
class End:
    """End the job."""

    exit_code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """Go on, with this roster, and tell the user."""

    roster: Roster
    reason: str


Decision = Relaunch | End | Report


def decide(settings: Settings, roster: Roster, event: Event) -> Decision:
    """Return what to do about an event."""
    match event:
        case ProgramEnded(exit_code):
            return End(exit_code, f"the program ended with exit code {exit_code}")
        case ProgramDied(signal, launches):
            return _after_death(settings, roster, signal, launches)
        case NodesAccused(hosts):
            return _after_accusation(settings, roster, hosts)
        case NodeLost(host):
            return _after_loss(settings, roster, host)
    assert_never(event)


def _after_death(settings: Settings, roster: Roster, signal: int, launches_without_progress: int) -> Decision:
    if not settings.resilient:
        return End(128 + signal, f"the program died by signal {signal}; --resilient would relaunch it")
    if launches_without_progress >= MAX_LAUNCHES_WITHOUT_PROGRESS:
        return End(EXIT_NO_PROGRESS, f"{launches_without_progress} launches in a row committed nothing to State")
    return Relaunch(roster, f"the program died by signal {signal}")


def _after_accusation(settings: Settings, roster: Roster, hosts: frozenset[str]) -> Decision:
    bad = hosts & {*roster.active, *roster.reserve} - {roster.primary}
    if not settings.resilient:
        return Report(roster, "without --resilient nothing is relaunched")
    if hosts and not bad:
        why = "the primary is never excluded" if roster.primary in hosts else "it is not in use"
        return Report(roster, why)
    if not bad & {*roster.active} and hosts:
        return Report(roster.without(bad, settings.nodes), "taken from the reserve")
    return _relaunch_without(settings, roster, bad)


def _after_loss(settings: Settings, roster: Roster, host: str) -> Decision:
    if host == roster.primary:
        return End(EXIT_TOO_FEW_NODES, f"the primary node {host} is lost")
    if host not in roster.active:
        remaining = replace(roster, reserve=tuple(h for h in roster.reserve if h != host))
        return Report(remaining, f"{host} was not in use")
    if not settings.resilient:
        return End(EXIT_TOO_FEW_NODES, f"node {host} is lost; --resilient would relaunch without it")
    return _relaunch_without(settings, roster, frozenset({host}))


def _relaunch_without(settings: Settings, roster: Roster, bad: frozenset[str]) -> Decision:
    rest = roster.without(bad, settings.nodes)
    if len(rest.active) < settings.nodes and not settings.exhaust_resources:
        return End(
            EXIT_TOO_FEW_NODES,
            f"{len(rest.active)} good nodes are left and --nodes is {settings.nodes}; --exhaust-resources would go on",
        )
    return Relaunch(rest, _change(roster, rest))


def _change(before: Roster, after: Roster) -> str:
    gone = [host for host in before.active if host not in after.active]
    came = [host for host in after.active if host not in before.active]
    if not gone:
        return "on the same nodes"
    swap = f"; {', '.join(came)} comes in from the reserve" if came else ""
    alone = "; the primary goes on alone" if len(after.active) == 1 else ""
    return f"without {', '.join(gone)}{swap}{alone}"

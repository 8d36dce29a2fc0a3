"""The roster of a job: which nodes are active, in reserve or excluded."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["Exclusion", "Roster"]


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A node in quarantine.

    Attributes
    ----------
    host
        Host name.
    since_s
        Unix time of the exclusion. How long it lasts depends on the settings of the job that reads it.
    lost
        Whether its agent is gone: such a node can only come back in a later job.
    """

    host: str
    since_s: float
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Roster:
    """The nodes by host name. The first active node is the primary."""

    active: tuple[str, ...]
    reserve: tuple[str, ...] = ()
    excluded: tuple[Exclusion, ...] = ()

    @property
    def primary(self) -> str:
        """The node that runs the controller and the state server."""
        return self.active[0]

    @property
    def excluded_hosts(self) -> tuple[str, ...]:
        """Host names of the nodes in quarantine."""
        return tuple(exclusion.host for exclusion in self.excluded)

    def without(self, hosts: frozenset[str], places: int, now_s: float, *, lost: bool = False) -> Roster:
        """Return the roster with some hosts excluded, and its ``places`` filled up from the reserve, in order."""
        good = [host for host in self.active if host not in hosts]
        waiting = [host for host in self.reserve if host not in hosts]
        free = max(0, places - len(good))
        gone = [Exclusion(host, now_s, lost) for host in (*self.active, *self.reserve) if host in hosts]
        return Roster((*good, *waiting[:free]), tuple(waiting[free:]), (*self.excluded, *gone))

    def with_lost(self, host: str) -> Roster:
        """Return the roster after an unused node was lost: it leaves the reserve, or stays excluded for good."""
        excluded = (replace(e, lost=True) if e.host == host else e for e in self.excluded)
        return Roster(self.active, tuple(h for h in self.reserve if h != host), tuple(excluded))

    def readmitting(self, excluded_until_s: float) -> Roster:
        """Return the roster with the nodes that were excluded at or before a moment back, at the end of the reserve."""
        back = [e for e in self.excluded if e.since_s <= excluded_until_s and not e.lost]
        reserve = (*self.reserve, *(e.host for e in back))
        return Roster(self.active, reserve, tuple(e for e in self.excluded if e not in back))

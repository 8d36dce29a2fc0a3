"""Which node does what, and which nodes the job goes on without."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["Exclusion", "Roster"]


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A node in quarantine.

    Attributes
    ----------
    host
        Its host name.
    since_s
        Unix time of the exclusion; the settings of the job that asks say how long it lasts.
    lost
        Whether its agent is gone: then it cannot come back in this job, only in a later one.
    """

    host: str
    since_s: float
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Roster:
    """Which node does what, by host name. The first active node is the primary."""

    active: tuple[str, ...]
    reserve: tuple[str, ...] = ()
    excluded: tuple[Exclusion, ...] = ()

    @property
    def primary(self) -> str:
        """The node that holds the state server and the controller."""
        return self.active[0]

    @property
    def excluded_hosts(self) -> tuple[str, ...]:
        """Host names of the nodes in quarantine."""
        return tuple(exclusion.host for exclusion in self.excluded)

    def without(self, hosts: frozenset[str], places: int, now_s: float, *, lost: bool = False) -> Roster:
        """Return the roster with the given hosts in quarantine, its ``places`` filled from the reserve in order."""
        good = [host for host in self.active if host not in hosts]
        waiting = [host for host in self.reserve if host not in hosts]
        free = max(0, places - len(good))
        gone = [Exclusion(host, now_s, lost) for host in (*self.active, *self.reserve) if host in hosts]
        return Roster((*good, *waiting[:free]), tuple(waiting[free:]), (*self.excluded, *gone))

    def with_lost(self, host: str) -> Roster:
        """Return the roster after a node that was not in use is gone: it leaves the reserve, or stays excluded."""
        excluded = (replace(e, lost=True) if e.host == host else e for e in self.excluded)
        return Roster(self.active, tuple(h for h in self.reserve if h != host), tuple(excluded))

    def readmitting(self, excluded_until_s: float) -> Roster:
        """Return the roster with the nodes that were excluded up to a moment at the end of the reserve."""
        back = [e for e in self.excluded if e.since_s <= excluded_until_s and not e.lost]
        reserve = (*self.reserve, *(e.host for e in back))
        return Roster(self.active, reserve, tuple(e for e in self.excluded if e not in back))

"""The roster of a job: which nodes are active, in reserve or excluded, and which were excluded before. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["MEMORY_S", "Exclusion", "Roster"]

# How many times as long as the first a quarantine may be: by default a week.
LONGEST_QUARANTINE = 7
# Exclusions that are over are remembered for as long as "Revisiting Reliability in Large-Scale ML Research Clusters"
# (HPCA'25) looks back to find the nodes that fail again and again.
MEMORY_S = 28 * 86400.0


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
        Whether the loss of its agent is the only reason: then it comes back as soon as an agent answers there again.
    count
        How often the node has been excluded, this time included.
    """

    host: str
    since_s: float
    lost: bool = False
    count: int = 1

    def until_s(self, quarantine_s: float) -> float:
        """Return the Unix time at which it is over; each quarantine of a node is twice as long as its last."""
        return self.since_s + quarantine_s * min(1 << min(self.count - 1, 32), LONGEST_QUARANTINE)

    def kept(self) -> Exclusion | None:
        """Return what is remembered once the node is back: a loss that cost it no quarantine does not count."""
        count = self.count - self.lost
        return replace(self, lost=False, count=count) if count else None


@dataclass(frozen=True, slots=True)
class Roster:
    """The nodes by host name. The first active node is the primary.

    Attributes
    ----------
    active, reserve
        Nodes in use, and nodes to swap in.
    excluded
        Nodes in quarantine.
    past
        The last exclusion of each node that is back, since its next one lasts longer.
    """

    active: tuple[str, ...]
    reserve: tuple[str, ...] = ()
    excluded: tuple[Exclusion, ...] = ()
    past: tuple[Exclusion, ...] = ()

    @property
    def primary(self) -> str:
        """The node that runs the controller and the state server."""
        return self.active[0]

    @property
    def excluded_hosts(self) -> tuple[str, ...]:
        """Host names of the nodes in quarantine."""
        return tuple(exclusion.host for exclusion in self.excluded)

    @property
    def lost_hosts(self) -> tuple[str, ...]:
        """Host names of the nodes that are excluded only because they are lost."""
        return tuple(exclusion.host for exclusion in self.excluded if exclusion.lost)

    def exclusion_of(self, host: str) -> Exclusion | None:
        """Return the exclusion of a node that is in quarantine."""
        return next((exclusion for exclusion in self.excluded if exclusion.host == host), None)

    def without(self, hosts: frozenset[str], places: int, now_s: float, *, lost: bool = False) -> Roster:
        """Return the roster with some hosts excluded, and its ``places`` filled up from the reserve, in order."""
        good = [host for host in self.active if host not in hosts]
        waiting = [host for host in self.reserve if host not in hosts]
        free = max(0, places - len(good))
        counts = {exclusion.host: exclusion.count for exclusion in self.past}
        gone = [
            Exclusion(host, now_s, lost, counts.get(host, 0) + 1)
            for host in (*self.active, *self.reserve)
            if host in hosts
        ]
        return replace(
            self,
            active=(*good, *waiting[:free]),
            reserve=tuple(waiting[free:]),
            excluded=(*self.excluded, *gone),
            past=tuple(exclusion for exclusion in self.past if exclusion.host not in hosts),
        )

    def with_lost(self, host: str, now_s: float) -> Roster:
        """Return the roster after an unused node was lost; one in quarantine stays there."""
        return self.without(frozenset({host}) & {*self.reserve}, len(self.active), now_s, lost=True)

    def with_renewed(self, renewed: Exclusion) -> Roster:
        """Return the roster with another exclusion in the place of a node's present one."""
        return replace(self, excluded=tuple(renewed if e.host == renewed.host else e for e in self.excluded))

    def readmitting(self, host: str) -> Roster:
        """Return the roster with an excluded node back, at the end of the reserve."""
        over = [exclusion for exclusion in self.excluded if exclusion.host == host]
        return replace(
            self,
            reserve=(*self.reserve, *(exclusion.host for exclusion in over)),
            excluded=tuple(exclusion for exclusion in self.excluded if exclusion.host != host),
            past=(*self.past, *(kept for exclusion in over if (kept := exclusion.kept()))),
        )

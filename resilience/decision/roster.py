"""The roster of a job: which nodes are active, in reserve or excluded, and which were excluded before. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

# How many times as long as the first a quarantine may be: by default a week.
LONGEST_QUARANTINE = 7
# Exclusions that are over are remembered for as long as "Revisiting Reliability in Large-Scale ML Research Clusters"
# (HPCA'25) looks back to find the nodes that fail again and again.
MEMORY_S = 28 * 86400.0


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A node in quarantine."""

    host: str
    since_s: float  # Unix time of the exclusion. How long it lasts depends on the settings of the job that reads it.
    # Whether the loss of its agent is the only reason: then it comes back as soon as an agent answers there again
    lost: bool = False
    count: int = 1  # how often the node has been excluded, this time included

    def until_s(self, quarantine_s: float) -> float:
        """Return the Unix time at which it is over; each quarantine of a node is twice as long as its last."""
        return self.since_s + quarantine_s * min(1 << min(self.count - 1, LONGEST_QUARANTINE), LONGEST_QUARANTINE)

    def kept(self) -> Exclusion | None:
        """Return what is remembered once the node is back: a loss that cost it no quarantine does not count."""
        count = self.count - self.lost
        return replace(self, lost=False, count=count) if count else None


@dataclass(frozen=True, slots=True)
class Roster:
    """The nodes by host name.

    The primary holds State and the controller wherever it stands here. It is the first active node, or it is only the
    job's head-only node: in reserve, in quarantine, or in none of these if it cannot run programs.
    """

    active: tuple[str, ...]  # nodes in use, and nodes to swap in
    reserve: tuple[str, ...] = ()
    excluded: tuple[Exclusion, ...] = ()  # nodes in quarantine; of the primary, only its devices are
    past: tuple[Exclusion, ...] = ()  # the last exclusion of each node that is back, since its next one lasts longer
    primary: str = ""  # the node that runs the controller and the state server; by default the first active one
    # The nodes of which each launch needs one at least; empty: any node will do
    with_devices: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not self.primary:
            object.__setattr__(self, "primary", self.active[0])

    @property
    def up(self) -> tuple[str, ...]:
        """The primary, and the other nodes in use."""
        return (self.primary, *(host for host in self.active if host != self.primary))

    @property
    def is_head_only(self) -> bool:
        """Whether the primary goes on without its devices."""
        return self.primary not in self.active

    @property
    def can_run(self) -> bool:
        """Whether the program can run on the active nodes."""
        return bool(self.active) and not (self.with_devices and self.with_devices.isdisjoint(self.active))

    @property
    def excluded_hosts(self) -> tuple[str, ...]:
        """Host names of the nodes in quarantine, but for the primary, which is never excluded."""
        return tuple(exclusion.host for exclusion in self.excluded if exclusion.host != self.primary)

    @property
    def set_aside(self) -> str:
        """The primary if its devices are in quarantine, else empty."""
        return self.primary if self.exclusion_of(self.primary) else ""

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
        active = [*good, *waiting[:free]]
        return replace(
            self,
            active=tuple(sorted(active, key=lambda host: host != self.primary)),  # the primary first, if it is there
            reserve=tuple(waiting[free:]),
            excluded=(*self.excluded, *gone),
            past=tuple(exclusion for exclusion in self.past if exclusion.host not in hosts),
        )

    def swapping(self, host: str, other: str) -> Roster:
        """Return the roster with a node of the reserve in the place of an active one, which goes to the reserve."""
        return replace(
            self,
            active=tuple(other if each == host else each for each in self.active),
            reserve=(*(each for each in self.reserve if each != other), host),
        )

    def setting_aside(self, host: str) -> Roster:
        """Return the roster with an active node at the end of the reserve, whose first node takes its place."""
        if self.reserve:
            return self.swapping(host, self.reserve[0])
        return replace(self, active=tuple(each for each in self.active if each != host), reserve=(host,))

    def with_lost(self, host: str, now_s: float) -> Roster:
        """Return the roster after an unused node was lost; one in quarantine stays there."""
        return self.without(frozenset({host}) & {*self.reserve}, len(self.active), now_s, lost=True)

    def with_renewed(self, renewed: Exclusion) -> Roster:
        """Return the roster with another exclusion in the place of a node's present one."""
        return replace(self, excluded=tuple(renewed if e.host == renewed.host else e for e in self.excluded))

    def expecting(self, host: str, now_s: float, *, has_devices: bool) -> Roster:
        """Return the roster with a new node, which comes in as a lost one comes back."""
        devices = {host} if has_devices and self.with_devices else frozenset[str]()
        newcomer = Exclusion(host, now_s, lost=True)
        return replace(self, excluded=(*self.excluded, newcomer), with_devices=self.with_devices | devices)

    def readmitting(self, host: str) -> Roster:
        """Return the roster with an excluded node back, at the end of the reserve."""
        over = [exclusion for exclusion in self.excluded if exclusion.host == host]
        return replace(
            self,
            reserve=(*self.reserve, *(exclusion.host for exclusion in over)),
            excluded=tuple(exclusion for exclusion in self.excluded if exclusion.host != host),
            past=(*self.past, *(kept for exclusion in over if (kept := exclusion.kept()))),
        )


def bad_and_well(
    roster: Roster, remembered: Iterable[Exclusion], quarantine_s: float, now_s: float
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the nodes that a job should not get when it is started again, and those that it may get again."""
    known = list(remembered)
    good = {*roster.active, *roster.reserve}
    serving = {each.host for each in known if not each.lost and now_s < each.until_s(quarantine_s)}
    bad = frozenset({*roster.excluded_hosts, *serving} - good)
    return bad, frozenset({*good, *(each.host for each in known)} - bad)

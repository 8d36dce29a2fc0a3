"""Which nodes a cluster that we did not start gives and takes: those that join it, and those that are to leave it."""

from __future__ import annotations

from collections.abc import Callable

from laggard.kvstore.control import NodeRecord
from laggard.resilience.decision.events import NodeJoined, NodeLeaving, Settings
from laggard.resilience.decision.roster import Roster
from laggard.resilience.nodes.cluster import Cluster


class Membership:
    """Looks for nodes that join or leave, and asks for others in the place of those that are gone."""

    def __init__(self, cluster: Cluster, settings: Settings, take_in: Callable[[NodeRecord], None]) -> None:
        self._cluster = cluster  # the nodes
        self._settings = settings  # what the user asked for: without `resilient` no other nodes are used
        self._take_in = take_in  # called with each node that has joined, before its event
        self._new: list[NodeRecord] = []
        self._told: set[str] = set()  # hosts in use that are to leave
        self._most = 0  # nodes that the job had, in use and in reserve
        self._asked_at: int | None = None  # how many of them were left when others were asked for last

    def next_event(self, roster: Roster) -> NodeJoined | NodeLeaving | None:
        """Return what has happened; None if nothing."""
        if self._settings.resilient:
            self._new += self._cluster.joined()
        if self._new:
            node = self._new.pop(0)
            self._take_in(node)
            return NodeJoined(node.hostname, bool(node.devices))
        for host, word in self._cluster.leaving().items():
            if host in roster.active and host not in self._told:
                self._told.add(host)
                return NodeLeaving(host, word)
        return None

    def ask_for_replacements(self, roster: Roster) -> None:
        """Ask for as many nodes as are gone, once the reserve is empty."""
        n_nodes = len(roster.active) + len(roster.reserve)
        self._most = max(self._most, n_nodes)
        gone = self._most - n_nodes
        if self._settings.resilient and not roster.reserve and gone and n_nodes != self._asked_at:
            self._asked_at = n_nodes
            there = (*roster.active, *(exclusion.host for exclusion in roster.excluded if not exclusion.lost))
            self._cluster.ask_for(gone, (host for host in there if host not in self._cluster.leaving()))
        elif roster.reserve:
            self._asked_at = None

"""Asks from the node that failed whether what the program needs answers, and follows it while it does not.

What it needs is what the failure names, or else what its launches were connected to while they did well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from laggard.kvstore.client.connection import Endpoint
from laggard.resilience.decision.events import OutageEnded, OutageTooLong
from laggard.resilience.decision.failure import Failure
from laggard.resilience.decision.outage import Connected, OutageWatch, may_be_an_outage, outage_among
from laggard.resilience.decision.roster import Roster
from laggard.resilience.nodes.cluster import Cluster
from laggard.resilience.nodes.node import Node
from laggard.resilience.reading.targets import Target, Unanswered

# An agent's own deadline, and what a message takes.
ANSWER_DEADLINE_S = 20.0
FIRST_LOOK_S, LOOK_EVERY_S = 5.0, 30.0
# Where it is looked what the program is connected to: its ranks need the same things.
NODES_LOOKED_AT = 4
# What comes back just as the job would be given up is still seen to answer twice.
LAST_LOOKS_S = 15.0, 60.0  # at least and at most, else as long again


class Outages:
    """What a job waits for beside its nodes; ``now_s`` is Unix time."""

    def __init__(
        self,
        cluster: Cluster,
        primary: str,
        server: Endpoint,
        give_up_after_s: float,
        now_s: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock  # monotonic seconds
        self._cluster = cluster
        self._primary = primary
        self._server = server
        at_least_s, at_most_s = LAST_LOOKS_S
        self._too_long_s = give_up_after_s + min(max(at_least_s, give_up_after_s), at_most_s)
        self._now_s = now_s
        self._connected = Connected()
        self._next_look_s = 0.0
        self._looked_at: list[Node] = []
        self._named: frozenset[Target] = frozenset()  # what the latest failure named
        self._targets: Sequence[Target] = ()
        self._watch: OutageWatch | None = None
        self._asked: tuple[Node, float] | None = None  # whom, and when (monotonic); None: nobody now

    def begin(self) -> None:
        """Look soon at what a new launch is connected to."""
        self._next_look_s = self._clock() + FIRST_LOOK_S

    def note_connections(self, roster: Roster, program: int | None) -> None:
        """Look now and then at what the program is connected to, without waiting; ``program``: its process id here."""
        if self._clock() < self._next_look_s:
            return
        self._next_look_s = self._clock() + LOOK_EVERY_S
        self._take_connections()
        hosts = [host for host in roster.up[:NODES_LOOKED_AT] if host in self._cluster.nodes]
        self._looked_at = [self._cluster.nodes[host] for host in hosts]
        for node in self._looked_at:
            node.checks.list_connections(program if node.record.hostname == self._primary else None)

    def _take_connections(self) -> None:
        """Take what the nodes that were looked at have answered by now."""
        if answered := [found for node in self._looked_at if (found := node.checks.connections) is not None]:
            addresses = [(node.record.address, None) for node in self._cluster.nodes.values()]
            own = [(self._server.host, self._server.port), *addresses]
            self._connected.take([target for found in answered for target in found], own)
        self._looked_at = []

    def find(self, failure: Failure, named: Sequence[Target], *, passed: bool) -> Unanswered | None:
        """Return what does not answer the node that failed; takes some seconds if something does not."""
        self._watch, self._asked = None, None
        self._take_connections()
        if self._may_be_own(named):
            return None
        groups = [named] if named else self._connected.groups() if may_be_an_outage(failure) else []
        if not groups:
            return None
        node = self._ask(failure.host, [target for group in groups for target in group])
        self._cluster.wait_for(lambda: node.checks.answers is not None, ANSWER_DEADLINE_S)
        found = outage_among(groups, node.checks.answers or (), passed=passed or not named)
        if found is None:
            return None
        self._targets, why = found
        self._watch = OutageWatch(self._clock())
        return Unanswered(self._targets[0], why, node.record.hostname, self._now_s())

    def _may_be_own(self, named: Sequence[Target]) -> bool:
        """Return whether the program itself may be what serves a place on its node, and come back with it."""
        # Its next launch comes back with it; what that names again is outside.
        before, self._named = self._named, frozenset(named)
        return any(each.is_local for each in named) and not any(
            each in before or each in self._connected for each in named
        )

    def look(self, outage: Unanswered, since_s: float) -> OutageEnded | OutageTooLong | None:
        """Ask about an outage if that is due, without waiting; return what has come of it.

        Parameters
        ----------
        outage
            What the job waits for.
        since_s
            Unix time since which outages have kept the job from making progress.
        """
        now_s = self._clock()
        watch = self._watch = self._watch or OutageWatch(now_s)
        if self._asked is not None:
            node, asked_s = self._asked
            if node.checks.answers is None and now_s < asked_s + ANSWER_DEADLINE_S:
                return None
            self._asked = None
            if watch.take(node.checks.answers or (), now_s):
                return OutageEnded(outage, self._now_s() - outage.since_s)
        if self._now_s() - since_s >= self._too_long_s:
            return OutageTooLong(outage, self._now_s() - since_s)
        if watch.asks(now_s):
            self._asked = self._ask(outage.host, self._targets), now_s
        return None

    def _ask(self, host: str, targets: Sequence[Target]) -> Node:
        """Ask from a node, or from the primary if it is lost."""
        node = self._cluster.nodes.get(host) or self._cluster.nodes[self._primary]
        node.checks.ask_targets(targets, [each.record.address for each in self._cluster.nodes.values()])
        return node

"""Asks from the node that failed whether what the failure named answers, and follows it while it does not."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from laggard.resilience.decision.events import OutageEnded, OutageTooLong
from laggard.resilience.decision.outage import OutageWatch, outage_among
from laggard.resilience.decision.targets import Target, Unanswered
from laggard.resilience.nodes.cluster import Cluster
from laggard.resilience.nodes.node import Node

# An agent's own deadline, and what a message takes.
ANSWER_DEADLINE_S = 10.0


class Outages:
    """What a job waits for beside its nodes; ``now_s`` is Unix time."""

    def __init__(self, cluster: Cluster, primary: str, give_up_after_s: float, now_s: Callable[[], float]) -> None:
        self._cluster = cluster
        self._primary = primary
        self._give_up_after_s = give_up_after_s
        self._now_s = now_s
        self._targets: Sequence[Target] = ()
        self._watch: OutageWatch | None = None
        self._asked: tuple[Node, float] | None = None  # whom, and when (monotonic); None: nobody now

    def find(self, host: str, targets: Sequence[Target], *, passed: bool) -> Unanswered | None:
        """Return which of these does not answer a node; takes some seconds if one does not."""
        self._watch, self._asked = None, None
        if not targets:
            return None
        self._targets = targets
        node = self._ask(host)
        self._cluster.wait_for(lambda: node.checks.answers is not None, ANSWER_DEADLINE_S)
        found = outage_among(targets, node.checks.answers or (), passed=passed)
        if found is None:
            return None
        self._watch = OutageWatch(time.monotonic())
        return Unanswered(*found, node.record.hostname, self._now_s())

    def look(self, outage: Unanswered, since_s: float) -> OutageEnded | OutageTooLong | None:
        """Ask about an outage if that is due, without waiting; return what has come of it.

        Parameters
        ----------
        outage
            What the job waits for.
        since_s
            Unix time since which outages have kept the job from making progress.
        """
        now_s = time.monotonic()
        watch = self._watch = self._watch or OutageWatch(now_s)
        if self._asked is not None:
            node, asked_s = self._asked
            if node.checks.answers is None and now_s < asked_s + ANSWER_DEADLINE_S:
                return None
            self._asked = None
            if watch.take(node.checks.answers or (), now_s):
                return OutageEnded(outage, self._now_s() - outage.since_s)
        if self._now_s() - since_s >= self._give_up_after_s:
            return OutageTooLong(outage, self._now_s() - since_s)
        if watch.is_due(now_s):
            self._asked = self._ask(outage.host), now_s
        return None

    def _ask(self, host: str) -> Node:
        """Ask from a node, or from the primary if it is lost."""
        node = self._cluster.nodes.get(host) or self._cluster.nodes[self._primary]
        node.checks.ask_targets(self._targets, [each.record.address for each in self._cluster.nodes.values()])
        return node

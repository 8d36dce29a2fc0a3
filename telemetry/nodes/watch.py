"""How each node's telemetry is: all nodes are asked once a second, in the background."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Self

import redis

from laggard.kvstore.errors import KVStoreError
from laggard.telemetry.errors import NodeError
from laggard.telemetry.nodes.bus import NodeAsker
from laggard.telemetry.nodes.mailbox import PING

_log = logging.getLogger("laggard.telemetry")

INTERVAL_S = 1.0
# So that a thousand nodes cost no more than a hundred do.
MOST_A_SECOND = 100
STOP_DEADLINE_S = 3.0


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """How a node's telemetry is, seen from the primary."""

    up: bool = False  # whether it answers
    lag_s: float = 0.0  # how long its last answer took, in seconds; if it owes one, how long that has been so
    clock_skew_s: float = 0.0  # by how much its clock is ahead of the primary's, in seconds; 0 until it has answered
    dropped: int = 0  # how many samples its store refused or dropped early for lack of room


class NodeWatch:
    """Asks every node again and again whether it is there, during the ``with`` block."""

    def __init__(self, asker: NodeAsker, expected: Callable[[], Collection[str]]) -> None:
        self._asker = asker  # asks the nodes; it learns from this which of them are not worth waiting for
        self._expected = expected  # returns the nodes that should listen; those that do are watched as well
        self._health: dict[str, NodeHealth] = {}
        self._answered_s: dict[str, float] = {}  # when each answered last, on the monotonic clock
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="telemetry-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(STOP_DEADLINE_S)

    def health(self) -> Mapping[str, NodeHealth]:
        """Return how each node is, by name."""
        return self._health

    def _watch(self) -> None:
        pause_s = 0.0
        while not self._ended.wait(pause_s):
            try:
                self._ask()
            except (NodeError, KVStoreError, redis.RedisError) as error:
                _log.info("the nodes cannot be asked how they are, retrying: %s", error)
            pause_s = max(INTERVAL_S, len(self._health) / MOST_A_SECOND)

    def _ask(self) -> None:
        begun_s = time.monotonic()
        hosts = sorted({*self._asker.hosts(), *self._expected()})
        replies = self._asker.ask({"kind": PING}, hosts=hosts)
        now_s = time.monotonic()
        found = {}
        for host in hosts:
            match replies.by_host.get(host):
                case {"clock_s": float() as clock_s, "dropped": int() as dropped}:
                    self._answered_s[host] = now_s
                    took_s = replies.took_s[host]
                    skew_s = clock_s - (time.time() - (now_s - begun_s) + took_s / 2)
                    found[host] = NodeHealth(
                        up=True, lag_s=round(took_s, 4), clock_skew_s=round(skew_s, 4), dropped=dropped
                    )
                case _:  # none, or none that we understand
                    owed_s = now_s - self._answered_s.setdefault(host, begun_s)
                    found[host] = replace(self._health.get(host, NodeHealth()), up=False, lag_s=round(owed_s, 4))
        self._health = found

"""Which nodes answer: each is asked in the background, so that no query has to find out by waiting for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Self

import redis

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.errors import KVStoreError
from laggard.telemetry.nodes.mailbox import PING, Mailbox, hosts_that_listen
from laggard.telemetry.nodes.ping import NodeHealth, Ping, Pong

_log = logging.getLogger("laggard.telemetry")

INTERVAL_S = 1.0
# So that a thousand nodes cost no more than a hundred do.
MOST_A_SECOND = 100
LOOK_S = 0.05
# While an answer is owed: queries wait to be told that it is late.
OWED_LOOK_S = 0.02
RETRY_S = 1.0
STOP_DEADLINE_S = 3.0


class NodeWatch:
    """Asks every node once a second whether it is there, during the ``with`` block."""

    def __init__(
        self,
        client: redis.Redis,
        endpoint: Endpoint,
        expected: Callable[[], Collection[str]],
        longest_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client  # the job's state server
        self._endpoint = endpoint
        self._expected = expected  # returns the nodes that should listen; those that do are watched as well
        # A node that owes an answer for longer is silent: it is not asked anything else until it answers
        self._longest_s = longest_s
        self._clock = clock  # returns monotonic time in seconds
        # Until when all answers have been read: what has come since then may just not have been read yet.
        self._read_until_s = clock()
        self._pings: dict[str, Ping] = {}
        self._mailbox: Mailbox | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="telemetry-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(STOP_DEADLINE_S)

    def is_silent(self, host: str) -> bool:
        """Return whether a node has not answered for so long that it is asked in the background only."""
        ping = self._pings.get(host)
        return ping is not None and ping.has_waited(self._longest_s, self._read_until_s)

    def all_late(self, hosts: Collection[str]) -> bool:
        """Return whether these nodes all answer later than usual."""
        return all(self._is_late(host) for host in hosts)

    def hurry(self, hosts: Collection[str]) -> None:
        """Ask these nodes at once whether they are there, but for those that have just been asked."""
        if (mailbox := self._mailbox) is not None:
            self._ask(mailbox, hosts, every=False)

    def health(self) -> Mapping[str, NodeHealth]:
        """Return how each node is, by name."""
        with self._lock:
            found = sorted(self._pings.items())
        return {host: ping.health(self._read_until_s, self._longest_s) for host, ping in found}

    def _is_late(self, host: str) -> bool:
        ping = self._pings.get(host)
        return ping is not None and ping.is_late(self._read_until_s, self._longest_s)

    def _watch(self) -> None:
        while not self._ended.is_set():
            try:
                self._mailbox = mailbox = Mailbox(self._client, self._endpoint)
                try:
                    self._ask_and_take(mailbox)
                finally:
                    self._mailbox = None
                    mailbox.close()
            except redis.RedisError as error:
                _log.info("the state server does not answer, retrying: %s", error)
                self._ended.wait(RETRY_S)

    def _ask_and_take(self, mailbox: Mailbox) -> None:
        next_round_s = self._clock()
        while not self._ended.is_set():
            if self._clock() >= next_round_s:
                hosts = self._choose()
                self._ask(mailbox, hosts, every=True)
                next_round_s = self._clock() + max(INTERVAL_S, len(hosts) / MOST_A_SECOND)
            self._take(mailbox)

    def _choose(self) -> list[str]:
        """Return the nodes to watch, and forget those that are none any more."""
        hosts = {*hosts_that_listen(self._client, self._endpoint), *self._expected()}
        with self._lock:
            self._pings = {host: self._pings.get(host, Ping()) for host in hosts}
        return sorted(hosts)

    def _ask(self, mailbox: Mailbox, hosts: Collection[str], *, every: bool) -> None:
        """Ask nodes, all or those whose ping is due; in several threads."""
        now_s = self._clock()
        with self._lock:  # recorded before it is sent, since the answer may be there at once
            known = [host for host in hosts if host in self._pings]
            asked = [host for host in known if every or self._pings[host].is_due(now_s)]
            self._pings.update({host: self._pings[host].ask(now_s) for host in asked})
        if not asked:
            return
        received = set(mailbox.send({"kind": PING, "asked_s": now_s}, asked, self._longest_s))
        with self._lock:
            for host in asked:
                if host in self._pings:
                    self._pings[host] = self._pings[host].sent(received=host in received)

    def _take(self, mailbox: Mailbox) -> None:
        """Wait a little for an answer, and take all that have come."""
        begun_s = self._clock()
        wait_s = OWED_LOOK_S if self._expects_answers(begun_s) else LOOK_S
        while self._take_one(mailbox, wait_s):
            begun_s, wait_s = self._clock(), 0.0
        self._read_until_s = begun_s

    def _expects_answers(self, now_s: float) -> bool:
        with self._lock:
            pings = list(self._pings.values())
        return any(p.waiting_since_s is not None and not p.has_waited(self._longest_s, now_s) for p in pings)

    def _take_one(self, mailbox: Mailbox, wait_s: float) -> bool:
        try:
            if (reply := mailbox.take(wait_s)) is None:
                return False
            host, answer = str(reply["host"]), Pong.of(reply.get("answer"))
        except (KeyError, TypeError, ValueError, KVStoreError) as error:
            _log.warning("ignored an answer: %s", error)
            return True
        with self._lock:
            if host in self._pings:
                ping = self._pings[host]
                self._pings[host] = ping.take(answer, self._clock(), time.time(), self._longest_s)
        return True

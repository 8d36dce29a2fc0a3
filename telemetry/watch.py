"""Which nodes answer: each is asked in the background, so that no query has to find out by waiting for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Self

import redis

from laggard.kvstore.connection import Endpoint
from laggard.kvstore.errors import KVStoreError
from laggard.telemetry.mailbox import PULSE, Mailbox, hosts_that_listen
from laggard.telemetry.pulse import NodeHealth, Pulse, PulseAnswer

__all__ = ["NodeWatch"]

_log = logging.getLogger("laggard.telemetry")

INTERVAL_S = 1.0
# So that a thousand nodes cost no more than a hundred do.
MOST_A_SECOND = 100
LOOK_S = 0.05
RETRY_S = 1.0
STOP_DEADLINE_S = 3.0


class NodeWatch:
    """Asks every node once a second whether it is there, during the ``with`` block.

    Parameters
    ----------
    client, endpoint
        The job's state server.
    expected
        Returns the nodes that should listen; those that do are watched as well.
    longest_s
        A node that owes an answer for longer is silent: it is not asked anything else until it answers.
    clock
        Returns monotonic time in seconds.
    """

    def __init__(
        self,
        client: redis.Redis,
        endpoint: Endpoint,
        expected: Callable[[], Collection[str]],
        longest_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._endpoint = endpoint
        self._expected = expected
        self._longest_s = longest_s
        self._clock = clock
        # Until when all answers have been read: what has come since then may just not have been read yet.
        self._read_until_s = clock()
        self._pulses: dict[str, Pulse] = {}
        self._hurried: set[str] = set()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="telemetry-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(STOP_DEADLINE_S)

    def is_silent(self, host: str) -> bool:
        """Return whether a node has not answered for so long that it is asked in the background only."""
        pulse = self._pulses.get(host)
        return pulse is not None and pulse.has_waited(self._longest_s, self._read_until_s)

    def all_late(self, hosts: Collection[str]) -> bool:
        """Return whether these nodes all answer later than usual; those that owe nothing are asked, to know it soon."""
        late = {host for host in hosts if self._is_late(host)}
        self._hurried.update(host for host in hosts if host not in late and not self._owes(host))
        return len(late) == len(hosts)

    def health(self) -> Mapping[str, NodeHealth]:
        """Return how each node is, by name."""
        with self._lock:
            found = sorted(self._pulses.items())
        return {host: pulse.health(self._read_until_s, self._longest_s) for host, pulse in found}

    def _owes(self, host: str) -> bool:
        pulse = self._pulses.get(host)
        return pulse is not None and pulse.waiting_since_s is not None

    def _is_late(self, host: str) -> bool:
        pulse = self._pulses.get(host)
        return pulse is not None and pulse.has_waited(pulse.patience_s(self._longest_s), self._read_until_s)

    def _watch(self) -> None:
        while not self._ended.is_set():
            try:
                mailbox = Mailbox(self._client, self._endpoint)
                try:
                    self._ask_and_take(mailbox)
                finally:
                    mailbox.close()
            except redis.RedisError as error:
                _log.info("the state server does not answer, retrying: %s", error)
                self._ended.wait(RETRY_S)

    def _ask_and_take(self, mailbox: Mailbox) -> None:
        next_round_s = self._clock()
        while not self._ended.is_set():
            if self._clock() >= next_round_s:
                hosts = self._choose()
                self._ask(mailbox, hosts)
                next_round_s = self._clock() + max(INTERVAL_S, len(hosts) / MOST_A_SECOND)
            elif hurried := [self._hurried.pop() for _ in range(len(self._hurried))]:
                self._ask(mailbox, hurried)
            self._take(mailbox)

    def _choose(self) -> list[str]:
        """Return the nodes to watch, and forget those that are none any more."""
        hosts = {*hosts_that_listen(self._client, self._endpoint), *self._expected()}
        with self._lock:
            self._pulses = {host: self._pulses.get(host, Pulse()) for host in hosts}
        return sorted(hosts)

    def _ask(self, mailbox: Mailbox, hosts: Collection[str]) -> None:
        now_s = self._clock()
        received = set(mailbox.send({"kind": PULSE, "asked_s": now_s}, hosts, self._longest_s))
        with self._lock:
            for host in hosts:
                if host in self._pulses:
                    self._pulses[host] = self._pulses[host].ask(now_s, received=host in received)

    def _take(self, mailbox: Mailbox) -> None:
        """Wait a little for an answer, and take all that have come."""
        begun_s = self._clock()
        wait_s = LOOK_S
        while self._take_one(mailbox, wait_s):
            begun_s, wait_s = self._clock(), 0.0
        self._read_until_s = begun_s

    def _take_one(self, mailbox: Mailbox, wait_s: float) -> bool:
        try:
            if (reply := mailbox.take(wait_s)) is None:
                return False
            host, answer = str(reply["host"]), PulseAnswer.of(reply.get("answer"))
        except (KeyError, TypeError, ValueError, KVStoreError) as error:
            _log.warning("ignored an answer: %s", error)
            return True
        with self._lock:
            if host in self._pulses:
                pulse = self._pulses[host]
                self._pulses[host] = pulse.take(answer, self._clock(), time.time(), self._longest_s)
        return True

"""The controller's end of the out-of-band heartbeats: the counts that unheard agents raise in the state server."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import cast

import redis

from laggard.kvstore.client.connection import Endpoint
from laggard.resilience.agent.out_of_band import COUNTS

_log = logging.getLogger("laggard.resilience.nodes")

INTERVAL_S = 0.5
ANSWER_S = 1.0
# More agents than these are not silent at once but for a common reason.
N_SILENT = 250


@dataclass(frozen=True, slots=True)
class Count:
    """What was read of one agent's count."""

    value: bytes | None  # the count; None if the agent has never raised it
    since_s: float  # when this value was read first, and last
    seen_s: float


def seen(count: Count | None, value: bytes | None, now_s: float) -> Count:
    """Return what is known of a count after it was read once more. Pure."""
    if count is None or count.value != value:
        return Count(value, now_s, now_s)
    return replace(count, seen_s=now_s)


def seen_of_all(
    silent: Mapping[str, Count | None], values: Mapping[bytes, bytes], now_s: float
) -> dict[str, Count | None]:
    """Return what is known of the counts of all silent agents after they were read once more. Pure."""
    # While very many are silent at once, no count stands still: they have not all frozen, but dial again, and the state
    # server may be as busy with their counts as we are with them.
    are_many = len(silent) > N_SILENT
    return {host: seen(None if are_many else count, values.get(host.encode()), now_s) for host, count in silent.items()}


class Counts:
    """Reads the counts of silent agents, from a thread of its own, for as long as there are any."""

    def __init__(self, endpoint: Endpoint, clock: Callable[[], float], look_after_s: float) -> None:
        self._look_after_s = look_after_s  # for how long an agent is silent before its count is read
        self._key = endpoint.key(COUNTS)
        self._client = endpoint.connect(timeout_s=ANSWER_S)
        self._clock = clock
        self._silent: dict[str, Count | None] = {}
        self._changed = threading.Condition()
        self._is_reading = False

    def unchanged_s(self, host: str, silent_s: float) -> float | None:
        """Return for how many seconds the count of an agent has stood still; does not wait."""
        with self._changed:
            if silent_s <= self._look_after_s:
                self._silent.pop(host, None)
                return None
            count = self._silent.setdefault(host, None)
            if not self._is_reading:
                self._is_reading = True
                threading.Thread(target=self._read_on, name="out-of-band", daemon=True).start()
            return None if count is None else count.seen_s - count.since_s

    def forget(self, host: str) -> None:
        """Read the count of a node that was removed no more."""
        with self._changed:
            self._silent.pop(host, None)

    def close(self) -> None:
        """Read no more; does not wait."""
        with self._changed:
            self._silent.clear()
            self._changed.notify_all()

    def _read_on(self) -> None:
        while True:
            began_s = self._clock()
            counts = self._read()
            with self._changed:
                if counts is not None:
                    self._silent = seen_of_all(self._silent, counts, began_s)
                if self._silent:
                    self._changed.wait(INTERVAL_S)
                if not self._silent:
                    self._is_reading = False
                    self._client.close()
                    return

    def _read(self) -> Mapping[bytes, bytes] | None:
        try:
            return cast("dict[bytes, bytes]", self._client.hgetall(self._key))
        except redis.RedisError as error:
            _log.debug("the agents' counts cannot be read: %s", error)
            return None

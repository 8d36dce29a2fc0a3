"""Reading at a fixed rate: one thread per source, so that a stalled source does not delay the others."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from laggard.kvstore.series.sample_store import SampleStore

_log = logging.getLogger("laggard.collectors")

STOP_DEADLINE_S = 1.0
RETRY_S = 10.0
# A reading that starts no later than this share of the interval gets its nominal time: equal intervals compress well.
_PUNCTUAL = 0.1
# Loops with the same tick are staggered: threads that wake together mostly wait for one another.
_STAGGER_S = 0.003
_MAX_STAGGER = 0.05  # of the interval


@dataclass(frozen=True, slots=True)
class Reading:
    """One value, with its tags in addition to those of its loop."""

    metric: str
    value: float
    tags: Mapping[str, str] = field(default_factory=dict)


SupportsRead = Callable[[], Iterable[Reading]]


@dataclass(slots=True)
class Pace:
    """How a loop keeps up."""

    lag_s: float = 0.0  # how late the last reading started
    duration_s: float = 0.0  # how long it took
    missed: int = 0  # how many readings were skipped
    begun_s: float | None = None  # start of the reading in progress, on the monotonic clock; None between readings


def next_tick(now_s: float, interval_s: float) -> float:
    """Return the next multiple of the interval, so that all loops on all nodes read at the same times."""
    return (math.floor(now_s / interval_s) + 1) * interval_s


class ReadingLoop:
    """Reads at every tick and stores the readings."""

    def __init__(
        self,
        name: str,
        read: SupportsRead,
        interval_s: float,
        store: SampleStore,
        tags: Mapping[str, str],
        *,
        place: int = 0,
        unix_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        ended: threading.Event | None = None,
    ) -> None:
        self.name = name  # for the thread and the log
        self.tags = tags
        self.pace = Pace()
        self._read = read  # returns readings; after an OSError or RuntimeError it is retried later
        self._interval_s = interval_s  # seconds from one tick to the next
        self._store = store  # where to store the readings, and with which tags
        self._delay_s = min(place * _STAGGER_S, _MAX_STAGGER * interval_s)
        self._unix_clock, self._clock = unix_clock, clock
        self._ended = ended or threading.Event()
        self._thread = threading.Thread(target=self.run, name=f"read-{name}", daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; a reading that hangs is abandoned."""
        self._ended.set()
        self._thread.join(STOP_DEADLINE_S)

    def run(self) -> None:
        """Read until it is stopped."""
        due_s = next_tick(self._unix_clock(), self._interval_s)
        while not self._ended.wait(max(0.0, due_s + self._delay_s - self._unix_clock())):
            begun_s = self._unix_clock()
            self.pace.lag_s = max(0.0, begun_s - due_s - self._delay_s)
            punctual = self.pace.lag_s < _PUNCTUAL * self._interval_s
            failed = not self._tick(due_s if punctual else begun_s)
            next_s = next_tick(self._unix_clock(), self._interval_s)
            self.pace.missed += max(0, round((next_s - due_s) / self._interval_s) - 1)
            due_s = next_s + (RETRY_S if failed else 0.0)

    def _tick(self, stamp_s: float) -> bool:
        self.pace.begun_s = self._clock()
        try:
            readings = list(self._read())
        except (OSError, RuntimeError) as error:
            _log.warning("no readings of %s, trying again in %g s: %s", self.name, RETRY_S, error)
            return False
        finally:
            self.pace.duration_s = self._clock() - self.pace.begun_s
            self.pace.begun_s = None
        for reading in readings:
            self._store.add(reading.metric, {**self.tags, **reading.tags}, round(stamp_s * 1e6), reading.value)
        return True

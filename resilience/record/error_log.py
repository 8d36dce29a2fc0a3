"""What the program's processes write to standard error, for its record and the page: a bounded part of it.

At a moment the first lines are kept, since others follow from them; over the job the newest.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path

import redis

from laggard.kvstore.client.connection import Endpoint, write_private
from laggard.records import plain, record_of
from laggard.resilience.reading.prefixes import ESCAPES
from laggard.telemetry.error_lines import MAX_LINES, ErrorLine, publish

FILE = "stderr.jsonl"
MAX_TEXT = 300
# At once, and on average: of one process, and of all together.
OF_ONE, OF_ALL = (100, 2.0), (500, 20.0)
_MAX_REST_BYTES = 4096

TakeErrors = Callable[[str, int | None, bytes], object]
"""Called with a host, a rank and a piece of its standard error, which is empty at its end."""


class Allowance:
    """So many lines at once, and so many a second."""

    def __init__(self, at_once: int, per_s: float) -> None:
        self._at_once, self._per_s = at_once, per_s
        self._left, self._at_s = float(at_once), 0.0

    def grants(self, now_s: float) -> bool:
        """Return whether one more line is allowed now."""
        self._left = min(self._at_once, self._left + max(0.0, now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True


class ErrorLog:
    """Takes pieces of the processes' standard error from any thread."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock  # returns Unix time in seconds
        self._lock = threading.Lock()
        self._rests: defaultdict[tuple[str, int | None], bytes] = defaultdict(bytes)
        self._allowances: defaultdict[tuple[str, int | None], Allowance] = defaultdict(lambda: Allowance(*OF_ONE))
        self._of_all = Allowance(*OF_ALL)
        self._n_left_out = 0
        self._kept: deque[ErrorLine] = deque(maxlen=MAX_LINES)
        self._unpublished: deque[ErrorLine] = deque(maxlen=MAX_LINES)

    def take(self, host: str, rank: int | None, data: bytes) -> None:
        """Take a piece of what a process has written; an empty one is the end."""
        now_s, who = self._clock(), (host, rank)
        with self._lock:
            *lines, rest = (self._rests[who] + (data or b"\n")).split(b"\n")
            self._rests[who] = rest[-_MAX_REST_BYTES:]
            for text in filter(None, map(plain_line, lines)):
                if not (self._allowances[who].grants(now_s) and self._of_all.grants(now_s)):
                    self._n_left_out += 1
                    continue
                if self._n_left_out:
                    text, self._n_left_out = f"({self._n_left_out:,} lines before this one were not kept) {text}", 0
                line = ErrorLine(round(now_s * 1_000_000), host, rank, text)
                self._kept.append(line)
                self._unpublished.append(line)

    def publish(self, client: redis.Redis, endpoint: Endpoint) -> None:
        """Send new lines to the state server; if it does not answer, they are sent later."""
        with self._lock:
            new = [*self._unpublished]
        if new:
            publish(client, endpoint, new)
        with self._lock:
            while self._unpublished and new and self._unpublished[0] is new[0]:
                self._unpublished.popleft()
                del new[0]

    def save(self, folder: Path) -> None:
        """Write what is kept to a job's record."""
        with self._lock:
            kept = [*self._kept]
        if kept:
            write_private(folder / FILE, "".join(f"{json.dumps(plain(line))}\n" for line in kept))


def plain_line(line: bytes) -> str:
    """Return a line as a terminal would show it at last, without colours: of a progress bar its end."""
    shown = line.rstrip(b"\r\n").rpartition(b"\r")[2]
    return ESCAPES.sub("", shown.decode(errors="replace")).rstrip()[:MAX_TEXT]


def read_error_lines(folder: Path) -> list[ErrorLine]:
    """Return the lines of a job's record; none if it has none."""
    path = folder / FILE
    if not path.exists():
        return []
    return [record_of(ErrorLine, json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]

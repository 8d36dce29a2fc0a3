"""A line to a webhook for each verdict, failure and relaunch, and for the job's end; the job never waits for it.

The request is a POST of ``{"text": line}``, as Slack, Mattermost, Rocket.Chat and Discord (``/slack``) take it. The
address is a secret with most of them: no message and no log names more of it than its host.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Self
from urllib.parse import urlsplit

from laggard.resilience.record.account import Account
from laggard.resilience.record.entries import GaveUp, JobEnded, LaunchEnded, Record
from laggard.resilience.record.journal import Entry, event_of

TIMEOUT_S = 5.0
# A line that cannot be sent is tried again for so long, with pauses that double.
TRY_FOR_S = 120.0
FIRST_PAUSE_S = 1.0
# So long the end of a job waits for its last lines.
LAST_S = 5.0
# Lines that wait; of more, the oldest are left out.
MAX_WAITING = 100
_BUSY, _FAILS = 429, 500  # of the server: these may pass


class Notifier:
    """Sends lines about a job during the ``with`` block, in a thread of its own."""

    def __init__(
        self, address: str, job: str, *, tell_trouble: Callable[[str], object], first_pause_s: float = FIRST_PAUSE_S
    ) -> None:
        self._address = address  # where to send them
        self._job = job  # begins each line
        self._tell_trouble = tell_trouble  # is told once, in a sentence, that lines do not arrive
        self._first_pause_s = first_pause_s
        self._lines: deque[str] = deque(maxlen=MAX_WAITING)
        self._woken = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name="notify", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._woken.set()
        self._thread.join(LAST_S)

    def note(self, record: Record) -> None:
        """Send a line if the record is worth one; returns at once."""
        if text := line_of(record):
            self._lines.append(f"{self._job}: {text}")
            self._woken.set()

    def _send_all(self) -> None:
        told = False
        while not self._ending.is_set() or self._lines:
            self._woken.wait()
            self._woken.clear()
            while self._lines:
                trouble = self._send(self._lines.popleft())
                if trouble and not told:
                    told = True
                    host = urlsplit(self._address).hostname
                    self._tell_trouble(f"{host} does not take the lines of --notify: {trouble}")

    def _send(self, line: str) -> str:
        """Send a line, trying again where that may help; return why it did not arrive."""
        pause_s, until_s = self._first_pause_s, time.monotonic() + TRY_FOR_S
        while True:
            trouble, may_pass = _post(self._address, line)
            if not trouble or not may_pass or time.monotonic() + pause_s > until_s or self._ending.wait(pause_s):
                return trouble
            pause_s *= 2


@contextlib.contextmanager
def notified(address: str | None, job: str, account: Account) -> Iterator[None]:
    """Send lines about what an account takes note of during the ``with`` block, if there is an address."""
    if address is None:
        yield
        return
    with Notifier(address, job, tell_trouble=partial(account.tell, "notice")) as notifier:
        take_note = account.take_note

        def take_and_send(record: Record) -> None:
            take_note(record)
            notifier.note(record)

        account.take_note = take_and_send
        try:
            yield
        except Exception as error:
            notifier.note(GaveUp(str(error)))
            raise


def line_of(record: Record) -> str:
    """Return what is sent of a record; empty: nothing."""
    if isinstance(record, JobEnded):
        without = f", without {', '.join(record.excluded)}" if record.excluded else ""
        return f"the job ended with exit code {record.exit_code}{without}"
    if isinstance(record, GaveUp):
        return f"laggard gave up: {record.why}"
    event = event_of(Entry(0.0, record))
    if event is None or event.kind not in {"verdict", "failure", "launch-end"}:
        return ""
    if isinstance(record, LaunchEnded):
        return "" if record.cause == "end" else f"launch {record.launch} ended: {event.text}"
    return event.text


def _post(address: str, line: str) -> tuple[str, bool]:
    """Send a line once; return what is wrong, or nothing, and whether that may pass."""
    body, head = json.dumps({"text": line}).encode(), {"Content-Type": "application/json", "User-Agent": "laggard"}
    try:
        request = urllib.request.Request(address, body, head)  # noqa: S310 - http or https, as was checked
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):  # noqa: S310
            return "", False
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.code} {error.reason}", error.code == _BUSY or error.code >= _FAILS
    except OSError as error:
        return str(getattr(error, "reason", error)), True
    except ValueError as error:
        return str(error), False

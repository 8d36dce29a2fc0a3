"""One thread that waits for all connections of a process, however many, and calls whoever is concerned."""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from functools import partial

from laggard.resilience.agent.later import Later

_log = logging.getLogger("laggard.resilience.agent")

_LONGEST_S = 3600.0


class Loop:
    """A thread that calls what is due, until it is closed. What it calls must not wait: everybody else would."""

    def __init__(self, name: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._watched: set[int] = set()
        self._later = Later()
        self._calls: deque[Callable[[], None]] = deque()
        self._woken, self._wake = socket.socketpair()
        for end in (self._woken, self._wake):
            end.settimeout(0.0)
        self._is_awake = True  # so that it looks at the calls before it waits
        self._is_closed = False
        self._selector.register(self._woken, selectors.EVENT_READ, lambda _: self._woken.recv(1 << 12))
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, call: Callable[[], None]) -> None:
        """Have something called soon, after what was asked for before; from any thread. Once closed, never."""
        self._calls.append(call)
        if not self._is_awake:
            with contextlib.suppress(OSError):  # so many have woken it that no more need to, or it is closed
                self._wake.send(b"x")

    def after(self, wait_s: float, call: Callable[[], None]) -> None:
        """Have something called in a number of seconds; from the loop's own thread, as everything below."""
        self._later.after(wait_s, partial(self._do, call))

    def watch(self, file: socket.socket | int, events: int, call: Callable[[int], None]) -> None:
        """Have something called with the events of a file whenever there are some, or change for which."""
        if _descriptor(file) in self._watched:
            self._selector.modify(file, events, call)
        else:
            self._watched.add(_descriptor(file))
            self._selector.register(file, events, call)

    def unwatch(self, file: socket.socket | int) -> None:
        """Watch a file no more, if it is watched. Its call may still come, if it was ready just now."""
        if _descriptor(file) in self._watched:
            self._watched.remove(_descriptor(file))
            self._selector.unregister(file)

    def close(self) -> None:
        """End the thread, once it has called what was asked for before, and the connections. Twice does nothing."""
        self.call(self._end)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _end(self) -> None:
        self._is_closed = True

    def _run(self) -> None:
        with self._selector, self._woken, self._wake:
            while not self._is_closed:
                self._is_awake = False
                ready = self._selector.select(0.0 if self._calls else self._later.wait_s(_LONGEST_S))
                self._is_awake = True
                for key, events in ready:
                    self._do(partial(key.data, events))
                for _ in range(len(self._calls)):  # what they ask for comes after the others' events
                    self._do(self._calls.popleft())
                self._later.run_due()
            for key in self._selector.get_map().values():
                if isinstance(key.fileobj, socket.socket):
                    key.fileobj.close()

    def _do(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # noqa: BLE001 - of one connection; the others go on, and the log says what it was
            _log.exception("a call of the loop failed")


def _descriptor(file: socket.socket | int) -> int:
    return file if isinstance(file, int) else file.fileno()

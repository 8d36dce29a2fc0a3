"""The program's standard error: copied to ours as it comes, the last of it kept."""

from __future__ import annotations

import fcntl
import os
import re
import select
import sys
import termios
import threading
import tty
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from laggard.resilience.reading.prefixes import ESCAPES

CHUNK_BYTES = 1 << 16
# What is read but not copied, and what the channel holds: no pipe is larger without privileges, and a pty holds less.
MOST_PENDING_BYTES = CHUNK_BYTES + (1 << 20)
_WINDOW_SIZE_BYTES = 8  # struct winsize: four shorts
_STDERR = 2

_LINE_ENDS = re.compile(r"[\r\n]+")


class StderrTee:
    """A channel for the standard error of a program, which a thread copies to our own.

    The channel is a terminal if the target is one, so that the program shows its progress bars; otherwise it is a pipe.
    The program never waits for a target that is broken: what it writes is then only kept. Copying ends when every
    process that has the channel has closed it.
    """

    def __init__(
        self, target: int = _STDERR, ring_bytes: int = 1 << 16, take: Callable[[bytes], object] = lambda _: None
    ) -> None:
        self._take = take  # is given each piece, and an empty one at the end
        self._target = target  # file descriptor that everything is copied to
        self._ring_bytes = ring_bytes  # how many of the last bytes to keep
        self._ring = bytearray()
        self._cut = False
        # If our standard error was closed when we started, its number is by now that of some other file of ours.
        self._broken = target == _STDERR and sys.__stderr__ is None
        self._source, self.child_fd, self.is_terminal = _open_channel(target)
        os.set_blocking(self._source, False)
        self._wake = os.eventfd(0)
        # Reentrant, since the handler of a signal, which calls `resize`, may interrupt a thread that holds it.
        self._changed = threading.Condition(threading.RLock())
        self._n_copied = 0
        self._n_asked = self._n_answered = 0
        self._ended = False
        self.resize()
        threading.Thread(target=self._run, name="stderr", daemon=True).start()

    def close_child_fd(self) -> None:
        """Close our copy of `child_fd`, once the program has its own."""
        fd, self.child_fd = self.child_fd, -1
        if fd >= 0:
            os.close(fd)

    def drain(self, deadline_s: float) -> bool:
        """Wait until everything that was written before is copied; return whether it was in time."""
        # It does not wait for the end of the stream, since another process may keep it open.
        with self._changed:
            self._n_asked += 1
            request, enough = self._n_asked, self._n_copied + MOST_PENDING_BYTES
            if not self._ended:
                os.eventfd_write(self._wake, 1)
            return self._changed.wait_for(
                # the second if a process that is left writes without a pause
                lambda: self._n_answered >= request or self._n_copied >= enough or self._ended,
                deadline_s,
            )

    def last_lines(self, n_lines: int = 200) -> tuple[str, ...]:
        """Return the last lines as plain text, without those that are empty."""
        # A carriage return ends a line too. A first line of which only a part is kept is left out, unless it is the
        # only one.
        with self._changed:
            kept, cut = bytes(self._ring), self._cut
        lines = _LINE_ENDS.split(ESCAPES.sub("", kept.decode(errors="replace")))
        if cut and any(line.strip() for line in lines[1:]):
            del lines[0]
        return tuple(deque((line.rstrip() for line in lines if line.strip()), maxlen=n_lines))

    def resize(self) -> None:
        """Give the channel the window size of the target, if it is a terminal."""
        with self._changed, suppress(OSError):  # the target may be gone
            if self.is_terminal and not self._ended:
                size = fcntl.ioctl(self._target, termios.TIOCGWINSZ, bytes(_WINDOW_SIZE_BYTES))
                fcntl.ioctl(self._source, termios.TIOCSWINSZ, size)

    def _run(self) -> None:
        try:
            self._copy()
        finally:
            self._take(b"")
            with self._changed:
                self._ended = True
                os.close(self._source)
                os.close(self._wake)
                self._changed.notify_all()

    def _copy(self) -> None:
        while True:
            n_asked = self._n_asked  # before reading: only to these does it answer that nothing is left
            try:
                data = os.read(self._source, CHUNK_BYTES)
            except BlockingIOError:
                with self._changed:
                    self._n_answered = n_asked
                    self._changed.notify_all()
                self._wait_for(self._source, select.POLLIN)
                continue
            except OSError:  # EIO: the end of a pty
                return
            if not data:
                return
            self._keep(data)
            self._take(data)
            self._write(data)
            with self._changed:
                self._n_copied += len(data)
                self._changed.notify_all()

    def _keep(self, data: bytes) -> None:
        with self._changed:
            self._ring += data
            if (excess := len(self._ring) - self._ring_bytes) > 0:
                del self._ring[:excess]
                self._cut = True

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and not self._broken:
            try:
                rest = rest[os.write(self._target, rest) :]
            except BlockingIOError:
                self._wait_for(self._target, select.POLLOUT)
            except OSError:
                self._broken = True

    def _wait_for(self, fd: int, event: int) -> None:
        """Wait until a file is ready, or until `drain` wakes us up."""
        poll = select.poll()
        poll.register(fd, event)
        poll.register(self._wake, select.POLLIN)
        if any(ready == self._wake for ready, _ in poll.poll()):
            os.eventfd_read(self._wake)


def _open_channel(target: int) -> tuple[int, int, bool]:
    """Return our end of a new channel, the program's end, and whether it is a terminal."""
    if os.isatty(target):
        with suppress(OSError):  # a container may have no ptys
            ours, theirs = os.openpty()
            tty.setraw(theirs)  # the target does what a terminal does to a text
            return ours, theirs, True
    return *os.pipe(), False

"""Pipes between simulated processes: in one machine at once, between machines over a link that has its own troubles."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from tests.simulation.scheduler import Scheduler, Thread, current

__all__ = ["FIRST_FD", "PROMPT_S", "Link", "Pipe", "ReadEnd", "Readable", "WriteEnd"]

FIRST_FD = 1_000_000
CAPACITY_BYTES = 1 << 16
PROMPT_S = 0.001
# What is sent later arrives later, by at least this.
ORDER_S = 1e-7
_fds = itertools.count(FIRST_FD)


class Link:
    """The network between the controller's machine and another one.

    Attributes
    ----------
    latency_s
        The longest time that a message takes.
    is_cut
        Whether nothing comes through; what is sent meanwhile arrives later, in order, as with TCP.
    """

    def __init__(self, scheduler: Scheduler, latency_s: float = PROMPT_S) -> None:
        self._scheduler = scheduler
        self.latency_s = latency_s
        self.is_cut = False
        self._held: list[Callable[[], None]] = []

    @property
    def is_prompt(self) -> bool:
        """Whether nothing that was sent is still on its way for long."""
        return not self.is_cut and self.latency_s <= PROMPT_S

    def carry(self, deliver: Callable[[], None], not_before_s: float) -> float:
        """Deliver something at the other end, and return when that will be."""
        now_s = self._scheduler.now_s
        at_s = max(not_before_s + ORDER_S, now_s + self._scheduler.chance.uniform(0.1, 1.0) * self.latency_s)

        def arrive() -> None:
            if self.is_cut or self._held:
                self._held.append(deliver)
            else:
                deliver()

        self._scheduler.at(at_s - now_s, arrive)
        return at_s

    def heal(self) -> None:
        """Let everything through again."""
        self.is_cut = False
        held, self._held = self._held, []
        for deliver in held:
            deliver()


class Readable:
    """What a selector can wait for.

    Attributes
    ----------
    waiters
        Threads to wake once it is ready.
    """

    def __init__(self) -> None:
        self.waiters: list[Thread] = []
        self.fd = next(_fds)

    @property
    def ready(self) -> bool:
        """Whether there is something to read."""
        raise NotImplementedError

    def notify(self, scheduler: Scheduler) -> None:
        """Wake everybody who waits for it."""
        for waiter in self.waiters:
            scheduler.wake(waiter)


class Pipe:
    """A pipe: bytes in, bytes out.

    Parameters
    ----------
    scheduler
        Of the simulation.
    link
        What it goes over; None: both ends are on one machine.
    """

    def __init__(self, scheduler: Scheduler, link: Link | None = None) -> None:
        self.scheduler = scheduler
        self._link = link
        self._arrives_s = 0.0
        self.unread = bytearray()
        self.on_its_way = 0
        self.n_writers = 1
        self.ended = False  # for the reader
        self.broken = False  # for the writer
        self.blocked: list[Thread] = []
        self.reader = ReadEnd(self)
        self.writer = WriteEnd(self)

    def send(self, data: bytes) -> None:
        """Send bytes to the reader, which has to make room first if there are many already."""
        while not self.broken and len(self.unread) + self.on_its_way >= CAPACITY_BYTES:
            thread = current()
            assert thread is not None
            self.blocked.append(thread)
            self.scheduler.block()
        if self.broken:
            raise BrokenPipeError(32, "Broken pipe")
        if self._link is None:
            self.arrive(data)
            return
        self.on_its_way += len(data)
        self._arrives_s = self._link.carry(lambda: self.arrive(data, len(data)), self._arrives_s)

    def arrive(self, data: bytes, carried: int = 0) -> None:
        """Let bytes be there for the reader."""
        self.on_its_way -= carried
        if not self.broken and not self.ended:
            self.unread += data
            self.reader.notify(self.scheduler)

    def take(self, n_bytes: int) -> bytes:
        """Return what has arrived, at most so much."""
        data = bytes(self.unread[:n_bytes])
        del self.unread[:n_bytes]
        blocked, self.blocked = self.blocked, []
        for thread in blocked:
            self.scheduler.wake(thread)
        return data

    def close_writer(self) -> None:
        """Let the reader see the end, once the last writer has closed."""
        self.n_writers -= 1
        if self.n_writers == 0:
            self.over(self.end)

    def close_reader(self) -> None:
        """Let the writer see that nobody reads."""
        self.over(self.break_off)

    def over(self, arrive: Callable[[], None]) -> None:
        """Let something happen at the other end."""
        if self._link is None:
            arrive()
        else:
            self._arrives_s = self._link.carry(arrive, self._arrives_s)

    def end(self) -> None:
        """There is nothing more to read than what has arrived."""
        self.ended = True
        self.reader.notify(self.scheduler)

    def break_off(self) -> None:
        """Whoever writes gets an error."""
        self.broken = True
        for thread in self.blocked:
            self.scheduler.wake(thread)


class ReadEnd(Readable):
    """The end of a pipe that is read, as a file."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self.pipe = pipe
        self.closed = False

    @property
    def ready(self) -> bool:
        """Whether there is something to read, or the end."""
        return bool(self.pipe.unread) or self.pipe.ended

    def fileno(self) -> int:
        """Return its descriptor."""
        return self.fd

    def read(self, n_bytes: int = -1) -> bytes | None:
        """Return what is there without waiting: None if nothing is, empty bytes at the end."""
        if not self.ready:
            return None
        return self.pipe.take(n_bytes if n_bytes >= 0 else len(self.pipe.unread))

    def __iter__(self) -> Iterator[bytes]:
        scheduler, pipe = self.pipe.scheduler, self.pipe
        while True:
            at = pipe.unread.find(b"\n")
            if at >= 0:
                yield pipe.take(at + 1)
            elif pipe.ended:
                if pipe.unread:
                    yield pipe.take(len(pipe.unread))
                return
            else:
                thread = current()
                assert thread is not None
                self.waiters.append(thread)
                try:
                    scheduler.block()
                finally:
                    self.waiters.remove(thread)

    def close(self) -> None:
        """Close it: the writer's next write fails."""
        if not self.closed:
            self.closed = True
            self.pipe.close_reader()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class WriteEnd:
    """The end of a pipe that is written to, as a file of bytes or of text."""

    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe
        self.fd = next(_fds)
        self.closed = False

    def fileno(self) -> int:
        """Return its descriptor."""
        return self.fd

    def write(self, data: bytes | str) -> int:
        """Send this; waits while the pipe is full."""
        if self.closed:
            raise ValueError("write to closed file")
        encoded = data.encode() if isinstance(data, str) else data
        self.pipe.send(encoded)
        return len(data)

    def flush(self) -> None:
        """Do nothing: every write is sent at once."""

    def close(self) -> None:
        """Close it: the reader sees the end."""
        if not self.closed:
            self.closed = True
            self.pipe.close_writer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""Virtual time, and threads of which one runs at a time: whose turn it is depends on the seed alone.

A thread is a real one, so that any code can run in it; but it runs only while it has the baton, and gives it away only
where it would wait. Nothing takes time but what waits.
"""

from __future__ import annotations

import heapq
import itertools
import random
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.processes import Process

__all__ = ["Killed", "Scheduler", "Thread", "current"]

_EPOCH_S = 1_800_000_000.0
# No timer is finer, so that time goes on even if somebody waits for less and less of it.
TIMER_S = 1e-6
# More happens only in a simulation that does not come to its end.
MAX_EVENTS = 1_000_000
# Threads are given up one after the other; one that holds on for longer swallows the exception that ends it.
MAX_UNWINDING = 1000


class Killed(BaseException):
    """Raised in the threads of a simulated process that has ended."""


class _Worker:
    """A real thread, which runs one simulated thread after the other."""

    idle: list[_Worker] = []  # noqa: RUF012 - it costs more to start one than to simulate a second of a job

    def __init__(self) -> None:
        self.baton = threading.Lock()
        self.baton.acquire()
        self.call: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._work, name="simulated", daemon=True)
        self._thread.start()

    @property
    def ident(self) -> int | None:
        return self._thread.ident

    @classmethod
    def take(cls) -> _Worker:
        return cls.idle.pop() if cls.idle else cls()

    def _work(self) -> None:
        while True:
            self.baton.acquire()
            self.call()


class Thread:
    """A simulated thread; it belongs to a simulated process."""

    __slots__ = (
        "call",
        "ended",
        "ident",
        "joiners",
        "name",
        "process",
        "stalled",
        "ticket",
        "waits",
        "woken",
        "worker",
    )

    def __init__(self, process: Process, name: str, call: Callable[[], object]) -> None:
        self.process = process
        self.name = name
        self.call = call
        self.worker: _Worker | None = None
        self.ident: int | None = None
        self.ended = False
        self.waits = False
        self.stalled = False
        self.ticket = 0
        self.woken = False
        self.joiners: list[Thread] = []


_schedulers: list[Scheduler] = []


def current() -> Thread | None:
    """Return the simulated thread that calls this, or None if it is called from elsewhere."""
    if not _schedulers:
        return None
    running = _schedulers[-1].running
    return running if running is not None and running.ident == threading.get_ident() else None


class Scheduler:
    """The clock, what happens at which time, and which thread runs.

    Parameters
    ----------
    seed
        Decides the order of all that happens at the same time.

    Attributes
    ----------
    now_s
        Seconds since the simulation began.
    clock_set_by_s
        By how much the clock of all machines was set since then.
    chance
        The generator of everything that is left to chance.
    events
        How many things have happened.
    failure
        What went wrong first.
    running
        The thread that has the baton.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now_s = 0.0
        self.clock_set_by_s = 0.0
        self.events = 0
        self.failure: str | None = None
        self.running: Thread | None = None
        self.threads: list[Thread] = []
        self._driver: Thread | None = None
        self._heap: list[tuple[float, float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._ready: list[Thread] = []

    # -- what the world does

    @property
    def unix_s(self) -> float:
        """Unix time by the clock of all machines."""
        return _EPOCH_S + self.now_s + self.clock_set_by_s

    def at(self, delay_s: float, call: Callable[[], object]) -> None:
        """Have something called after so many seconds; whatever is due at the same time comes in random order."""
        heapq.heappush(self._heap, (self.now_s + delay_s, self.chance.random(), next(self._numbers), call))

    def wake(self, thread: Thread) -> None:
        """Have a waiting thread go on."""
        if thread.waits:
            thread.waits = False
            thread.woken = True
            self._ready.append(thread)

    def start(self, thread: Thread) -> None:
        """Start a thread."""
        self.threads.append(thread)
        thread.process.threads.append(thread)
        self._ready.append(thread)

    def resume(self, thread: Thread) -> None:
        """Let a thread go on whose process was frozen."""
        thread.stalled = False
        self._ready.append(thread)

    def unwind(self, thread: Thread) -> None:
        """Have the thread of a process that has ended raise `Killed` where it waits."""
        thread.ticket += 1
        if thread.waits or thread.stalled:
            thread.waits = thread.stalled = False
            self._ready.append(thread)

    def fail(self, why: str) -> None:
        """Note that something went wrong, and let the driver go on."""
        if self.failure is None:
            self.failure = why
        self.wake_driver()

    def wake_driver(self) -> None:
        """Let the driver look at what has happened."""
        if self._driver is not None:
            self.wake(self._driver)

    # -- what a thread does

    def block(self, timeout_s: float | None = None) -> bool:
        """Wait until somebody wakes the calling thread; return False if the time was over first."""
        me = self.running
        assert me is not None
        if me.process.ended:
            raise Killed
        me.ticket += 1
        if timeout_s is not None:
            ticket = me.ticket
            self.at(max(TIMER_S, timeout_s), lambda: self._expire(me, ticket))
        me.waits = True
        me.woken = False
        self._give_way(me)
        if me.process.ended:
            raise Killed
        if me.process.signals and me is me.process.threads[0]:
            me.process.handle_signals()
        return me.woken

    def yield_now(self) -> None:
        """Let others have a turn."""
        me = self.running
        assert me is not None
        self._ready.append(me)
        self._give_way(me)
        if me.process.ended:
            raise Killed

    def _expire(self, thread: Thread, ticket: int) -> None:
        if thread.ticket == ticket and thread.waits:
            thread.waits = False
            self._ready.append(thread)

    def _next(self) -> Thread:
        """Return the thread whose turn it is, after everything that happens before."""
        self.running = None
        while True:
            ready = self._ready
            while ready:
                n = len(ready)
                if n > 1:
                    i = int(self.chance.random() * n)
                    ready[i], ready[-1] = ready[-1], ready[i]
                thread = ready.pop()
                process = thread.process
                if process.halted and not process.ended:
                    thread.stalled = True
                    continue
                self.events += 1
                return thread
            if not self._heap:
                self.fail("nothing will ever happen again: everything waits")
                continue
            if self.events > MAX_EVENTS:
                self._heap.clear()
                self.fail("it does not come to an end")
                continue
            due_s, _, _, call = heapq.heappop(self._heap)
            self.now_s = max(self.now_s, due_s)
            self.events += 1
            call()

    def _give_way(self, me: Thread) -> None:
        thread = self._next()
        if thread is me:
            self.running = me
            return
        self._hand_over(thread)
        assert me.worker is not None
        me.worker.baton.acquire()
        self.running = me

    def _hand_over(self, thread: Thread) -> None:
        if thread.worker is None:
            thread.worker = worker = _Worker.take()
            thread.ident = worker.ident
            worker.call = lambda: self._run(thread)
        thread.worker.baton.release()

    def _run(self, thread: Thread) -> None:
        """Run a thread to its end; then its worker is free for another one."""
        self.running = thread
        try:
            if not thread.process.ended:
                thread.call()
        except Killed:
            pass
        except BaseException:  # noqa: BLE001 - whatever it is, it ends the simulation, which says so
            self.fail(f"{thread.process}, {thread.name}: {traceback.format_exc()}")
        thread.ended = True
        thread.call = lambda: None
        for joiner in thread.joiners:
            self.wake(joiner)
        worker = thread.worker
        assert worker is not None
        following = self._next()
        _Worker.idle.append(worker)  # it has the baton still, so nobody else takes one
        self._hand_over(following)

    # -- the whole

    def drive(self, process: Process, call: Callable[[], None]) -> None:
        """Run the simulation: ``call`` is its main thread, and at its end all other threads are ended."""
        thread = self._driver = Thread(process, "driver", call)
        done = threading.Lock()
        done.acquire()

        def main() -> None:
            try:
                call()
            finally:
                self._end_threads()
                _schedulers.remove(self)
                done.release()

        thread.call = main
        self.threads.append(thread)
        process.threads.append(thread)
        _schedulers.append(self)
        worker = thread.worker = _Worker.take()
        thread.ident = worker.ident

        def run() -> None:
            self.running = thread
            try:
                main()
            except BaseException:  # noqa: BLE001 - the caller reads it
                self.fail(f"driver: {traceback.format_exc()}")
            _Worker.idle.append(worker)

        worker.call = run
        worker.baton.release()
        done.acquire()

    def _end_threads(self) -> None:
        """End all other threads: each raises `Killed` where it waits."""
        self._heap.clear()
        for thread in self.threads:
            if thread is not self._driver:
                thread.process.ended = True
                self.unwind(thread)
        for _ in range(MAX_UNWINDING):
            if all(thread.ended or thread.worker is None for thread in self.threads if thread is not self._driver):
                return
            self.yield_now()
        sys.stderr.write("a simulated thread does not end\n")

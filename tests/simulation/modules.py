"""The standard library's modules (and psutil) as the simulated machine has them, and the switch that puts them in.

They are the seam between the product and the world: every clock, wait, thread, pipe, signal and process of the product
goes through ``time``, ``threading``, ``subprocess``, ``selectors``, ``signal``, ``os`` and ``psutil``. So the product
runs as it is, and nothing in it knows of a simulation. Outside of a simulated thread the fakes do what the real ones do.
"""

from __future__ import annotations

import inspect
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import psutil

from tests.simulation.pipes import FIRST_FD, Pipe, Readable, ReadEnd, WriteEnd
from tests.simulation.processes import Exited, Handler, Machine, Process, here, step
from tests.simulation.scheduler import EPOCH_S, Scheduler, Thread, current

__all__ = ["Popen", "machine", "replaced_modules", "set_machine"]

_PDEATH_MARK = "PR_SET_PDEATHSIG"
_machines: list[Machine] = []


def set_machine(machine: Machine) -> None:
    """Simulate on this machine from now on."""
    _machines[:] = [machine]


def machine() -> Machine:
    """Return the simulated machine."""
    return _machines[-1]


def _thread() -> Thread:
    thread = current()
    assert thread is not None, "not in the simulation"
    return thread


def _scheduler() -> Scheduler:
    return _thread().process.scheduler


class _Fake:
    """A module; what it does not have itself is the real one's."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class FakeTime(_Fake):
    @staticmethod
    def monotonic() -> float:
        thread = current()
        return time.monotonic() if thread is None else thread.process.scheduler.now_s

    @staticmethod
    def time() -> float:
        thread = current()
        return time.time() if thread is None else EPOCH_S + thread.process.scheduler.now_s

    @staticmethod
    def sleep(seconds: float) -> None:
        if current() is None:
            time.sleep(seconds)
            return
        step()
        scheduler = _scheduler()
        until_s = scheduler.now_s + seconds
        while scheduler.now_s < until_s:
            scheduler.block(until_s - scheduler.now_s)


class FakeThread:
    def __init__(
        self,
        target: Callable[..., object],
        name: str = "thread",
        args: Iterable[Any] = (),
        *,
        daemon: bool = False,
    ) -> None:
        del daemon
        arguments = tuple(args)
        self.name = name
        self._process = here()
        self._thread = Thread(self._process, name, lambda: target(*arguments))

    def start(self) -> None:
        step()
        self._process.scheduler.start(self._thread)

    def is_alive(self) -> bool:
        return not self._thread.ended

    def join(self, timeout: float | None = None) -> None:
        step()
        scheduler = _scheduler()
        until_s = None if timeout is None else scheduler.now_s + timeout
        while not self._thread.ended:
            left_s = None if until_s is None else until_s - scheduler.now_s
            if left_s is not None and left_s <= 0:
                return
            self._thread.joiners.append(_thread())
            scheduler.block(left_s)


class FakeLock:
    def __init__(self) -> None:
        self._owner: Thread | None = None
        self._depth = 0
        self._waiting: list[Thread] = []

    def acquire(self) -> bool:
        me = _thread()
        scheduler = me.process.scheduler
        if self._owner is not me:
            while self._owner is not None:
                self._waiting.append(me)
                scheduler.block()
            self._owner = me
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            if self._waiting:
                _scheduler().wake(self._waiting.pop(0))

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class FakeCondition(FakeLock):
    def __init__(self) -> None:
        super().__init__()
        self._sleeping: list[Thread] = []

    def wait(self, timeout: float | None = None) -> bool:
        step()
        me = _thread()
        depth, self._depth = self._depth, 1
        self.release()
        self._sleeping.append(me)
        try:
            woken = me.process.scheduler.block(timeout)
        finally:
            if me in self._sleeping:
                self._sleeping.remove(me)
            if not me.process.ended:
                self.acquire()
                self._depth = depth
        return woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        scheduler = _scheduler()
        until_s = None if timeout is None else scheduler.now_s + timeout
        while not (result := predicate()):
            left_s = None if until_s is None else until_s - scheduler.now_s
            if left_s is not None and left_s <= 0:
                break
            self.wait(left_s)
        return result

    def notify_all(self) -> None:
        sleeping, self._sleeping = self._sleeping, []
        scheduler = _scheduler()
        for thread in sleeping:
            scheduler.wake(thread)


class FakeEvent:
    def __init__(self) -> None:
        self._set = False
        self._waiting: list[Thread] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            thread.process.scheduler.wake(thread)

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            step()
            me = _thread()
            self._waiting.append(me)
            me.process.scheduler.block(timeout)
            if me in self._waiting:
                self._waiting.remove(me)
        return self._set


class FakeThreading(_Fake):
    Thread = FakeThread
    Lock = FakeLock
    RLock = FakeLock
    Condition = FakeCondition
    Event = FakeEvent


class FakeQueue:
    def __init__(self) -> None:
        self._items: list[Any] = []
        self._waiting: list[Thread] = []

    def __class_getitem__(cls, item: Any) -> type[FakeQueue]:
        return cls

    def put(self, item: Any) -> None:
        self._items.append(item)
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            thread.process.scheduler.wake(thread)

    def get(self) -> Any:
        me = _thread()
        while not self._items:
            self._waiting.append(me)
            me.process.scheduler.block()
        return self._items.pop(0)


class FakeQueues(_Fake):
    SimpleQueue = FakeQueue


class FakeSelector:
    def __init__(self) -> None:
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._files: dict[int, Readable] = {}

    def register(self, file: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = file if isinstance(file, int) else file.fileno()
        if fd in self._keys:
            raise KeyError(f"{file!r} (FD {fd}) is already registered")
        key = self._keys[fd] = selectors.SelectorKey(file, fd, events, data)
        readable = file if isinstance(file, Readable) else machine().files[fd]
        assert isinstance(readable, Readable)
        self._files[fd] = readable
        return key

    def unregister(self, file: Any) -> selectors.SelectorKey:
        fd = file if isinstance(file, int) else file.fileno()
        del self._files[fd]
        return self._keys.pop(fd)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        step()
        ready = self._ready()
        if ready:
            return ready
        me = _thread()
        files = list(self._files.values())
        for file in files:
            file.waiters.append(me)
        try:
            me.process.scheduler.block(timeout)
        finally:
            for file in files:
                file.waiters.remove(me)
        return self._ready()

    def _ready(self) -> list[tuple[selectors.SelectorKey, int]]:
        return [(self._keys[fd], selectors.EVENT_READ) for fd, file in self._files.items() if file.ready]


class FakeSelectors(_Fake):
    DefaultSelector = FakeSelector


class Popen:
    """A child process of whoever calls this, as ``subprocess.Popen``."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        del options
        step()
        parent = here()
        words = list(command)
        tied = len(words) > 7 and _PDEATH_MARK in words[4]
        name = words[7:] if tied else words
        child = self.process = Process(
            parent.host, parent, name[-1].rsplit(".", 1)[-1], env or parent.environment, tied=tied
        )
        self.pid = child.pid
        self.stdin = self.stdout = self.stderr = None
        if stdin == subprocess.PIPE:
            pipe = Pipe(child.scheduler)
            child.stdin, self.stdin = pipe.reader, pipe.writer
            parent.files.append(pipe.writer)
        child.stdout, self.stdout = _output(child, parent, stdout)
        child.stderr, self.stderr = _output(child, parent, stderr)
        machine().programs(child, name)

    @property
    def returncode(self) -> int | None:
        return self.process.exit_code if self.process.reaped else None

    def poll(self) -> int | None:
        if self.process.ended:
            self.process.reap()
        return self.process.exit_code

    def wait(self, timeout: float | None = None) -> int:
        step()
        process, scheduler = self.process, _scheduler()
        until_s = None if timeout is None else scheduler.now_s + timeout
        while not process.ended:
            left_s = None if until_s is None else until_s - scheduler.now_s
            if left_s is not None and left_s <= 0:
                raise subprocess.TimeoutExpired(process.name_, timeout or 0.0)
            process.waiting.append(_thread())
            scheduler.block(left_s)
        process.reap()
        assert process.exit_code is not None
        return process.exit_code

    def send_signal(self, signum: int) -> None:
        step()
        if not self.process.reaped:
            self.process.send_signal(signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def _output(child: Process, parent: Process, target: Any) -> tuple[WriteEnd | None, Any]:
    """Return what a child writes to, and what its parent reads, if that is a pipe of its own."""
    if target == subprocess.PIPE:
        pipe = Pipe(child.scheduler)
        parent.files.append(pipe.reader)
        machine().files[pipe.reader.fd] = pipe.reader
        return pipe.writer, pipe.reader
    if isinstance(target, int) and target >= FIRST_FD:
        writer = machine().files[target]
        assert isinstance(writer, WriteEnd)
        writer.pipe.n_writers += 1
        return WriteEnd(writer.pipe), None
    return None, None


class FakeSubprocess(_Fake):
    Popen = Popen


class FakeOs(_Fake):
    @property
    def environ(self) -> Any:
        return os.environ if current() is None else here().environment

    @staticmethod
    def pipe() -> tuple[int, int]:
        step()
        process = here()
        pipe = Pipe(process.scheduler)
        process.files += [pipe.reader, pipe.writer]
        machine().files |= {pipe.reader.fd: pipe.reader, pipe.writer.fd: pipe.writer}
        return pipe.reader.fd, pipe.writer.fd

    @classmethod
    def pipe2(cls, flags: int) -> tuple[int, int]:
        del flags
        return cls.pipe()

    @staticmethod
    def read(fd: int, n_bytes: int) -> bytes:
        if fd < FIRST_FD:
            return os.read(fd, n_bytes)
        step()
        data = machine().files[fd].read(n_bytes)
        if data is None:
            raise BlockingIOError
        return bytes(data)

    @staticmethod
    def close(fd: int) -> None:
        if fd < FIRST_FD:
            os.close(fd)
        else:
            machine().files.pop(fd).close()

    @staticmethod
    def fdopen(fd: int, *arguments: Any, **options: Any) -> Any:
        return os.fdopen(fd, *arguments, **options) if fd < FIRST_FD else machine().files[fd]

    @staticmethod
    def set_blocking(fd: int, blocking: bool) -> None:  # noqa: FBT001 - as the real one
        if fd < FIRST_FD:
            os.set_blocking(fd, blocking)

    @staticmethod
    def pidfd_open(pid: int) -> int:
        process = _process_of(pid)
        exited = Exited(process)
        process.exits.append(exited)
        machine().files[exited.fd] = exited
        return exited.fd

    @staticmethod
    def waitpid(pid: int, options: int) -> tuple[int, int]:
        del options
        child = next((each for each in here().offspring if each.pid == pid and each.ended), None)
        if child is None:
            raise ChildProcessError
        child.reap()
        return pid, 0


class FakeSignal(_Fake):
    @staticmethod
    def signal(signum: int, handler: Handler) -> None:
        here().handlers[signum] = handler

    @staticmethod
    def set_wakeup_fd(fd: int, *, warn_on_full_buffer: bool = True) -> None:
        del warn_on_full_buffer
        here().wakeup = machine().files[fd]


def _process_of(pid: int | None) -> Process:
    if pid is None:
        return here()
    for process in here().host.processes:
        if process.pid == pid:
            return process
    raise psutil.NoSuchProcess(pid)


class FakePsutil(_Fake):
    @staticmethod
    def Process(pid: int | None = None) -> Any:  # noqa: N802 - as the real one
        return psutil.Process(pid) if current() is None else _process_of(pid)

    @staticmethod
    def process_iter() -> Iterator[Any]:
        yield from list(here().host.processes)


FAKES: Mapping[Any, Any] = {
    id(real): fake(real)
    for real, fake in (
        (time, FakeTime),
        (threading, FakeThreading),
        (selectors, FakeSelectors),
        (subprocess, FakeSubprocess),
        (os, FakeOs),
        (signal, FakeSignal),
        (queue, FakeQueues),
        (psutil, FakePsutil),
    )
}
_CLOCKS = {id(time.monotonic): FakeTime.monotonic, id(time.time): FakeTime.time}


@contextmanager
def replaced_modules(**replaced: Any) -> Iterator[None]:
    """Put the fakes in place of the real modules in all of the product that is loaded, until the end of the block.

    Parameters
    ----------
    replaced
        Further names to replace, by ``module__name`` with dots as single underscores... see `Replacements`.
    """
    undo: list[Callable[[], None]] = []
    try:
        for name, module in list(sys.modules.items()):
            if name.startswith("laggard."):
                undo += _replace_in(module)
        yield
    finally:
        for step_back in reversed(undo):
            step_back()


def _replace_in(module: Any) -> Iterator[Callable[[], None]]:
    for name, value in list(vars(module).items()):
        if (fake := FAKES.get(id(value))) is not None:
            setattr(module, name, fake)
            yield _setter(module, name, value)
        elif getattr(value, "__module__", None) == module.__name__:
            functions = (
                [value] if inspect.isfunction(value) else list(vars(value).values()) if inspect.isclass(value) else []
            )
            for function in functions:
                if inspect.isfunction(function) and function.__defaults__:
                    defaults = tuple(_CLOCKS.get(id(default), default) for default in function.__defaults__)
                    yield _setter(function, "__defaults__", function.__defaults__)
                    function.__defaults__ = defaults


def _setter(target: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(target, name, value)

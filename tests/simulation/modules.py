"""The standard library's modules (and psutil) as the simulated machine has them, and the switch that puts them in.

They are the seam between the product and the world: every clock, wait, thread, pipe, signal and process of the product
goes through ``time``, ``threading``, ``subprocess``, ``selectors``, ``signal``, ``os`` and ``psutil``. So the product
runs as it is, and nothing in it knows of a simulation. Outside of a simulated thread the fakes do as the real ones do.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psutil

from laggard.resilience.agent import connections
from tests.simulation.pipes import FIRST_FD, Pipe, Readable, WriteEnd
from tests.simulation.processes import Exited, Handler, Machine, Process, here, step
from tests.simulation.scheduler import current
from tests.simulation.waits import Fake, FakeQueues, FakeThreading, FakeTime, current_scheduler, current_thread

__all__ = ["Popen", "machine", "replaced_modules", "set_machine"]

_PDEATH_MARK = "PR_SET_PDEATHSIG"
_machines: list[Machine] = []


def set_machine(machine: Machine) -> None:
    """Simulate on this machine from now on."""
    _machines[:] = [machine]


def machine() -> Machine:
    """Return the simulated machine."""
    return _machines[-1]


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
        me = current_thread()
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


class FakeSelectors(Fake):
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
        name = words[8:] if tied else words
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
        process, scheduler = self.process, current_scheduler()
        until_s = None if timeout is None else scheduler.now_s + timeout
        while not process.ended:
            left_s = None if until_s is None else until_s - scheduler.now_s
            if left_s is not None and left_s <= 0:
                raise subprocess.TimeoutExpired(process.name_, timeout or 0.0)
            process.waiting.append(current_thread())
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


class FakeSubprocess(Fake):
    Popen = Popen


class FakeOs(Fake):
    @property
    def environ(self) -> Any:
        return here().environment

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
    def set_blocking(fd: int, blocking: bool) -> None:
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
    def getpgid(pid: int) -> int:
        _process_of(pid)
        return 0  # what an agent starts is in its own

    @staticmethod
    def waitpid(pid: int, options: int) -> tuple[int, int]:
        del options
        child = next((each for each in here().offspring if each.pid == pid and each.ended), None)
        if child is None:
            raise ChildProcessError
        child.reap()
        return pid, 0


class FakeSignal(Fake):
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


class FakePsutil(Fake):
    @staticmethod
    def Process(pid: int | None = None) -> Any:  # noqa: N802 - as the real one
        return _process_of(pid)

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
} | {
    # Read from /proc: simulated processes are connected to nothing outside of the job.
    id(connections.descendants): lambda root: [root],
    id(connections.used_by): lambda _: [],
}
# Clocks, and how to wait, that are the default of an argument.
_CLOCKS = {
    id(time.monotonic): lambda: time.monotonic() if current() is None else FakeTime.monotonic(),
    id(time.time): lambda: time.time() if current() is None else FakeTime.time(),
    id(time.sleep): lambda pause_s: time.sleep(pause_s) if current() is None else FakeTime.sleep(pause_s),
}


@contextmanager
def replaced_modules() -> Iterator[None]:
    """Put the fakes in place of the real modules in all of the product that is loaded, until the end of the block."""
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

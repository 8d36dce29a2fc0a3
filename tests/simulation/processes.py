"""Simulated processes: parents and children, signals, the ways to end, and those that do not."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import psutil

from tests.simulation.pipes import Readable, ReadEnd, WriteEnd
from tests.simulation.scheduler import Killed, Scheduler, Thread, current

__all__ = ["Exited", "Host", "Machine", "Process", "here"]

Handler = Callable[[int, FrameType | None], object]


class Exited(Readable):
    """A pidfd: ready once the process has ended."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self.process = process

    @property
    def ready(self) -> bool:
        """Whether the process has ended."""
        return self.process.ended

    def close(self) -> None:
        """Do nothing."""


class Host:
    """One machine: its processes, and whether it is frozen as a whole."""

    def __init__(self, name: str, scheduler: Scheduler) -> None:
        self.name = name
        self.scheduler = scheduler
        self.frozen = False
        self.kernel_lines: list[str] = []
        self.init = Process(self, None, "init", {}, adopts=True)
        self.processes: list[Process] = [self.init]

    def freeze(self) -> None:
        """Stop everything that runs here."""
        self.frozen = True

    def thaw(self) -> None:
        """Let everything go on."""
        self.frozen = False
        for process in list(self.processes):
            process.go_on()

    @property
    def living(self) -> list[Process]:
        """The processes that have not ended, but for init."""
        return [process for process in self.processes if not process.ended and process is not self.init]


class Process:
    """A simulated process, with the interface of ``psutil.Process`` for what the product uses of it.

    Attributes
    ----------
    pid, host, name_, environment
        Who it is, where, and with which variables.
    ended
        Whether it has.
    exit_code
        Its exit code, minus the signal number if it was killed.
    reaped
        Whether somebody has taken notice of its end: until then it is a zombie.
    frozen
        Whether it is stopped (SIGSTOP).
    stuck
        Whether it waits in the kernel, where nothing ends it.
    tied
        Whether it ends with its parent.
    active_s
        When it last did something that can be seen from outside.
    """

    _pids = 10_000_000

    def __init__(
        self,
        host: Host,
        parent: Process | None,
        name: str,
        environment: Mapping[str, str],
        *,
        tied: bool = False,
        adopts: bool = False,
    ) -> None:
        Process._pids += 1
        self.pid = Process._pids
        self.host = host
        self.parent = parent
        self.name_ = name
        self.environment = dict(environment)
        self.tied = tied
        self.adopts = adopts
        self.scheduler = host.scheduler
        self.active_s = self.scheduler.now_s
        self.offspring: list[Process] = []
        self.threads: list[Thread] = []
        self.handlers: dict[int, Handler] = {}
        self.signals: list[int] = []
        self.files: list[ReadEnd | WriteEnd] = []
        self.wakeup: WriteEnd | None = None
        self.stdin: ReadEnd | None = None
        self.stdout: WriteEnd | None = None
        self.stderr: WriteEnd | None = None
        self.ended = self.reaped = False
        self.exit_code: int | None = None
        self.frozen = self.stuck = self.kill_pending = False
        self.exits: list[Exited] = []
        self.waiting: list[Thread] = []
        self.delayed: list[Callable[[], object]] = []
        self.tag: object = None
        self.command = 0
        self.on_end: Callable[[Process], None] | None = None
        self.steps = 0
        self.trap: tuple[int, Callable[[], object]] | None = None
        if parent is not None:
            parent.offspring.append(self)
            host.processes.append(self)

    def __repr__(self) -> str:
        return f"{self.name_}@{self.host.name}"

    @property
    def halted(self) -> bool:
        """Whether its threads get no turn."""
        return self.frozen or self.stuck or self.host.frozen

    # -- what ends it, or not

    def run(self, call: Callable[[], int]) -> None:
        """Have it run this as its main thread; what that returns is its exit code."""

        def main() -> None:
            try:
                code = call()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            self.exit(code)

        self.scheduler.start(Thread(self, "main", main))

    def after(self, delay_s: float, call: Callable[[], object]) -> None:
        """Have it do something later, unless it has ended by then; not while it is frozen."""

        def due() -> None:
            if self.ended:
                return
            if self.halted:
                self.delayed.append(call)
            else:
                call()

        self.scheduler.at(delay_s, due)

    def exit(self, code: int) -> None:
        """End it."""
        if self.ended:
            return
        self.ended, self.exit_code = True, code
        for thread in self.threads:
            if not thread.ended:
                self.scheduler.unwind(thread)
        for file in list(self.files):
            file.close()
        for end in (self.stdin, self.stdout, self.stderr):
            if end is not None:
                end.close()
        heir = self._heir()
        for child in self.offspring:
            child.parent = heir
            heir.offspring.append(child)
            if child.ended:
                heir.child_ended(child)
            elif child.tied:
                child.send_signal(signal.SIGKILL)
        self.offspring = []
        if self.on_end is not None:
            self.on_end(self)
        for exit_ in self.exits:
            exit_.notify(self.scheduler)
        for thread in self.waiting:
            self.scheduler.wake(thread)
        if self.parent is not None:
            self.parent.child_ended(self)

    def _heir(self) -> Process:
        heir = self.parent
        while heir is not None and (heir.ended or not heir.adopts):
            heir = heir.parent
        return heir or self.host.init

    def child_ended(self, child: Process) -> None:
        """Take notice of a child's end: SIGCHLD."""
        if self is self.host.init or self.parent is None:
            child.reap()
        elif self.wakeup is not None and not self.ended:
            self.wakeup.pipe.unread += b"c"
            self.wakeup.pipe.reader.notify(self.scheduler)

    def reap(self) -> None:
        """Forget it."""
        self.reaped = True
        if self.parent is not None and self in self.parent.offspring:
            self.parent.offspring.remove(self)
        if self in self.host.processes:
            self.host.processes.remove(self)

    def send_signal(self, signum: int) -> None:
        """Send it a signal."""
        if self.ended:
            return
        if signum == signal.SIGKILL:
            if self.stuck:
                self.kill_pending = True
            else:
                self.exit(-signum)
        elif signum == signal.SIGSTOP:
            self.frozen = True
        elif signum == signal.SIGCONT:
            self.frozen = False
            self.go_on()
        elif self.threads and signum in self.handlers:
            self.signals.append(signum)
            self.scheduler.wake(self.threads[0])
        elif self.halted:
            self.delayed.append(lambda: self.send_signal(signum))
        else:
            self.exit(-signum)

    def handle_signals(self) -> None:
        """Run the handlers of the signals that have come; its main thread does this wherever it waits."""
        while self.signals:
            signum = self.signals.pop(0)
            self.handlers[signum](signum, None)

    def go_on(self) -> None:
        """Let its threads have their turns again."""
        if self.halted:
            return
        for thread in self.threads:
            if thread.stalled:
                self.scheduler.resume(thread)
        delayed, self.delayed = self.delayed, []
        for call in delayed:
            if not self.ended:
                call()

    def release(self) -> None:
        """Let it come back from the kernel."""
        self.stuck = False
        if self.kill_pending:
            self.exit(-signal.SIGKILL)
        else:
            self.go_on()

    # -- as psutil has it

    def kill(self) -> None:
        """Kill it."""
        step()
        self._gone_is_an_error()
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end."""
        self._gone_is_an_error()
        self.send_signal(signal.SIGTERM)

    def children(self, *, recursive: bool = False) -> list[Process]:
        """Return its children, or all its descendants."""
        step()
        found = list(self.offspring)
        if recursive:
            for child in self.offspring:
                found += child.children(recursive=True)
        return found

    def parents(self) -> list[Process]:
        """Return its parent, that one's parent, and so on."""
        found = []
        each = self.parent
        while each is not None:
            found.append(each)
            each = each.parent
        return found

    def status(self) -> str:
        """Return its state in the kernel's words."""
        self._gone_is_an_error()
        if self.ended:
            return str(psutil.STATUS_ZOMBIE)
        return str(psutil.STATUS_DISK_SLEEP if self.stuck else psutil.STATUS_STOPPED if self.frozen else "sleeping")

    def environ(self) -> dict[str, str]:
        """Return its variables."""
        self._gone_is_an_error()
        return {} if self.ended else self.environment

    def name(self) -> str:
        """Return its name."""
        return self.name_

    def _gone_is_an_error(self) -> None:
        if self.reaped:
            raise psutil.NoSuchProcess(self.pid)


class Machine:
    """All hosts of a simulation, and how to start a process by its command line.

    Parameters
    ----------
    scheduler
        Of the simulation.
    programs
        What a command line runs: begins the simulated process.
    """

    def __init__(
        self, scheduler: Scheduler, hosts: Sequence[str], programs: Callable[[Process, list[str]], None]
    ) -> None:
        self.scheduler = scheduler
        self.hosts = {name: Host(name, scheduler) for name in hosts}
        self.programs = programs
        self.files: dict[int, Any] = {}
        self.disk: Any = None
        self.judge: Any = None
        self.links: Mapping[str, Any] = {}

    def spawn(self, parent: Process, command: list[str], environment: Mapping[str, str], *, tied: bool) -> Process:
        """Start a process as a child of another one."""
        process = Process(parent.host, parent, command[-1].rsplit(".", 1)[-1], environment, tied=tied)
        self.programs(process, command)
        return process


def here() -> Process:
    """Return the process that runs."""
    thread = current()
    assert thread is not None, "not in the simulation"
    return thread.process


def step() -> None:
    """Take one step of a process: where a fault may hit it."""
    thread = current()
    if thread is None:
        return
    process = thread.process
    if process.ended:
        raise Killed
    process.steps += 1
    if process.trap is not None and process.steps >= process.trap[0]:
        _, fault = process.trap
        process.trap = None
        fault()
        if process.ended:
            raise Killed
        if process.halted:
            process.scheduler.yield_now()

"""The processes of one node: tasks of launches, sidecars, and what launches have left."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from laggard.resilience.decision.reasons import StuckProcesses
from laggard.resilience.nodes.notices import About
from laggard.resilience.wire import Command, Inbox
from laggard.resilience.wire import tasks as wire

TakeOutput = Callable[[wire.Stream, bytes], None]
"""Called with a stream's name and a piece of its output, which is empty at the end of the task."""


class NodeTasks:
    """Methods send commands, attributes hold what has been reported."""

    def __init__(self, send: Callable[[Command], None], inbox: Inbox, notices: deque[About]) -> None:
        # By name of each task that might have been forked from the warm process and has started: why it was not, or
        # nothing
        self.starts: dict[str, str] = {}
        self.ends: dict[str, wire.TaskEnded] = {}  # how each task ended, by name, once it has
        # How many processes the last `end_leftovers` ended; `None` until it is done
        self.leftovers_ended: int | None = 0
        self.stuck: StuckProcesses | None = None  # what the last `end_leftovers` could not end
        self._send = send
        self._notices = notices
        self._outputs: dict[str, TakeOutput] = {}
        self._signalled: set[str] = set()
        self._sidecars: set[str] = set()
        inbox.on(wire.Output, lambda report: self._outputs[report.name](report.stream, report.data))
        inbox.on(wire.TaskStarted, self._take_start)
        inbox.on(wire.TaskEnded, self._take_end)
        inbox.on(wire.WillRestart, self._notices.append)
        inbox.on(wire.LeftoversEnded, self._take_leftovers)

    def start(self, task: wire.StartTask, output: TakeOutput | None = None) -> None:
        """Have the agent start a process of one launch; its end will be in ``ends``."""
        # `output` must not block, and the agent has to be told once it is printed; by default it goes to a log.
        if output is not None:
            self._outputs[task.name] = output
        self._send(replace(task, relayed=output is not None))

    def pass_on(self, name: str, output: TakeOutput) -> None:
        """Pass the output of a task on in another way."""
        for stream in wire.STREAMS:
            self._outputs[name](stream, b"")
        self._outputs[name] = output

    def signal(self, name: str, signum: int) -> None:
        """Have the agent send a signal to a task, if it runs; its end is then not reported to the user."""
        self._signalled.add(name)
        self._send(wire.SignalTask(name, signum))

    def start_sidecar(self, name: str, command: Sequence[str]) -> None:
        """Have the agent start a process that runs as long as the agent, unless it has already done so."""
        if name not in self._sidecars:
            self._sidecars.add(name)
            self.start(wire.StartTask(name, tuple(command), outlives_launches=True, restarts=True))

    def stop_sidecar(self, name: str) -> None:
        """Have the agent end such a process, if it runs."""
        if name in self._sidecars:
            self._sidecars.remove(name)
            self.signal(name, signal.SIGKILL)

    def end_leftovers(self, below: int) -> None:
        """Have the agent end what is left of launches below a number; ``leftovers_ended`` is set once that is done."""
        self.leftovers_ended = None
        self._send(wire.EndLeftovers(below))

    def _take_start(self, report: wire.TaskStarted) -> None:
        self.starts[report.name] = report.why_not

    def _take_end(self, report: wire.TaskEnded) -> None:
        if (output := self._outputs.get(report.name)) is not None:
            for stream in wire.STREAMS:
                output(stream, b"")
        elif report.name not in self._signalled:
            self._notices.append(report)
        self.ends[report.name] = report

    def _take_leftovers(self, report: wire.LeftoversEnded) -> None:
        self.leftovers_ended, self.stuck = report.n_ended, report.stuck

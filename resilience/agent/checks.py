"""What an agent finds out about its node when it is asked: its state, where its ranks stand, its logs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from laggard.logs import ends_of_logs
from laggard.resilience.agent.connections import descendants, used_by
from laggard.resilience.agent.context import Context
from laggard.resilience.agent.inquiries import READY_AFTER_S, Inquiries, Inquiry
from laggard.resilience.wire import checks as wire
from laggard.resilience.wire import decode, encode

STACKS_COMMAND = (sys.executable, "-P", "-m", "laggard.resilience.agent.stack_dump")
STACKS_DEADLINE_S = 10.0
TARGETS_COMMAND = (sys.executable, "-P", "-m", "laggard.resilience.agent.target_check")
# Its own limit, and to start Python on a busy node.
TARGETS_DEADLINE_S = 18.0


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """How a node is checked: by which process, how long it may take, and when the next one is kept ready."""

    command: Sequence[str] = (sys.executable, "-P", "-m", "laggard.resilience.agent.node_check")
    deadline_s: float = 2.5
    ready_after_s: float = READY_AFTER_S


class Checks:
    """Asks processes, since a driver may hang; ``newest_error_output`` is that of the running tasks."""

    def __init__(
        self, context: Context, settings: CheckSettings, newest_error_output: Callable[[], dict[str, str]]
    ) -> None:
        self._context = context
        self._settings = settings
        self._newest_error_output = newest_error_output
        self._inquiries = Inquiries(context, settings.ready_after_s)
        self._targets = Inquiries(context)  # it must not wait for a check, nor the next check for it
        context.inbox.on(wire.CheckNode, self.check)
        context.inbox.on(wire.AskTargets, self.ask_targets)
        context.inbox.on(wire.ListConnections, self.list_connections)
        context.inbox.on(wire.DumpStacks, self.dump_stacks)
        context.inbox.on(wire.SendLogs, self.send_logs)

    @property
    def pids(self) -> set[int]:
        """Process ids of what answers."""
        return self._inquiries.pids | self._targets.pids

    def check(self, command: wire.CheckNode) -> None:
        """Have the node checked."""
        settings = self._settings
        self._inquiries.ask(Inquiry(self._send_check, settings.command, settings.deadline_s, encode(command)))

    def _send_check(self, line: bytes) -> None:
        self._context.send(decode(line, wire.NodeChecked) if line else wire.NodeChecked(None))

    def ask_targets(self, command: wire.AskTargets) -> None:
        """Find out whether targets answer."""
        answer = partial(self._send_targets, command.number)
        self._targets.ask(Inquiry(answer, TARGETS_COMMAND, TARGETS_DEADLINE_S, encode(command)))

    def _send_targets(self, number: int, line: bytes) -> None:
        self._context.send(decode(line, wire.TargetsAsked) if line else wire.TargetsAsked(number))

    def list_connections(self, command: wire.ListConnections) -> None:
        """Say what the program's processes are connected to."""
        pids = [*(descendants(command.program) if command.program else ()), *descendants(os.getpid())[1:]]
        self._context.send(wire.Connections(tuple(used_by(pids))))

    def dump_stacks(self, command: wire.DumpStacks) -> None:
        """Find out where the ranks stand."""
        argv = [*STACKS_COMMAND, str(command.launch)]
        self._inquiries.ask(Inquiry(self._send_stacks, argv, STACKS_DEADLINE_S))

    def _send_stacks(self, line: bytes) -> None:
        stacks = decode(line, wire.Stacks) if line else wire.Stacks()
        # What is ending by now has written why.
        self._context.send(replace(stacks, error_output=self._newest_error_output()))

    def send_logs(self, _: wire.SendLogs) -> None:
        """Send the end of each log."""
        for name, text in ends_of_logs(self._context.folder.path).items():
            self._context.send(wire.LogEnd(name, text))
        self._context.send(wire.LogsSent())

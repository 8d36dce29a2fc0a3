"""What an agent finds out about its node when it is asked: its state, where its ranks stand, its logs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from laggard.logs import ends_of_logs
from laggard.resilience.agent.context import Context
from laggard.resilience.agent.inquiries import READY_AFTER_S, Inquiries, Inquiry
from laggard.resilience.wire import encode
from laggard.resilience.wire.checks import CheckNode, DumpStacks, LogEnd, LogsSent, NodeChecked, SendLogs, Stacks
from laggard.resilience.wire.codec import decode

STACKS_COMMAND = (sys.executable, "-P", "-m", "laggard.resilience.agent.stack_dump")
STACKS_DEADLINE_S = 10.0


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
        self._inquiries = Inquiries(context.selector, context.later, settings.ready_after_s)

    @property
    def pids(self) -> set[int]:
        """Process ids of what answers."""
        return self._inquiries.pids

    def check(self, command: CheckNode) -> None:
        """Have the node checked."""
        settings, variables = self._settings, self._context.folder.variables
        question = encode(command)
        self._inquiries.ask(Inquiry(self._send_check, settings.command, variables, settings.deadline_s, question))

    def _send_check(self, line: bytes) -> None:
        self._context.send(decode(line, NodeChecked) if line else NodeChecked(None))

    def dump_stacks(self, command: DumpStacks) -> None:
        """Find out where the ranks stand."""
        argv, variables = [*STACKS_COMMAND, str(command.launch)], self._context.folder.variables
        self._inquiries.ask(Inquiry(self._send_stacks, argv, variables, STACKS_DEADLINE_S))

    def _send_stacks(self, line: bytes) -> None:
        stacks = decode(line, Stacks) if line else Stacks()
        # What is ending by now has written why.
        self._context.send(replace(stacks, error_output=self._newest_error_output()))

    def send_logs(self, _: SendLogs) -> None:
        """Send the end of each log."""
        for name, text in ends_of_logs(self._context.folder.path).items():
            self._context.send(LogEnd(name, text))
        self._context.send(LogsSent())

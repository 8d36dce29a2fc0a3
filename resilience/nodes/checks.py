"""What is known of the state of one node: its checks, its clock, where its ranks stand, its logs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from laggard.resilience.decision.evidence import NodeCheck
from laggard.resilience.decision.stacks import RankStack
from laggard.resilience.nodes.notices import About
from laggard.resilience.reading.targets import NoAnswer, Target
from laggard.resilience.wire import Command, Inbox
from laggard.resilience.wire import checks as wire
from laggard.resilience.wire.node import Ping, Pong
from laggard.system.clock_offset import ClockOffset


class NodeChecks:
    """Methods send commands, attributes hold what has been reported."""

    def __init__(self, send: Callable[[Command], None], inbox: Inbox, notices: deque[About]) -> None:
        self.answered = False  # whether the agent has answered the last ping
        # How far the node's clock is from ours, by the ping with the shortest round trip; None: not known yet
        self.clock: ClockOffset | None = None
        # The node's state when the job began, and when it was checked last; None: not known
        self.first: NodeCheck | None = None
        self.last: NodeCheck | None = None
        # Where the ranks on it stand, by the last `dump_stacks`; `None` until it is done
        self.stacks: Sequence[RankStack] | None = ()
        # What each of its running tasks had written last to its standard error by then
        self.error_output: Mapping[str, str] = {}
        # The end of each log of the node, by file name, and whether the agent has sent all of them
        self.logs: dict[str, str] = {}
        self.logs_sent = False
        # Why each target of the last question does not answer, empty if unknown; `None` until it is answered
        self.answers: Sequence[NoAnswer | None] | None = ()
        self._n_asked = 0
        # What the program's processes on it were connected to, by the last question; `None` until it is answered
        self.connections: Sequence[Target] | None = None
        self._send = send
        self._notices = notices
        self._pinged_s = 0.0
        self._n_awaited = 0  # checks that were asked for and are not done
        inbox.on(Pong, self._take_pong)
        inbox.on(wire.NodeChecked, self._take_check)
        inbox.on(wire.Connections, self._take_connections)
        inbox.on(wire.TargetsAsked, self._take_answers)
        inbox.on(wire.Stacks, self._take_stacks)
        inbox.on(wire.LogEnd, self._take_log)
        inbox.on(wire.LogsSent, self._take_end_of_logs)

    @property
    def done(self) -> bool:
        """Whether the last check that was asked for is done."""
        return self._n_awaited == 0

    def ping(self) -> None:
        """Have the agent answer, after it has reported everything that it has noticed by then."""
        self.answered = False
        self._pinged_s = time.time()
        self._send(Ping())

    def check(self, devices: Sequence[str], *, probe: bool = False) -> None:
        """Have the agent check its node and these GPUs, and probe them; the result will be in ``last``."""
        self._n_awaited += 1
        self._send(wire.CheckNode(tuple(devices), probe))

    def ask_targets(self, targets: Sequence[Target], own: Sequence[str]) -> None:
        """Have the agent find out whether these answer; the result will be in ``answers``."""
        self.answers = None
        self._n_asked += 1
        self._send(wire.AskTargets(self._n_asked, tuple(targets), tuple(own)))

    def list_connections(self, program: int | None) -> None:
        """Have the agent say what the program's processes there are connected to; it will be in ``connections``."""
        self.connections = None
        self._send(wire.ListConnections(program))

    def dump_stacks(self, launch: int) -> None:
        """Have the agent find out where a launch's ranks stand; the result will be in ``stacks``."""
        self.stacks = None
        self._send(wire.DumpStacks(launch))

    def send_logs(self) -> None:
        """Have the agent send the end of each log on its node; ``logs_sent`` is set once all are in ``logs``."""
        self.logs_sent = False
        self._send(wire.SendLogs())

    def _take_pong(self, report: Pong) -> None:
        self.answered = True
        measured = ClockOffset.of_ping(self._pinged_s, report.time_s, time.time())
        if measured.is_much and not (self.clock and self.clock.is_much):
            self._notices.append(measured)
        if self.clock is None or measured.uncertainty_s <= self.clock.uncertainty_s:
            self.clock = measured

    def _take_check(self, report: wire.NodeChecked) -> None:
        self.last = report.found
        self.first = self.first or self.last
        self._n_awaited -= 1

    def _take_answers(self, report: wire.TargetsAsked) -> None:
        if report.number == self._n_asked:  # else nobody waits for it any more
            self.answers = report.answers

    def _take_connections(self, report: wire.Connections) -> None:
        self.connections = report.found

    def _take_stacks(self, report: wire.Stacks) -> None:
        self.stacks, self.error_output = report.found, report.error_output

    def _take_log(self, report: wire.LogEnd) -> None:
        self.logs[report.name] = report.text

    def _take_end_of_logs(self, _: wire.LogsSent) -> None:
        self.logs_sent = True

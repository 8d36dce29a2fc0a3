"""One node, by way of its agent."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from laggard.kvstore.control import NodeRecord
from laggard.resilience.allocation.base import AgentProcess
from laggard.resilience.nodes.agent_pipe import AgentPipe
from laggard.resilience.nodes.checks import NodeChecks
from laggard.resilience.nodes.notices import About
from laggard.resilience.nodes.ray import NodeRay
from laggard.resilience.nodes.tasks import NodeTasks
from laggard.resilience.nodes.warm import NodeWarm
from laggard.resilience.wire import Inbox
from laggard.resilience.wire.node import Crashed, SetUp, ToldToEnd


class Node:
    """One node, divided by subject: what it is asked, and what its agent has reported."""

    def __init__(
        self,
        record: NodeRecord,
        agent: AgentProcess,
        changed: threading.Condition,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        inbox = Inbox()
        self.record = record
        self.notices: deque[About] = deque()  # what the user should be told about it and nobody has taken yet
        # Whether somebody else, such as Slurm, has told the agent to end; it does so when its tasks had time to save
        self.told_to_end = False
        self._directory = ""
        # The subjects; `changed` is notified at every change of theirs
        self.agent = AgentPipe(record.hostname, agent, inbox, self.notices, changed, clock)
        self.tasks = NodeTasks(self.agent.send, inbox, self.notices)
        self.ray = NodeRay(self.agent.send, inbox)
        self.checks = NodeChecks(self.agent.send, inbox, self.notices)
        self.warm = NodeWarm(self.agent.send, inbox)
        inbox.on(Crashed, self.notices.append)
        inbox.on(ToldToEnd, self._take_end)
        self.agent.start_reading()

    def set_up(self, command: SetUp) -> None:
        """Have the agent write the node's private files, and use an environment and the timing of so many nodes."""
        self._directory = command.directory
        self.agent.send(command)

    def path_of(self, name: str) -> str:
        """Return the path, on the node, of a private file."""
        return f"{self._directory}/{name}"

    def take_notices(self) -> list[About]:
        """Return what is new to tell the user about this node."""
        return [self.notices.popleft() for _ in range(len(self.notices))]

    def _take_end(self, _: ToldToEnd) -> None:
        self.told_to_end = True

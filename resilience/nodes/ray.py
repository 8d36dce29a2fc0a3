"""The Ray processes of one node."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Literal

from laggard.resilience.wire import Command, Inbox
from laggard.resilience.wire.ray import RayEnded, StartRay, StopRay, WarmUpRay

RAY_COMMAND = (sys.executable, "-P", "-m", "laggard.resilience.ray.node")


class NodeRay:
    """Methods send commands, attributes hold what has been reported."""

    def __init__(self, send: Callable[[Command], None], inbox: Inbox) -> None:
        # `down`: not started, or stopped by us; `up`: running; `ended`: ended on its own, did not start, or left the
        # cluster
        self.state: Literal["down", "up", "ended"] = "down"
        self.end = RayEnded()  # what it said as it ended last
        self._send = send
        self._stopping = False
        self._is_warm = False
        inbox.on(RayEnded, self._take_end)

    def warm_up(self) -> None:
        """Have the agent load Ray ahead of time."""
        if not self._is_warm:
            self._is_warm = True
            self._send(WarmUpRay(RAY_COMMAND))

    def start(self, arguments: Sequence[str]) -> None:
        """Have the agent start the node's Ray processes with these arguments to the ``ray`` command."""
        self._stopping = False
        self._is_warm = True
        self.state = "up"
        self._send(StartRay(RAY_COMMAND, tuple(arguments)))

    def stop(self) -> None:
        """Have the agent end the node's Ray processes; they are ``down`` once that is done."""
        self._stopping = True
        self._send(StopRay())

    def give_up(self) -> None:
        """End the node's Ray processes because the node does not join: then they count as ``ended``."""
        self._send(StopRay())

    def _take_end(self, report: RayEnded) -> None:
        self.state = "down" if self._stopping else "ended"
        self.end = report

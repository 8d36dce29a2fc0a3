"""The warm process of one node."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from laggard.resilience.wire import Command, Inbox
from laggard.resilience.wire.warm import ForkAhead, Hooked, Imported, KeepWarm, LeftOut, WarmReady


class NodeWarm:
    """Methods send commands, attributes hold what has been reported.

    Attributes
    ----------
    hooked
        Whether the program's Python has run our code at its start.
    imports
        What the program has imported on the node before it was at work.
    """

    def __init__(self, send: Callable[[Command], None], inbox: Inbox) -> None:
        self.hooked = False
        self.imports: tuple[str, ...] = ()
        self._news: deque[WarmReady | LeftOut] = deque()
        self._send = send
        inbox.on(Hooked, self._take_hook)
        inbox.on(Imported, self._take_imports)
        inbox.on(WarmReady, self._news.append)
        inbox.on(LeftOut, self._news.append)

    def keep(self, command: KeepWarm) -> None:
        """Have the agent keep a warm process, from which tasks with this command are then forked."""
        self._send(command)

    def fork_ahead(self, n_tasks: int) -> None:
        """Have the agent fork processes for tasks that are about to start, if it has a warm process."""
        self._send(ForkAhead(n_tasks))

    def take_news(self) -> list[WarmReady | LeftOut]:
        """Return what is new about the warm process."""
        return [self._news.popleft() for _ in range(len(self._news))]

    def _take_hook(self, _: Hooked) -> None:
        self.hooked = True

    def _take_imports(self, report: Imported) -> None:
        self.imports = report.names

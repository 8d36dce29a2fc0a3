"""The warm process of one node."""

from __future__ import annotations

from collections import deque

from laggard.resilience.wire import Inbox
from laggard.resilience.wire.warm import Imported, LeftOut, WarmReady


class NodeWarm:
    """What the agent has reported of it."""

    def __init__(self, inbox: Inbox) -> None:
        self.imports: tuple[str, ...] = ()  # what the program has imported on the node before it was at work
        self._news: deque[WarmReady | LeftOut] = deque()
        inbox.on(Imported, self._take_imports)
        inbox.on(WarmReady, self._news.append)
        inbox.on(LeftOut, self._news.append)

    def take_news(self) -> list[WarmReady | LeftOut]:
        """Return what is new about the warm process."""
        return [self._news.popleft() for _ in range(len(self._news))]

    def _take_imports(self, report: Imported) -> None:
        self.imports = report.names

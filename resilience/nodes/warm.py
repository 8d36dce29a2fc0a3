"""The warm process of one node."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from laggard.resilience.wire import Command, Inbox
from laggard.resilience.wire.warm import Imported, KeepWarm, LeftOut, SayImports, WarmReady


class NodeWarm:
    """What it is to load, and what the agent has reported of it."""

    def __init__(self, send: Callable[[Command], None], inbox: Inbox) -> None:
        self._send = send
        self._wanted: KeepWarm | None = None
        self.imports: tuple[str, ...] = ()  # what the program has imported on the node before it was at work
        self.is_ready = False  # whether it has loaded all of it
        self._left_out: set[str] = set()
        self._news: deque[WarmReady | LeftOut] = deque()
        inbox.on(Imported, self._take_imports)
        inbox.on(WarmReady, self._take_ready)
        inbox.on(LeftOut, self._take_left_out)

    @property
    def loaded(self) -> tuple[str, ...]:
        """What it has loaded, once it is ready."""
        wanted = () if self._wanted is None else self._wanted.modules
        return tuple(name for name in wanted if name not in self._left_out)

    def keep(self, command: KeepWarm) -> None:
        """Have the agent keep one, unless it does."""
        self.is_ready = self.is_ready and command == self._wanted
        self._wanted = command
        self._send(command)

    def ask_for_imports(self) -> None:
        """Have the agent say what the program has imported there by now."""
        self._send(SayImports())

    def take_news(self) -> list[WarmReady | LeftOut]:
        """Return what is new about the warm process."""
        return [self._news.popleft() for _ in range(len(self._news))]

    def _take_ready(self, report: WarmReady) -> None:
        self.is_ready = True
        self._news.append(report)

    def _take_left_out(self, report: LeftOut) -> None:
        self._left_out.add(report.name)
        self._news.append(report)

    def _take_imports(self, report: Imported) -> None:
        self.imports = report.names

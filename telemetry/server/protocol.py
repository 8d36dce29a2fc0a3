"""HTTP connections that must make progress: a client that sends a request's head too slowly is shown the door."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["HEAD_DEADLINE_S", "BoundedProtocol"]

HEAD_DEADLINE_S = 10.0


class BoundedProtocol(H11Protocol):
    """Uvicorn's protocol, with a deadline from a request's first byte (or the connection) to the end of its head."""

    _head_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Take what came, and wait for the rest of the head if that was not all of it."""
        super().data_received(data)
        cycle: Any = self.cycle  # None before the first request
        if cycle is not None and not cycle.response_complete:
            self._stop_waiting()
        elif self._head_deadline is None:
            self._wait_for_head()

    def on_response_complete(self) -> None:
        """Leave the connection to the keep-alive timeout until the next request begins."""
        self._stop_waiting()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        self._head_deadline = self.loop.call_later(HEAD_DEADLINE_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None

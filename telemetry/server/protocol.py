"""Connections that must make progress: a client that sends or reads too slowly is disconnected.

A new client is always accepted: if there are too many connections, the one whose client has kept the server waiting the
longest is closed.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol


class BoundedProtocol(H11Protocol):
    """Uvicorn's protocol, with deadlines for sending a request's head and for reading an answer."""

    max_connections = 200
    head_deadline_s = 10.0
    read_deadline_s = 30.0

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._deadline: asyncio.TimerHandle | None = None
        self._heard_s = self.loop.time()

    def connection_made(self, transport: Any) -> None:
        """Make room for the connection, and wait for its first request."""
        super().connection_made(transport)
        self._wait(self.head_deadline_s)
        everybody = cast("set[BoundedProtocol]", self.connections)
        if len(everybody) > self.max_connections:
            last = min((one for one in everybody if one.waits_for_its_client), key=lambda one: one._heard_s)
            everybody.discard(last)
            last.transport.abort()

    @property
    def waits_for_its_client(self) -> bool:
        """Whether the client has to act: send (the rest of) a request, or read."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is None or cycle.response_complete or cycle.more_body or self.flow.write_paused

    def data_received(self, data: bytes) -> None:
        """Process what arrived, and wait for the rest of the head if it is incomplete."""
        self._heard_s = self.loop.time()
        super().data_received(data)
        cycle: Any = self.cycle
        if cycle is not None and not cycle.response_complete and not self.flow.write_paused:
            self._stop_waiting()
        elif self._deadline is None:
            self._wait(self.head_deadline_s)

    def on_response_complete(self) -> None:
        """Leave the connection to the keep-alive timeout until the next request begins."""
        self._heard_s = self.loop.time()
        if not self.flow.write_paused:
            self._stop_waiting()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self._stop_waiting()
        self._wait(self.read_deadline_s)

    def resume_writing(self) -> None:
        """Stop waiting: the client has read."""
        self._stop_waiting()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close, even if the client has not read everything."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, unless it comes in the midst of an answer."""
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete:
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _wait(self, deadline_s: float) -> None:
        self._deadline = self.loop.call_later(deadline_s, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

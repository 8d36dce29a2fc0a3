"""Connections that must make progress: a client that sends or reads too slowly is shown the door.

There is always a place for a new client: when all are taken, the connection goes whose client has kept us waiting the
longest. A connection that begins with a small letter carries OpenTSDB's lines instead of HTTP.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from telemetry.server.answers import to_json
from telemetry.server.problems import error_body
from telemetry.server.telnet import MAX_LINE_BYTES, TakeLines

__all__ = ["BoundedProtocol"]

MAX_CONNECTIONS = 200
HEAD_DEADLINE_S = 10.0
READ_DEADLINE_S = 30.0


class BoundedProtocol(H11Protocol):
    """Uvicorn's protocol, with deadlines for a request's head and for the reading of an answer.

    Parameters
    ----------
    arguments
        Uvicorn's.
    take_lines
        Takes connections that carry lines; None: they are bad requests.
    """

    def __init__(self, *arguments: Any, take_lines: TakeLines | None = None, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._take_lines = take_lines
        self._deadline: asyncio.TimerHandle | None = None
        self._heard_s = self.loop.time()
        self._is_new = True

    def connection_made(self, transport: Any) -> None:
        """Find a place, and begin to wait for the first request."""
        super().connection_made(transport)
        self._wait(HEAD_DEADLINE_S)
        everybody = cast("set[BoundedProtocol]", self.connections)
        if len(everybody) > MAX_CONNECTIONS:
            last = min((one for one in everybody if one.waits_for_its_client), key=lambda one: one._heard_s)
            everybody.discard(last)
            last.transport.abort()

    @property
    def waits_for_its_client(self) -> bool:
        """Whether it is the client's turn: to send (the rest of) a request, or to read."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is None or cycle.response_complete or cycle.more_body or self.flow.write_paused

    def data_received(self, data: bytes) -> None:
        """Take what came, and wait for the rest of the head if that was not all of it."""
        is_first, self._is_new = self._is_new, False
        if is_first and self._take_lines is not None and data[:1].islower():
            self._change_to_lines(self._take_lines, data)
            return
        self._heard_s = self.loop.time()
        super().data_received(data)
        cycle: Any = self.cycle
        if cycle is not None and not cycle.response_complete and not self.flow.write_paused:
            self._stop_waiting()
        elif self._deadline is None:
            self._wait(HEAD_DEADLINE_S)

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
        self._wait(READ_DEADLINE_S)

    def resume_writing(self) -> None:
        """Go on: the client has read."""
        self._stop_waiting()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close, whether the client has read everything or not."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, in OpenTSDB's words."""
        if self.conn.our_state is h11.IDLE:
            body = to_json(error_body(400, msg))
            headers = [("content-type", "application/json; charset=UTF-8"), ("content-length", str(len(body)))]
            response = h11.Response(status_code=400, headers=[*headers, ("connection", "close")])
            parts = [self.conn.send(event) for event in (response, h11.Data(data=body), h11.EndOfMessage())]
            self.transport.write(b"".join(part for part in parts if part))
        self.transport.close()

    def _change_to_lines(self, take: TakeLines, data: bytes) -> None:
        self._stop_waiting()
        self.connections.discard(self)
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES, loop=self.loop)
        lines = asyncio.StreamReaderProtocol(reader, take, loop=self.loop)
        self.transport.set_protocol(lines)
        lines.connection_made(self.transport)
        lines.data_received(data)

    def _wait(self, deadline_s: float) -> None:
        self._deadline = self.loop.call_later(deadline_s, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

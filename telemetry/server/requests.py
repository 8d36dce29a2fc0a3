"""What a handler is given of a request, and reading a body within bounds."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.requests import ClientDisconnect, Request

from telemetry.server.problems import Problem

__all__ = ["ANSWER_DEADLINE_S", "MAX_BODY_BYTES", "MAX_PUT_BYTES", "Call", "read_call"]

# A question fits into far less; samples come in heaps, from who shows the token.
MAX_BODY_BYTES = 1 << 20
MAX_PUT_BYTES = 16 << 20
BODY_DEADLINE_S = 15.0
ANSWER_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class Call:
    """One request.

    Attributes
    ----------
    method, path
        Of the request.
    parameters
        Each parameter of the URL, with all of its values.
    headers
        By lower-case name.
    body
        Unpacked if it was compressed.
    until_s
        When the answer must be there, on the monotonic clock.
    """

    method: str
    path: str
    parameters: Mapping[str, Sequence[str]]
    headers: Mapping[str, str]
    body: bytes
    until_s: float

    def check_time(self) -> None:
        """Stop work for which nobody waits any more.

        Raises
        ------
        Problem
            408.
        """
        if time.monotonic() > self.until_s:
            raise Problem(408, f"the answer was not ready within {ANSWER_DEADLINE_S:g} s: ask for less")

    def one(self, name: str, default: str = "") -> str:
        """Return a parameter's last value."""
        values = self.parameters.get(name)
        return values[-1] if values else default

    def number(self, name: str, default: int) -> int:
        """Return a parameter that is a whole number."""
        text = self.one(name)
        if not text:
            return default
        if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdigit() or len(text) > 9:
            raise Problem(400, f"{name} is {text[:40]!r}: it must be a whole number")
        return int(text)

    def json(self) -> Any:
        """Return the body as JSON; anything but strict JSON is refused."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            raise Problem(400, "the body is no JSON", str(error)[:200]) from error


async def read_call(request: Request, max_bytes: int = MAX_BODY_BYTES) -> Call:
    """Read a request, its body included, within bounds of size and time."""
    parameters: dict[str, list[str]] = {}
    for name, value in request.query_params.multi_items():
        parameters.setdefault(name, []).append(value)
    try:
        async with asyncio.timeout(BODY_DEADLINE_S):
            body = await _read_body(request, max_bytes)
    except TimeoutError:
        raise Problem(408, f"the body did not arrive within {BODY_DEADLINE_S:g} s") from None
    except ClientDisconnect:
        raise Problem(400, "the body ended early") from None
    until_s = time.monotonic() + ANSWER_DEADLINE_S
    return Call(request.method, request.scope["path"], parameters, request.headers, body, until_s)


async def _read_body(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding in {"identity", ""} or not body:  # opentsdb-py names its encoding even where it sends nothing
        return bytes(body)
    if encoding != "gzip":
        raise Problem(415, f"content-encoding {encoding[:40]!r} is not known: use gzip or none")
    return _unpacked(bytes(body), max_bytes)


def _unpacked(body: bytes, max_bytes: int) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    try:
        unpacked = unpacker.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise Problem(400, "the body is no gzip", str(error)) from error
    if len(unpacked) > max_bytes:
        raise _too_large(max_bytes)
    if not unpacker.eof:
        raise Problem(400, "the gzip of the body is cut off")
    return unpacked


def _too_large(max_bytes: int) -> Problem:
    return Problem(413, f"the body is larger than {max_bytes >> 20} MiB: send less at once")

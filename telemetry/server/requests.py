"""What a handler is given of a request, and reading a body within bounds."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.requests import ClientDisconnect, Request

from telemetry.server.problems import Problem

__all__ = ["Call", "read_call"]

MAX_BODY_BYTES = 16 << 20
BODY_DEADLINE_S = 15.0


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
    """

    method: str
    path: str
    parameters: Mapping[str, Sequence[str]]
    headers: Mapping[str, str]
    body: bytes

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


async def read_call(request: Request) -> Call:
    """Read a request, its body included, within bounds of size and time."""
    parameters: dict[str, list[str]] = {}
    for name, value in request.query_params.multi_items():
        parameters.setdefault(name, []).append(value)
    try:
        async with asyncio.timeout(BODY_DEADLINE_S):
            body = await _read_body(request)
    except TimeoutError:
        raise Problem(408, f"the body did not arrive within {BODY_DEADLINE_S:g} s") from None
    except ClientDisconnect:
        raise Problem(400, "the body ended early") from None
    return Call(request.method, request.url.path, parameters, request.headers, body)


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise Problem(413, f"the body is larger than {MAX_BODY_BYTES >> 20} MiB")
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding in {"identity", ""}:
        return bytes(body)
    if encoding != "gzip":
        raise Problem(415, f"content-encoding {encoding[:40]!r} is not known: use gzip or none")
    return _unpacked(bytes(body))


def _unpacked(body: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    try:
        unpacked = unpacker.decompress(body, MAX_BODY_BYTES + 1)
    except zlib.error as error:
        raise Problem(400, "the body is no gzip", str(error)) from error
    if len(unpacked) > MAX_BODY_BYTES:
        raise Problem(413, f"the body is larger than {MAX_BODY_BYTES >> 20} MiB")
    if not unpacker.eof:
        raise Problem(400, "the gzip of the body is cut off")
    return unpacked

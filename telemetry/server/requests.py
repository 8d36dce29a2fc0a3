"""Reading a request within limits of size and time, and the body of a refusal."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson
from starlette.datastructures import Headers, QueryParams
from starlette.requests import ClientDisconnect, Request

from laggard.telemetry.errors import RequestError

# A query needs far less; samples may come in large bodies, but only with the token.
MAX_BODY_BYTES = 1 << 20
MAX_PUT_BYTES = 16 << 20
BODY_DEADLINE_S = 15.0
ANSWER_DEADLINE_S = 30.0
_PORT = re.compile(r":[0-9]*$")
_FIX = "use localhost or 127.0.0.1, or list the name in the setting server_names"


def error_body(status: int, message: str) -> dict[str, object]:
    """Return OpenTSDB's error object."""
    return {"error": {"code": status, "message": message}}


def not_in_time() -> RequestError:
    """Return the refusal of a request whose answer takes too long."""
    return RequestError(503, f"the answer was not ready within {ANSWER_DEADLINE_S:g} s: ask for less")


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    parameters: QueryParams  # the URL's parameters
    headers: Headers
    body: bytes  # decompressed if it was compressed
    until_s: float  # deadline of the answer, on the monotonic clock

    def check_time(self) -> None:
        """Stop work on an answer that is no longer waited for."""
        if time.monotonic() > self.until_s:
            raise not_in_time()

    def number(self, name: str, default: int) -> int:
        """Return a parameter that is an integer."""
        text = self.parameters.get(name)
        if not text:
            return default
        if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdigit() or len(text) > 9:
            raise RequestError(400, f"{name} is {text[:40]!r}: it must be an integer")
        return int(text)

    def json(self) -> Any:
        """Return the body as JSON; anything but strict JSON is refused."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            raise RequestError(400, f"the body is not valid JSON: {str(error)[:200]}") from error


async def read_call(request: Request, max_bytes: int = MAX_BODY_BYTES) -> Call:
    """Read a request and its body, within limits of size and time."""
    try:
        async with asyncio.timeout(BODY_DEADLINE_S):
            body = await _read_body(request, max_bytes)
    except TimeoutError:
        raise RequestError(408, f"the body did not arrive within {BODY_DEADLINE_S:g} s") from None
    except ClientDisconnect:
        raise RequestError(400, "the body ended early") from None
    return Call(request.query_params, request.headers, body, time.monotonic() + ANSWER_DEADLINE_S)


def require_own_place(headers: Headers, path: str, names: Collection[str]) -> None:
    """Refuse a request to a name that is not this server's, or from a page that is not."""
    # A page of another site could otherwise have its own name resolve to a loopback address, and read the job's
    # telemetry with the browser of somebody who may (DNS rebinding). An address cannot be made to resolve to another.
    if not path.startswith("/"):
        raise RequestError(400, "the target of the request must be a path")
    host = headers.get("host", "")
    name = _PORT.sub("", host).lower().rstrip(".")
    if not (name in {"", "localhost", *names} or _is_address(name.strip("[]"))):
        raise RequestError(421, f"this server is not {name[:80]!r}: {_FIX}")
    for origin in headers.getlist("origin"):
        if not _is_own(_host_of(origin), {"localhost", name.strip("[]"), *names}):
            raise RequestError(403, f"a page of {origin[:80]!r} may not ask: {_FIX}")


def _host_of(origin: str) -> str:
    try:
        return (urlsplit(origin).hostname or "").rstrip(".")
    except ValueError:  # not a URL
        return ""


def _is_own(name: str, names: Collection[str]) -> bool:
    return bool(name) and (name in names or (_is_address(name) and ipaddress.ip_address(name).is_loopback))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


async def _read_body(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding in {"identity", ""} or not body:  # opentsdb-py names its encoding even if the body is empty
        return bytes(body)
    if encoding != "gzip":
        raise RequestError(415, f"content-encoding {encoding[:40]!r} is not supported: use gzip or none")
    return _unpacked(bytes(body), max_bytes)


def _unpacked(body: bytes, max_bytes: int) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    try:
        unpacked = unpacker.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise RequestError(400, f"the body is not valid gzip: {error}") from error
    if len(unpacked) > max_bytes:
        raise _too_large(max_bytes)
    if not unpacker.eof:
        raise RequestError(400, "the gzip data of the body are truncated")
    return unpacked


def _too_large(max_bytes: int) -> RequestError:
    return RequestError(413, f"the body is larger than {max_bytes >> 20} MiB: send less at once")

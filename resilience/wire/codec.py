"""Messages as lines of JSON, ``{"is": "SignalTask", "name": "rank-0", "signum": 15}``, and back."""

from __future__ import annotations

import json
from typing import TypeVar

from laggard.records import plain, record_of
from laggard.resilience.errors import MessageError

_T = TypeVar("_T")


def encode(record: object) -> bytes:
    """Return a record as one line."""
    return json.dumps(plain(record)).encode() + b"\n"


def decode(line: bytes, *kinds: type[_T]) -> _T:
    """Return the record of one of these classes that a line holds, or raise MessageError."""
    try:
        read = json.loads(line)
    except ValueError as error:
        raise MessageError("a line is not JSON") from error
    name = read.get("is") if isinstance(read, dict) else None
    kind = next((kind for kind in kinds if kind.__name__ == name), None)
    if kind is None:
        raise MessageError(f"{name} is not expected here" if name else "a line is not a record")
    try:
        return record_of(kind, read)
    except ValueError as error:
        raise MessageError(str(error)) from error

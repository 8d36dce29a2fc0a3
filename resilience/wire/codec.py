"""Records as lines of JSON, ``{"SignalTask": {"name": "copy-0", "signum": 15}}``, and back, with every type checked.

A field may be text, a number, a truth value, bytes, a record, a tuple or mapping of these, or one of them or None.
A line comes from another machine, so what is wrong with it is said by the name of the field, never with its value.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import cache
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from laggard.resilience.errors import MessageError

_T = TypeVar("_T")


def encode(record: object) -> bytes:
    """Return a record as one line."""
    return json.dumps({type(record).__name__: record}, default=_plain).encode() + b"\n"


def decode(line: bytes, *kinds: type[_T]) -> _T:
    """Return the record of one of these classes that a line holds, or raise MessageError."""
    try:
        read = json.loads(line)
    except ValueError as error:
        raise MessageError("a line", "is not JSON") from error
    if not isinstance(read, dict) or len(read) != 1:
        raise MessageError("a line", "is not one record")
    [(name, value)] = read.items()
    kind = next((kind for kind in kinds if kind.__name__ == name), None)
    if kind is None:
        raise MessageError(name, "is not expected here")
    record: _T = _record(kind, value, name)
    return record


def _plain(value: Any) -> object:
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} cannot be sent")


def _record(kind: Any, value: object, at: str) -> Any:
    if not isinstance(value, dict):
        raise MessageError(at, "has no fields")
    types = _types_of(kind)
    if unknown := value.keys() - types.keys():
        raise MessageError(at, f"has no field {min(unknown)}")
    found = {name: _checked(types[name], each, f"{at}.{name}") for name, each in value.items()}
    try:
        return kind(**found)
    except TypeError as error:
        raise MessageError(at, "lacks a field") from error


def _checked(kind: Any, value: Any, at: str) -> Any:
    """Return a value as the type that a field has; JSON knows neither tuples nor bytes, nor that 1 may be a float."""
    origin, inner = get_origin(kind), get_args(kind)
    match value:
        case _ if NoneType in inner:
            return None if value is None else _checked(next(each for each in inner if each is not NoneType), value, at)
        case list() if origin is tuple:
            return tuple(_checked(inner[0], each, at) for each in value)
        case dict() if origin is Mapping:
            return {name: _checked(inner[1], each, at) for name, each in value.items()}
        case dict() if dataclasses.is_dataclass(kind):
            return _record(kind, value, at)
        case str() if origin is Literal and value in inner:
            return value
        case str() if kind is bytes:
            return value.encode(errors="surrogateescape")
        case int() if kind is float and not isinstance(value, bool):
            return float(value)
        case _ if type(value) is kind:
            return value
    raise MessageError(at, f"is no {getattr(kind, '__name__', kind)}, but of type {type(value).__name__}")


@cache
def _types_of(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)

"""Frozen records as plain JSON values, and read back from them with their types checked.

Each record has its class's name under ``is``, by which the members of a union are told apart. A number that JSON lacks
is null there, and NaN once it is read back; bytes are text. What cannot be read is said by the name of its field, never
with its value, which may be secret.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

_Record = TypeVar("_Record")
_Clean = Callable[[str], str]


def plain(value: object) -> Any:
    """Return a record, or what a field of one holds, as plain JSON values."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"is": type(value).__name__} | {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | frozenset):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")
    return None if isinstance(value, float) and not math.isfinite(value) else value


def record_of(kind: type[_Record], value: object, clean: _Clean = str) -> _Record:
    """Return the record that :func:`plain` has written; ``clean`` is applied to each of its texts."""
    return cast("_Record", _read(kind, value, kind.__name__, clean))


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _read(hint: Any, value: Any, at: str, clean: _Clean) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, UnionType):
        return _read(_member(arguments, value, at), value, at, clean)
    if is_dataclass(hint):
        return _read_record(cast("type", hint), value, at, clean)
    if origin is Literal and value in arguments:
        return value
    if origin in (tuple, frozenset, list) and isinstance(value, list):
        each = arguments if arguments[-1] is not Ellipsis and origin is tuple else (arguments[0],) * len(value)
        return origin(_read(one, item, at, clean) for one, item in zip(each, value, strict=True))
    if origin is not None and isinstance(value, Mapping) and issubclass(origin, Mapping):
        return {clean(key): _read(arguments[1], item, at, clean) for key, item in value.items()}
    if hint is bytes and isinstance(value, str):
        return value.encode(errors="surrogateescape")
    if hint is float and (value is None or (type(value) in (int, float) and abs(value) <= sys.float_info.max)):
        return math.nan if value is None else float(value)
    if hint in (str, int, bool, NoneType) and type(value) is hint:
        return clean(value) if hint is str else value
    raise ValueError(f"{at} must be of type {getattr(hint, '__name__', hint)}, not {type(value).__name__}")


def _member(members: tuple[Any, ...], value: Any, at: str) -> Any:
    """Return the member of a union that a value is of."""
    if value is None and NoneType in members:
        return NoneType
    others = [each for each in members if each is not NoneType]
    name = value.get("is") if isinstance(value, Mapping) else None
    named = others if len(others) == 1 else [each for each in others if each.__name__ == name]
    if not named:
        raise ValueError(f"{at} is none of {', '.join(each.__name__ for each in others)}")
    return named[0]


def _read_record(kind: type, value: Any, at: str, clean: _Clean) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError(f"{at} has no fields")  # noqa: TRY004 - what was read is wrong
    found = {}
    for field in fields(kind):
        if field.name in value:
            found[field.name] = _read(_hints(kind)[field.name], value[field.name], f"{at}.{field.name}", clean)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{at} lacks {field.name!r}")
    return kind(**found)

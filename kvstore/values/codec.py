"""Conversion of values to bytes and back, without pickle.

A value becomes a *header*, which describes it in JSON, followed by the raw bytes of its arrays and long texts::

    header length (4 bytes, little endian) | header | raw bytes of the first leaf | of the second | ...

In the header a plain number, short text, ``null``, ``true`` or list represents itself; every JSON object has one member
whose name is its kind (``{"array": ...}``, ``{"dict": {...}}``), so a user's value cannot be mistaken for one. Decoding
allocates what the header describes and fills it; nothing that was stored can make it run code. PyTorch's tensors are
described in :mod:`laggard.kvstore.values.tensors`; decoding is in :mod:`laggard.kvstore.values.decoding`.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laggard.kvstore.errors import UnsupportedValueError
from laggard.kvstore.values.blocks import Block
from laggard.kvstore.values.decoding import (
    FACTORIES,
    LENGTH,
    Buffer,
    Stream,
    Value,
    describe_dtype,
    naming_errors,
    raw_bytes,
    rebuild,
)
from laggard.kvstore.values.tensors import (
    TensorError,
    describe_setting,
    describe_tensor,
    is_generator,
    is_size,
    is_tensor,
    memory_of,
    shared_memory,
    tensors_in,
)

_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
# Text up to this length stays in the header, where it needs no part of its own.
_SHORT_TEXT_BYTES = 1024
# Python limits the length of decimal integers, as in JSON; those beyond 64 bits are written in hexadecimal.
_PLAIN_INT = range(-(2**63), 2**64)
# Smaller parts are joined before they are sent; larger ones are sent without a copy.
_JOIN_BYTES = 1 << 20
_NO_TEXT = "a str with an unpaired surrogate, which is not valid text; use bytes"


@dataclass(frozen=True, slots=True)
class Encoded:
    """A value as bytes, in several parts; some may be the memory of the user's arrays."""

    parts: tuple[Buffer, ...]
    nbytes: int

    def joined(self) -> bytes:
        """Return all parts as one copy."""
        return b"".join(self.parts)

    def detached(self) -> Encoded:
        """Return a copy that later changes to the user's arrays do not affect."""
        return Encoded(tuple(bytes(part) for part in self.parts), self.nbytes)

    def chunks(self, limit_bytes: int) -> Iterator[Buffer]:
        """Yield chunks of at most `limit_bytes`; only small parts are copied."""
        small = bytearray()
        for part in self.parts:
            if small and len(small) + len(part) > min(_JOIN_BYTES, limit_bytes):
                yield bytes(small)
                small.clear()
            if len(part) < min(_JOIN_BYTES, limit_bytes):
                small += part
            else:
                view = memoryview(part)
                yield from (view[start : start + limit_bytes] for start in range(0, len(view), limit_bytes))
        if small:
            yield bytes(small)


class _Leaves(list[Buffer]):
    """Raw bytes of leaves, which of them are those of a tensor that is found again, and which tensors overlap."""

    def __init__(self, value: Value = None) -> None:
        self.tensors: dict[Hashable, int] = {}
        self.shared = shared_memory(tensors_in(value))


class _Refused(Exception):  # noqa: N818 - says why, to `encode`, which knows the key
    """A value that cannot be described: why, and where it is, from the inside out."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.place: list[str | int] = []


def encode(key: str, value: Value) -> Encoded:
    """Convert a value to bytes; what is refused is named by its place, which begins with the key, if there is one."""
    try:
        leaves = _Leaves(value)
        text = _JSON.encode(_describe(value, leaves)).encode()
    except _Refused as error:
        place = path_text([*filter(None, [key]), *reversed(error.place)])
        raise UnsupportedValueError(place, error.reason) from None
    except RecursionError:
        raise UnsupportedValueError(key, "it is nested too deeply or contains itself") from None
    except UnicodeEncodeError:  # in the key of a dict, or a path
        raise UnsupportedValueError(key, _NO_TEXT) from None
    parts = (LENGTH.pack(len(text)) + text, *leaves)
    return Encoded(parts, sum(len(part) for part in parts))


def decode(key: str, buffers: Iterable[Buffer]) -> Value:
    """Convert bytes, in pieces of any size, back to the value; its arrays are new and writable."""
    stream = Stream(key, buffers)
    with naming_errors(key):
        return rebuild(stream.header(), stream.leaf)


def path_text(path: Iterable[str | int]) -> str:
    """Return where a value is in a tree as text, such as ``optimizer.state[3].exp_avg``."""
    return "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in path).removeprefix(".")


def _describe(value: Value, leaves: _Leaves) -> object:
    """Return a value's description for the header, and add its raw bytes to `leaves`."""
    kind = type(value)
    if value is None or kind in (bool, float):
        return value
    if kind is int:
        return value if value in _PLAIN_INT else {"int": format(value, "x")}
    if kind is str:
        return _describe_text(value, leaves)
    if kind is list:
        return [_describe_at(number, item, leaves) for number, item in enumerate(value)]
    if kind is tuple or is_size(value):
        items = [_describe_at(number, item, leaves) for number, item in enumerate(value)]
        return {"tuple" if kind is tuple else "size": items}
    if kind in (dict, OrderedDict, Counter, defaultdict):
        return _describe_mapping(value, leaves)
    if isinstance(value, np.generic) and kind not in (np.str_, np.bytes_):
        return {"scalar": _describe_array(np.asarray(value), leaves)}
    if kind in (np.ndarray, np.memmap):
        return {"array": _describe_array(np.asarray(value), leaves)}
    if _is_cupy(value):
        return {"cupy": _describe_array(value.get(), leaves)}
    if is_tensor(value):
        return _describe_whole_tensor(value, leaves)
    if kind is Block:
        return {"block": [value.region.start, value.shape, _describe_data(value, leaves)]}
    return _describe_plain(value, leaves)


def _describe_at(step: str | int, value: Value, leaves: _Leaves) -> object:
    """Describe an item of a container; an error says which one it is."""
    try:
        return _describe(value, leaves)
    except _Refused as error:
        error.place.append(step)
        raise


def _describe_text(text: str, leaves: _Leaves) -> object:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise _Refused(_NO_TEXT) from None
    return _leaf("text", data, leaves) if len(text) > _SHORT_TEXT_BYTES else text


def _leaf(kind: str, data: Buffer, leaves: _Leaves) -> object:
    leaves.append(data)
    return {kind: len(data)}


def _describe_plain(value: Value, leaves: _Leaves) -> object:
    """Describe a value of one of the kinds that are seldom met; only those of this list are ever made again."""
    kind = type(value)
    if kind is bytes:
        return _leaf("bytes", value, leaves)
    if kind is np.str_:
        return _leaf("np.str", str.encode(value), leaves)
    if kind is np.bytes_:
        return _leaf("np.bytes", bytes(value), leaves)
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind in (set, frozenset):
        # In an order that is the same in each process.
        items = sorted(value, key=lambda item: (type(item).__name__, repr(item)))
        return _leaf(kind.__name__, _encoded(items), leaves)
    if kind is type(Path()):
        return {"path": str(value)}
    if isinstance(value, Enum) and value.name in kind.__members__:
        return {"enum": [*_class_of(kind), value.name]}
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        data = _encoded(list(value))
        leaves.append(data)
        return {"namedtuple": [*_class_of(kind), len(data)]}
    if (described := describe_setting(value)) is not None:
        return described
    if is_generator(value):
        return {"generator": [str(value.device), _describe_tensor(value.get_state(), leaves)]}
    advice = "use arrays, numbers, text, bytes, or lists, tuples and dicts of these"
    raise _Refused(f"{_name(kind)} is not a supported type; {advice}")


def _encoded(items: list[Value]) -> bytes:
    leaves = _Leaves()
    text = _JSON.encode(_describe(items, leaves)).encode()
    return b"".join([LENGTH.pack(len(text)), text, *leaves])


def _class_of(kind: type) -> tuple[str, str]:
    """Return module and name of a class by which it is found again."""
    if vars(sys.modules[kind.__module__]).get(kind.__qualname__) is not kind:
        raise _Refused(f"{_name(kind)} is not found again by its name; define it at the top of its module")
    return kind.__module__, kind.__qualname__


def _describe_data(block: Block, leaves: _Leaves) -> object:
    """Describe a block's data, whose elements are stored in the order of its indices."""
    if type(block.data) in (np.ndarray, np.memmap):
        return _describe(np.ascontiguousarray(block.data).reshape(block.region.shape), leaves)
    if is_tensor(block.data):
        return {"tensor": _describe_tensor(block.data.contiguous(), leaves)}
    raise _Refused(f"the data of a Block is a {_name(type(block.data))}; use an array or a tensor")


def _describe_mapping(value: Mapping[Any, Value], leaves: _Leaves) -> object:
    kind = type(value)
    if kind is dict and all(type(name) is str for name in value):
        return {"dict": {name: _describe_at(name, item, leaves) for name, item in value.items()}}
    items = [[_mapping_key(name, leaves), _describe_at(name, item, leaves)] for name, item in value.items()]
    if isinstance(value, defaultdict):
        factory = value.default_factory
        if factory not in FACTORIES.values():
            raise _Refused(f"a defaultdict that makes {factory!r}; use one of {', '.join(FACTORIES)}")
        return {"defaultdict": [next(name for name, known in FACTORIES.items() if known is factory), items]}
    if kind is not OrderedDict:
        return {"counter" if kind is Counter else "map": items}
    # A module's state_dict() has the versions of its parts in an attribute.
    return {"ordered": [items, _describe(vars(value), leaves)]}


def _mapping_key(name: object, leaves: _Leaves) -> object:
    if type(name) not in (str, int):
        raise _Refused(f"a dict key is of type {_name(type(name))}; use text or whole numbers")
    return _describe(name, leaves)


def _describe_whole_tensor(tensor: Value, leaves: _Leaves) -> object:
    """Describe a tensor; one that is the same memory as an earlier one, as tied weights are, by the other's number."""
    memory = memory_of(tensor)
    if memory in leaves.shared:
        base, start = leaves.shared[memory]
        return {"view": [_describe_whole_tensor(base, leaves), start, list(tensor.shape), list(tensor.stride())]}
    if memory is not None and memory in leaves.tensors:
        return {"same": leaves.tensors[memory]}
    number = len(leaves)
    described = _describe_tensor(tensor, leaves)
    if memory is not None:
        leaves.tensors[memory] = number
    return {"tensor": described}


def _describe_tensor(tensor: Value, leaves: _Leaves) -> object:
    try:
        described, data = describe_tensor(tensor)
    except TensorError as error:
        raise _Refused(str(error)) from None
    leaves.append(data)
    return described


def _describe_array(array: NDArray[Any], leaves: _Leaves) -> list[object]:
    described = None if array.dtype.hasobject else describe_dtype(array.dtype)
    if described is None:
        raise _Refused(f"dtype {array.dtype} holds Python objects or cannot be described; convert the array")
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    leaves.append(raw_bytes(array if fortran else np.ascontiguousarray(array)))
    return [described, list(array.shape), "F" if fortran else "C"]


def _is_cupy(value: object) -> bool:
    cupy = sys.modules.get("cupy")
    return cupy is not None and type(value) is cupy.ndarray


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"

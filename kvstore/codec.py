"""Conversion of values to bytes and back, without pickle.

A value becomes a *header*, which describes it in JSON, followed by the raw bytes of its arrays and long texts::

    header length (4 bytes, little endian) | header | raw bytes of the first leaf | of the second | ...

In the header a plain number, short text, ``null``, ``true`` or list represents itself; every JSON object has one member
whose name is its kind (``{"array": ...}``, ``{"dict": {...}}``), so a user's value cannot be mistaken for one.
Decoding allocates what the header describes and fills it; nothing that was stored can make it run code.
PyTorch's tensors are described in :mod:`laggard.kvstore.tensors`.
"""

from __future__ import annotations

import importlib
import json
import struct
import sys
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from laggard.kvstore.errors import CorruptValueError, UnsupportedValueError
from laggard.kvstore.tensors import TensorError, describe_tensor, is_size, is_tensor, new_size, rebuild_tensor

__all__ = ["Buffer", "Encoded", "Value", "decode", "encode"]

Value: TypeAlias = Any
"""A NumPy or CuPy array, a PyTorch tensor, a NumPy scalar, int, float, bool, None, str, bytes, or containers of these.

The containers are list, tuple, torch.Size, and dict, OrderedDict and Counter, whose keys are text or whole numbers.
Only exactly these types: a subclass would come back as its base class, so it is refused.
"""

Buffer: TypeAlias = bytes | memoryview

_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_LENGTH = struct.Struct("<I")
# Text up to this length stays in the header, where it needs no part of its own.
_SHORT_TEXT_BYTES = 1024
# Python limits the length of decimal integers, as in JSON; those beyond 64 bits are written in hexadecimal.
_PLAIN_INT = range(-(2**63), 2**64)
# Smaller parts are joined before they are sent; larger ones are sent without a copy.
_JOIN_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Encoded:
    """A value as bytes, in several parts; some may be the memory of the user's arrays."""

    parts: tuple[Buffer, ...]
    nbytes: int

    def joined(self) -> bytes:
        """Return all parts as one copy."""
        return b"".join(self.parts)

    def snapshot(self) -> Encoded:
        """Return a copy that later changes to the user's arrays do not affect."""
        return Encoded(tuple(bytes(part) for part in self.parts), self.nbytes)

    def split(self, header_limit_bytes: int) -> tuple[Buffer, Encoded]:
        """Return the header and the rest; the header is left in the rest if it exceeds the limit."""
        header, *leaves = self.parts
        if len(header) > header_limit_bytes:
            return b"", self
        return header, Encoded(tuple(leaves), self.nbytes - len(header))

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


class _Reader:
    """Reads from a sequence of buffers as if they were one."""

    def __init__(self, key: str, buffers: Iterable[Buffer]) -> None:
        self._key = key
        self._buffers = iter(buffers)
        self._rest = memoryview(b"")

    def read_into(self, target: memoryview) -> None:
        while len(target):
            while not len(self._rest):
                buffer = next(self._buffers, None)
                if buffer is None:
                    raise CorruptValueError(self._key, "it ends too early")
                self._rest = memoryview(buffer)
            count = min(len(target), len(self._rest))
            target[:count] = self._rest[:count]
            target, self._rest = target[count:], self._rest[count:]

    def read(self, count: int) -> bytes:
        data = bytearray(count)
        self.read_into(memoryview(data))
        return bytes(data)


def encode(key: str, value: Value) -> Encoded:
    """Convert a value to bytes.

    Parameters
    ----------
    key : str
        The value's key, named in errors.
    value : Value
        What to encode.

    Returns
    -------
    Encoded
        Its parts refer to the memory of contiguous arrays: use it, or take a snapshot, before the arrays change.

    Raises
    ------
    UnsupportedValueError
        If the value, or one inside it, is not of a supported type.
    """
    leaves: list[Buffer] = []
    try:
        text = _JSON.encode(_describe(key, value, leaves)).encode()
    except RecursionError:
        raise UnsupportedValueError(key, "it is nested too deeply or contains itself") from None
    except UnicodeEncodeError:
        raise UnsupportedValueError(
            key, "a str with an unpaired surrogate, which is not valid text; use bytes"
        ) from None
    parts = (_LENGTH.pack(len(text)) + text, *leaves)
    return Encoded(parts, sum(len(part) for part in parts))


def decode(key: str, buffers: Iterable[Buffer]) -> Value:
    """Convert bytes, in pieces of any size, back to the value; its arrays are new and writable.

    Raises
    ------
    CorruptValueError
        If the bytes are not what `encode` produces.
    """
    reader = _Reader(key, buffers)
    (length,) = _LENGTH.unpack(reader.read(_LENGTH.size))
    try:
        return _rebuild(json.loads(reader.read(length)), reader)
    except TensorError as error:
        raise UnsupportedValueError(key, str(error)) from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CorruptValueError(key, f"its header cannot be read: {error!r}") from error
    except ImportError as error:
        raise UnsupportedValueError(key, f"its dtype needs ml_dtypes, which is not installed here ({error})") from error


def _describe(key: str, value: Value, leaves: list[Buffer]) -> object:
    """Return a value's description for the header, and add its raw bytes to `leaves`."""

    def leaf(kind: str, data: Buffer) -> object:
        leaves.append(data)
        return {kind: len(data)}

    kind = type(value)
    if value is None or kind in (bool, float):
        return value
    if kind is int:
        return value if value in _PLAIN_INT else {"int": format(value, "x")}
    if kind is str:
        return leaf("text", value.encode()) if len(value) > _SHORT_TEXT_BYTES else value
    if kind is bytes:
        return leaf("bytes", value)
    if kind is np.str_:
        return leaf("np.str", str.encode(value))
    if kind is np.bytes_:
        return leaf("np.bytes", bytes(value))
    if kind is list:
        return [_describe(key, item, leaves) for item in value]
    if kind is tuple or is_size(value):
        return {"tuple" if kind is tuple else "size": [_describe(key, item, leaves) for item in value]}
    if kind in (dict, OrderedDict, Counter):
        return _describe_mapping(key, value, leaves)
    if isinstance(value, np.generic):
        return {"scalar": _describe_array(key, np.asarray(value), leaves)}
    if kind in (np.ndarray, np.memmap):
        return {"array": _describe_array(key, np.asarray(value), leaves)}
    if _is_cupy(value):
        return {"cupy": _describe_array(key, value.get(), leaves)}
    if is_tensor(value):
        return {"tensor": _describe_tensor(key, value, leaves)}
    raise UnsupportedValueError(key, f"{_name(kind)} is not a supported type; {_advice(value)}")


def _describe_mapping(key: str, value: Mapping[Any, Value], leaves: list[Buffer]) -> object:
    kind = type(value)
    if kind is dict and all(type(name) is str for name in value):
        return {"dict": {name: _describe(key, item, leaves) for name, item in value.items()}}
    items = [[_mapping_key(key, name, leaves), _describe(key, item, leaves)] for name, item in value.items()]
    if kind is not OrderedDict:
        return {"counter" if kind is Counter else "map": items}
    # A module's state_dict() has the versions of its parts in an attribute.
    return {"ordered": [items, _describe(key, vars(value), leaves)]}


def _mapping_key(key: str, name: object, leaves: list[Buffer]) -> object:
    if type(name) not in (str, int):
        raise UnsupportedValueError(key, f"a dict key is of type {_name(type(name))}; use text or whole numbers")
    return _describe(key, name, leaves)


def _describe_tensor(key: str, tensor: Value, leaves: list[Buffer]) -> object:
    try:
        described, data = describe_tensor(tensor)
    except TensorError as error:
        raise UnsupportedValueError(key, str(error)) from None
    leaves.append(data)
    return described


def _describe_array(key: str, array: NDArray[Any], leaves: list[Buffer]) -> list[object]:
    described = _describe_dtype(array.dtype)
    if array.dtype.hasobject or _dtype(described) != array.dtype:
        raise UnsupportedValueError(
            key, f"dtype {array.dtype} holds Python objects or cannot be described; convert the array"
        )
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    leaves.append(_raw(array if fortran else np.ascontiguousarray(array)))
    return [described, list(array.shape), "F" if fortran else "C"]


def _raw(array: NDArray[Any]) -> memoryview:
    """Return a view of a contiguous array's memory as bytes."""
    if array.nbytes == 0:
        return memoryview(b"")
    flat = (array if array.flags.c_contiguous else array.T).reshape(-1)
    return flat.view(np.uint8).data


def _describe_dtype(dtype: np.dtype[Any]) -> object:
    """Return a dtype's description for JSON: its NumPy string, or its parts if it has several."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return {"base": _describe_dtype(base), "shape": list(shape)}
    if dtype.names is not None:
        fields = [cast("tuple[Any, ...]", dtype.fields[name]) for name in dtype.names] if dtype.fields else []
        return {
            "names": list(dtype.names),
            "formats": [_describe_dtype(field[0]) for field in fields],
            "offsets": [field[1] for field in fields],
            "itemsize": dtype.itemsize,
        }
    if dtype.type.__module__.partition(".")[0] == "ml_dtypes":
        return {"ml_dtypes": dtype.name}
    return dtype.str


def _dtype(described: object) -> np.dtype[Any]:
    """Return the dtype of a description."""
    if isinstance(described, str):
        return np.dtype(described)
    parts: Any = described
    if "ml_dtypes" in parts:
        scalar = getattr(importlib.import_module("ml_dtypes"), parts["ml_dtypes"])
        if not issubclass(scalar, np.generic):
            raise TypeError(f"{parts['ml_dtypes']} is not a number type of ml_dtypes")
        return cast("np.dtype[Any]", np.dtype(scalar))
    if "base" in parts:
        spec: Any = (_dtype(parts["base"]), tuple(parts["shape"]))
    else:
        spec = {**parts, "formats": [_dtype(part) for part in parts["formats"]]}
    return cast("np.dtype[Any]", np.dtype(spec))


def _rebuild(node: object, reader: _Reader) -> Value:
    if isinstance(node, list):
        return [_rebuild(item, reader) for item in node]
    if not isinstance(node, dict):
        return node
    content: Any
    ((kind, content),) = node.items()
    match kind:
        case "dict":
            return {name: _rebuild(item, reader) for name, item in content.items()}
        case "map":
            return dict(_pairs(content, reader))
        case "counter":
            return Counter(dict(_pairs(content, reader)))
        case "ordered":
            items, attributes = content
            ordered = OrderedDict(_pairs(items, reader))
            vars(ordered).update(_rebuild(attributes, reader))
            return ordered
        case "tuple":
            return tuple(_rebuild(content, reader))
        case "size":
            return new_size(_rebuild(content, reader))
        case "tensor":
            return rebuild_tensor(content, reader.read_into)
        case "int":
            return int(content, 16)
        case "text":
            return reader.read(content).decode()
        case "bytes":
            return reader.read(content)
        case "np.str":
            return np.str_(reader.read(content).decode())
        case "np.bytes":
            return np.bytes_(reader.read(content))
        case "scalar":
            return _rebuild_array(content, reader)[()]
        case "array":
            return _rebuild_array(content, reader)
        case "cupy":
            return _to_device(_rebuild_array(content, reader))
    raise ValueError(f"unknown kind {kind!r}")


def _pairs(items: list[Any], reader: _Reader) -> Iterator[tuple[Value, Value]]:
    for name, item in items:
        yield _rebuild(name, reader), _rebuild(item, reader)


def _rebuild_array(content: list[Any], reader: _Reader) -> NDArray[Any]:
    described, shape, order = content
    array = np.empty(tuple(shape), _dtype(described), order=order)
    if array.nbytes:
        reader.read_into(_raw(array))
    return array


def _is_cupy(value: object) -> bool:
    cupy = sys.modules.get("cupy")
    return cupy is not None and type(value) is cupy.ndarray


def _to_device(array: NDArray[Any]) -> Value:
    """Move an array to the current GPU; if there is none, keep it in host memory, so that any node can read it."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError:
        return array
    return cupy.asarray(array) if cupy.is_available() else array


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _advice(value: object) -> str:
    if isinstance(value, tuple):
        return "use a tuple or a list"
    if isinstance(value, Mapping):
        return "use a dict"
    if isinstance(value, np.ma.MaskedArray):
        return "store its data and its mask"
    if hasattr(value, "__array__"):
        return "convert it with numpy.asarray"
    if isinstance(value, (bytearray, memoryview)):
        return "use bytes"
    return "use arrays, numbers, text, bytes, or lists and dicts of these"

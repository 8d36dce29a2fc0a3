"""From descriptions and bytes to values: what :mod:`laggard.kvstore.values.codec` has encoded, whole or leaf by leaf.

A description is what a header has after JSON; a *leaf* is an array, a tensor, a long text or bytes, whose raw bytes
follow the header.
"""

from __future__ import annotations

import importlib
import json
import math
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from laggard.kvstore.errors import CorruptValueError, UnsupportedValueError
from laggard.kvstore.values.blocks import Block, Region
from laggard.kvstore.values.tensors import TensorError, new_size, rebuild_tensor

Value: TypeAlias = Any
"""A NumPy or CuPy array, a PyTorch tensor, a NumPy scalar, int, float, bool, None, str, bytes, or containers of these.

A Block holds an array or a tensor that is a part of a larger one.
The containers are list, tuple, torch.Size, and dict, OrderedDict and Counter, whose keys are text or whole numbers.
Only exactly these types: a subclass would come back as its base class, so it is refused.
"""

Buffer: TypeAlias = bytes | memoryview

LENGTH = struct.Struct("<I")
"""Of the header's length, which comes first."""


class Reader(Protocol):
    """What follows a header, read in order."""

    def leaf(self, kind: str, content: Any) -> Value:
        """Return a value whose bytes come next."""

    def block(self, data: object, region: Region, shape: tuple[int, ...]) -> Value:
        """Return a block, from the description of its data, whose bytes come next."""


class Stream:
    """Reads from a sequence of buffers as if they were one."""

    def __init__(self, key: str, buffers: Iterable[Buffer]) -> None:
        self._key = key
        self._buffers = iter(buffers)
        self._rest = memoryview(b"")

    def read_into(self, target: memoryview) -> None:
        """Fill the target with the next bytes."""
        while len(target):
            while not len(self._rest):
                buffer = next(self._buffers, None)
                if buffer is None:
                    raise CorruptValueError(self._key, "it ends too early")
                self._rest = memoryview(buffer)
            count = min(len(target), len(self._rest))
            target[:count] = self._rest[:count]
            target, self._rest = target[count:], self._rest[count:]

    def leaf(self, kind: str, content: Any) -> Value:
        """Return a value whose bytes come next."""
        return read_leaf(kind, content, self.read_into)

    def block(self, data: object, region: Region, shape: tuple[int, ...]) -> Value:
        """Return a block, from the description of its data, whose bytes come next."""
        return Block(rebuild(data, self), region, shape)


@contextmanager
def naming_errors(key: str) -> Iterator[None]:
    """Raise what a description may cause as an error that names the value's key."""
    try:
        yield
    except TensorError as error:
        raise UnsupportedValueError(key, str(error)) from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CorruptValueError(key, f"its header cannot be read: {error!r}") from error
    except ImportError as error:
        raise UnsupportedValueError(key, f"its dtype needs ml_dtypes, which is not installed here ({error})") from error


def read_header(read_into: Callable[[memoryview], None]) -> object:
    """Return the description at the beginning of a value's bytes."""
    (length,) = LENGTH.unpack(_read(LENGTH.size, read_into))
    return json.loads(_read(length, read_into))


def rebuild(node: object, reader: Reader) -> Value:
    """Return the value of a description; its arrays, tensors, long texts and bytes come from the reader."""
    if isinstance(node, list):
        return [rebuild(item, reader) for item in node]
    if not isinstance(node, dict):
        return node
    content: Any
    ((kind, content),) = node.items()
    match kind:
        case "dict":
            return {name: rebuild(item, reader) for name, item in content.items()}
        case "map":
            return dict(_pairs(content, reader))
        case "counter":
            return Counter(dict(_pairs(content, reader)))
        case "ordered":
            items, attributes = content
            ordered = OrderedDict(_pairs(items, reader))
            vars(ordered).update(rebuild(attributes, reader))
            return ordered
        case "tuple":
            return tuple(rebuild(content, reader))
        case "size":
            return new_size(rebuild(content, reader))
        case "int":
            return int(content, 16)
        case "block":
            start, shape, data = content
            ((_, described),) = data.items()
            return reader.block(data, Region(tuple(start), tuple(described[1])), tuple(shape))
    return reader.leaf(kind, content)


def read_leaf(
    kind: str, content: Any, read_into: Callable[[memoryview], None], take: Callable[[], memoryview] | None = None
) -> Value:
    """Return the value of a leaf's description."""
    match kind:
        case "tensor":
            return rebuild_tensor(content, read_into, take)
        case "text":
            return _read(content, read_into).decode()
        case "bytes":
            return bytes(_read(content, read_into))
        case "np.str":
            return np.str_(_read(content, read_into).decode())
        case "np.bytes":
            return np.bytes_(_read(content, read_into))
        case "scalar":
            return _rebuild_array(content, read_into, take)[()]
        case "array":
            return _rebuild_array(content, read_into, take)
        case "cupy":
            return _to_device(_rebuild_array(content, read_into, take))
    raise ValueError(f"unknown kind {kind!r}")


def leaf_in_place(kind: str, content: Any, data: memoryview) -> Value:
    """Return the value of a leaf's description; an array or a tensor lies in the memory that holds its bytes."""

    def read_into(target: memoryview) -> None:
        target[:] = data

    return read_leaf(kind, content, read_into, lambda: data)


def _read(count: int, read_into: Callable[[memoryview], None]) -> bytearray:
    data = bytearray(count)
    read_into(memoryview(data))
    return data


def _pairs(items: list[Any], reader: Reader) -> Iterator[tuple[Value, Value]]:
    for name, item in items:
        yield rebuild(name, reader), rebuild(item, reader)


def _rebuild_array(
    content: list[Any], read_into: Callable[[memoryview], None], take: Callable[[], memoryview] | None
) -> NDArray[Any]:
    described, shape, order = content
    dtype = dtype_of(described)
    if take is not None and math.prod(shape) * dtype.itemsize:
        return np.frombuffer(take(), np.uint8).view(dtype).reshape(shape, order=order)
    array = np.empty(tuple(shape), dtype, order=order)
    if array.nbytes:
        read_into(raw_bytes(array))
    return array


def _to_device(array: NDArray[Any]) -> Value:
    """Move an array to the current GPU; if there is none, keep it in host memory, so that any node can read it."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError:
        return array
    return cupy.asarray(array) if cupy.is_available() else array


def dtype_of(described: object) -> np.dtype[Any]:
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
        spec: Any = (dtype_of(parts["base"]), tuple(parts["shape"]))
    else:
        spec = {**parts, "formats": [dtype_of(part) for part in parts["formats"]]}
    return cast("np.dtype[Any]", np.dtype(spec))


def raw_bytes(array: NDArray[Any]) -> memoryview:
    """Return a view of a contiguous array's memory as bytes."""
    if array.nbytes == 0:
        return memoryview(b"")
    flat = (array if array.flags.c_contiguous else array.T).reshape(-1)
    return flat.view(np.uint8).data

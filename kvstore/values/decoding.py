"""From descriptions and bytes to values: what :mod:`laggard.kvstore.values.codec` has encoded, whole or leaf by leaf.

A description is what a header has after JSON; a *leaf* is an array, a tensor, a long text or bytes, whose raw bytes
follow the header.
"""

from __future__ import annotations

import ast
import importlib
import json
import math
import struct
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from laggard.kvstore.errors import CorruptValueError, UnsupportedValueError
from laggard.kvstore.values.blocks import Block, Region
from laggard.kvstore.values.tensors import (
    TensorError,
    new_generator,
    new_setting,
    new_size,
    tensor_bytes,
    tensor_of,
    view_of,
)

Value: TypeAlias = Any
"""An array of NumPy's or CuPy's, a tensor, a NumPy scalar, a number, bool, None, str, bytes, or containers of these.

A Block holds an array or a tensor that is a part of a larger one.
The containers are list, tuple, torch.Size, set, frozenset, named tuples, and dict, OrderedDict, Counter and
defaultdict, whose keys are text or whole numbers.  Members of enums, paths, and PyTorch's dtypes, devices and
generators are values too.  Only exactly these types: a subclass would come back as its base class, so it is refused.
"""

Buffer: TypeAlias = bytes | memoryview

FACTORIES: dict[str, Callable[[], Any] | None] = {
    "None": None,
    **{kind.__name__: kind for kind in (bool, int, float, complex, str, bytes, list, tuple, dict, set)},
}
"""What a defaultdict may make, by name."""

LENGTH = struct.Struct("<I")
"""Of the header's length, which comes first."""


Leaf: TypeAlias = Callable[[str, Any], Value]
"""Returns the value of a leaf, given its kind and its description."""


class Stream:
    """Reads from a sequence of buffers as if they were one."""

    def __init__(self, key: str, buffers: Iterable[Buffer]) -> None:
        self._key = key
        self._buffers = iter(buffers)
        self._rest = memoryview(b"")

    def _read(self, count: int) -> memoryview:
        data = target = np.empty(count, np.uint8).data
        while len(target):
            while not len(self._rest):
                buffer = next(self._buffers, None)
                if buffer is None:
                    raise CorruptValueError(self._key, "it ends too early")
                self._rest = memoryview(buffer)
            count = min(len(target), len(self._rest))
            target[:count] = self._rest[:count]
            target, self._rest = target[count:], self._rest[count:]
        return data

    def header(self) -> object:
        """Return the description at the beginning of a value's bytes."""
        (length,) = LENGTH.unpack(self._read(LENGTH.size))
        return json.loads(bytes(self._read(length)))

    def leaf(self, kind: str, content: Any) -> Value:
        """Return a value whose bytes come next."""
        return leaf_of(kind, content, self._read(leaf_bytes(kind, content)))


@contextmanager
def naming_errors(key: str) -> Iterator[None]:
    """Raise what a description may cause as an error that names the value's key."""
    try:
        yield
    except TensorError as error:
        raise UnsupportedValueError(key, str(error)) from None
    except (AttributeError, LookupError, SyntaxError, TypeError, ValueError) as error:
        raise CorruptValueError(key, f"its header cannot be read: {error!r}") from error
    except ImportError as error:
        raise UnsupportedValueError(key, f"its dtype needs ml_dtypes, which is not installed here ({error})") from error


MakeBlock: TypeAlias = Callable[[Value, Region, tuple[int, ...]], Value]
"""Returns a block, given its data, its region, and the shape of the whole."""

MakeView: TypeAlias = Callable[[Value, int, list[int], list[int]], Value]
"""Returns a tensor, given the one whose memory it lies in, where it begins there, its shape, and its strides."""


def rebuild(node: object, leaf: Leaf, block: MakeBlock = Block, view: MakeView = view_of) -> Value:
    """Return the value of a description, given what makes its leaves, blocks and views."""
    made: list[Value] = []

    def numbered(kind: str, content: Any) -> Value:
        made.append(leaf(kind, content))
        return made[-1]

    return _rebuild(node, numbered, made, block, view)


def _rebuild(node: object, leaf: Leaf, made: list[Value], block: MakeBlock, view: MakeView) -> Value:
    if not isinstance(node, list | dict):
        return node

    def of(item: object) -> Value:
        return _rebuild(item, leaf, made, block, view)

    def pairs(items: list[Any]) -> Iterator[tuple[Value, Value]]:
        return ((of(name), of(item)) for name, item in items)

    if isinstance(node, list):
        return [of(item) for item in node]
    content: Any
    ((kind, content),) = node.items()
    match kind:
        case "dict":
            return {name: of(item) for name, item in content.items()}
        case "map":
            return dict(pairs(content))
        case "counter":
            return Counter(dict(pairs(content)))
        case "ordered":
            items, attributes = content
            ordered = OrderedDict(pairs(items))
            vars(ordered).update(of(attributes))
            return ordered
        case "tuple":
            return tuple(of(content))
        case "size":
            return new_size(of(content))
        case "defaultdict":
            return defaultdict(FACTORIES[content[0]], pairs(content[1]))
        case "complex":
            return complex(*content)
        case "path":
            return Path(content)
        case "enum":
            return _class_named(content, Enum).__members__[content[2]]
        case "dtype" | "device":
            return new_setting(kind, content)
        case "int":
            return int(content, 16)
        case "same":
            return made[content]
        case "view":
            base, *place = content
            return view(of(base), *place)
        case "block":
            start, shape, data = content
            ((_, described),) = data.items()
            return block(of(data), Region(tuple(start), tuple(described[1])), tuple(shape))
    return leaf(kind, content)


def leaf_bytes(kind: str, content: Any) -> int:
    """Return how many bytes a leaf has, by its description."""
    if kind in {"text", "bytes", "np.str", "np.bytes", "set", "frozenset"}:
        return int(content)
    if kind == "namedtuple":
        return int(content[2])
    if kind in {"tensor", "generator"}:
        return tensor_bytes(content if kind == "tensor" else content[1])
    described, shape, _ = content
    return int(math.prod(shape) * dtype_of(described).itemsize)


def leaf_of(kind: str, content: Any, data: memoryview) -> Value:
    """Return the value of a leaf's description; an array or a tensor lies in the memory that holds its bytes."""
    match kind:
        case "tensor":
            return tensor_of(content, data)
        case "generator":
            return new_generator(content[0], tensor_of(content[1], data))
        case "set" | "frozenset":
            return (set if kind == "set" else frozenset)(_items_of(data))
        case "namedtuple":
            # Without a call of its class, which would run what is defined there.
            return tuple.__new__(_class_named(content, tuple), _items_of(data))
        case "text":
            return str(data, "utf-8")
        case "bytes":
            return bytes(data)
        case "np.str":
            return np.str_(str(data, "utf-8"))
        case "np.bytes":
            return np.bytes_(bytes(data))
        case "scalar":
            return _array_of(content, data)[()]
        case "array":
            return _array_of(content, data)
        case "cupy":
            return _to_device(_array_of(content, data))
    raise ValueError(f"unknown kind {kind!r}")


def _items_of(data: memoryview) -> list[Value]:
    """Return the items of a container whose bytes are a value's by themselves."""
    stream = Stream("", [data])
    items: list[Value] = rebuild(stream.header(), stream.leaf)
    return items


def _class_named(content: list[Any], base: type) -> Any:
    """Return a class that the program has loaded; nothing is imported, and nothing called, to find it."""
    module, name, _ = content
    found = vars(sys.modules[module]).get(name) if module in sys.modules else None
    if not (isinstance(found, type) and issubclass(found, base)):
        raise TensorError(f"it has a {module}.{name}: import {module} before you read it")
    return found


def _array_of(content: list[Any], data: memoryview) -> NDArray[Any]:
    described, shape, order = content
    dtype = dtype_of(described)
    if not data.nbytes:
        return np.empty(tuple(shape), dtype, order=order)
    return np.frombuffer(data, np.uint8).view(dtype).reshape(shape, order=order)


def _to_device(array: NDArray[Any]) -> Value:
    """Move an array to the current GPU; if there is none, keep it in host memory, so that any node can read it."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError:
        return array
    return cupy.asarray(array) if cupy.is_available() else array


@lru_cache(maxsize=64)  # NumPy takes longer to write and read one than most arrays of a message take
def describe_dtype(dtype: np.dtype[Any]) -> str | None:
    """Return a dtype as NumPy writes it; None if NumPy would not read it as the same one."""
    with suppress(SyntaxError, TypeError, ValueError):
        return next((text for text in (dtype.str, str(dtype)) if dtype_of(text) == dtype), None)
    return None


def dtype_of(described: str) -> np.dtype[Any]:
    """Return the dtype of a description."""
    if described.startswith(("[", "{")):  # it has several fields
        fields: np.dtype[Any] = np.dtype(ast.literal_eval(described))
        return fields
    try:
        return np.dtype(described)
    except TypeError:
        importlib.import_module("ml_dtypes")  # whose types NumPy then knows by their names
        return np.dtype(described)


def raw_bytes(array: NDArray[Any]) -> memoryview:
    """Return a view of a contiguous array's memory as bytes."""
    if array.nbytes == 0:
        return memoryview(b"")
    flat = (array if array.flags.c_contiguous else array.T).reshape(-1)
    return flat.view(np.uint8).data

"""Values to bytes and back."""

from __future__ import annotations

import contextlib
import enum
import math
import sys
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvstore.codec import Value, decode, encode
from kvstore.errors import CorruptValueError, UnsupportedValueError
from tests.fake_cupy.machine import Board, cupy_on

STRUCTURED = np.dtype([("t", "<f8"), ("name", "U7"), ("inner", [("x", ">i2", (2, 3)), ("when", "<M8[us]")])])
OUT_OF_ORDER = np.dtype({"names": ["b", "a"], "formats": ["<i4", "|S3"], "offsets": [8, 1], "itemsize": 16})

ARRAYS = {
    "float32": np.arange(6, dtype=np.float32).reshape(2, 3),
    "no axis": np.array(3.5),
    "no items": np.empty((3, 0, 2), np.int16),
    "big endian": np.arange(4, dtype=">i8"),
    "bool": np.array([True, False]),
    "complex": np.array([1 + 2j, complex(math.inf, -0.0)]),
    "half": np.array([1.5, math.nan], np.float16),
    "long double": np.array([np.longdouble(1) / 3]),
    "every other": np.arange(20)[::2],
    "backwards": np.arange(5)[::-1],
    "fortran": np.asfortranarray(np.arange(24).reshape(2, 3, 4)),
    "transposed": np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2),
    "broadcast": np.broadcast_to(np.arange(3), (4, 3)),
    "datetime": np.array(["2024-01-02", "NaT"], "M8[ns]"),
    "timedelta": np.array([5, -1], "m8[h]"),
    "text": np.array(["ü", "abc\0"]),
    "no text": np.array(["", ""]),
    "bytes": np.array([b"ab", b""]),
    "void": np.array([b"abc"], "V3"),
    "structured": np.zeros(3, STRUCTURED),
    "out of order": np.zeros(2, OUT_OF_ORDER),
    "records": np.zeros((2, 2), np.dtype([("a", "<i4"), ("b", "<f8")], align=True)),
}

VALUES: dict[str, Value] = {
    "nothing": None,
    "true": True,
    "zero": 0,
    "huge": 3**20_000,
    "huge negative": -(7**9999),
    "64 bits": 2**64 - 1,
    "float": 0.1,
    "minus zero": -0.0,
    "infinite": -math.inf,
    "text": "ü\0𝄞\n",
    "long text": "ü" * 10_000,
    "bytes": bytes(range(256)),
    "list": [1, [2.5, None], [], {}],
    "dict": {"a": {"": [True]}, "array": 1, "dict": {"int": "ff"}},
}

SCALARS = [
    np.float64(0.1),
    np.float32(math.inf),
    np.int8(-3),
    np.uint64(2**64 - 1),
    np.bool_(1),
    np.complex64(1j),
    np.datetime64("2024-01-02T03:04", "m"),
    np.timedelta64(3, "s"),
    np.str_("abc\0"),
    np.bytes_(b"a\0"),
    np.void(b"abc"),
    np.zeros(1, STRUCTURED)[0],
]


def round_trip(value: Value) -> Value:
    return decode("key", encode("key", value).parts)


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_an_array_comes_back_equal_bit_for_bit(array: np.ndarray) -> None:
    back = round_trip(array)
    assert type(back) is np.ndarray
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert back.flags.writeable
    assert not np.shares_memory(back, array)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_value_comes_back_equal_and_of_the_same_type(value: Value) -> None:
    back = round_trip(value)
    assert back == value
    assert type(back) is type(value)
    assert isinstance(value, int) or repr(back) == repr(value)


def test_nan_comes_back() -> None:
    assert math.isnan(round_trip(math.nan))


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda scalar: type(scalar).__name__)
def test_a_numpy_scalar_comes_back_as_one(scalar: np.generic) -> None:
    back = round_trip(scalar)
    assert type(back) is type(scalar)
    assert back.dtype == scalar.dtype
    assert back == scalar


def test_arrays_inside_lists_and_dicts_come_back() -> None:
    back = round_trip({"w": [np.arange(3), {"b": np.float32(2)}], "raw": b"x" * 5000})
    assert back["w"][0].tolist() == [0, 1, 2]
    assert back["w"][1]["b"] == np.float32(2)
    assert back["raw"] == b"x" * 5000


def test_a_memory_map_comes_back_as_an_array(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "file", dtype=np.int32, mode="w+", shape=(4,))
    mapped[:] = 7
    assert round_trip(mapped).tolist() == [7, 7, 7, 7]


def test_a_bfloat16_array_comes_back() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(5).astype(ml_dtypes.bfloat16)
    assert round_trip(array).dtype == array.dtype
    assert round_trip(array).tobytes() == array.tobytes()


@pytest.fixture
def cupy() -> Iterator[Any]:
    """CuPy where there is a GPU, elsewhere the stand-in for it."""
    with contextlib.suppress(ImportError):
        import cupy

        if cupy.is_available():
            yield cupy
            return
    with cupy_on(Board()) as stand_in:
        yield stand_in


def test_a_cupy_array_comes_back_on_the_gpu(cupy: Any) -> None:
    for array in (cupy.arange(6).reshape(2, 3), cupy.array(1.5), cupy.arange(20)[::2], cupy.empty((0, 3))):
        back = round_trip(array)
        assert type(back) is cupy.ndarray
        assert (back.dtype, back.shape, back.get().tolist()) == (array.dtype, array.shape, array.get().tolist())


def test_an_array_of_a_gpu_can_be_read_where_there_is_none(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = encode("k", cupy.arange(6).reshape(2, 3)).joined()
    with cupy_on():
        without_gpu = decode("k", [stored])
    monkeypatch.setitem(sys.modules, "cupy", None)
    without_cupy = decode("k", [stored])
    for back in (without_gpu, without_cupy):
        assert type(back) is np.ndarray
        assert back.tolist() == [[0, 1, 2], [3, 4, 5]]


class Color(enum.IntEnum):
    RED = 1


UNSUPPORTED = {
    "tuple is none of its types; use a list": (1, 2),
    "set is none": {1},
    "bytearray is none of its types; use bytes": bytearray(b"x"),
    "OrderedDict is none": OrderedDict(a=1),
    "Color is none": Color.RED,
    "SimpleNamespace is none": SimpleNamespace(),
    "complex is none": 1j,
    "a dict key of type int; use text": {1: 2},
    "dtype object": np.array([None]),
    "holds Python objects": np.zeros(1, [("a", "O")]),
    "MaskedArray is none of its types; store its data and its mask": np.ma.masked_array([1], [True]),
    "matrix is none of its types; convert it with numpy.asarray": np.zeros((1, 1)).view(np.matrix),
    "half of a surrogate pair": "\ud800",
    "StringDType": np.array(["a"], np.dtypes.StringDType()),
}


@pytest.mark.parametrize(("reason", "value"), UNSUPPORTED.items(), ids=UNSUPPORTED)
@pytest.mark.parametrize("nested", [False, True])
def test_an_unsupported_value_is_refused_with_key_type_and_way_out(reason: str, value: Value, nested: bool) -> None:
    with pytest.raises(UnsupportedValueError, match=f"'weights': .*{reason}"):
        encode("weights", {"a": [value]} if nested else value)


def test_a_list_that_contains_itself_is_refused() -> None:
    loop: list[Value] = []
    loop.append(loop)
    with pytest.raises(UnsupportedValueError, match="contains itself"):
        encode("key", loop)


def test_a_contiguous_array_is_not_copied_by_encoding() -> None:
    array = np.zeros(1000)
    encoded = encode("key", array)
    snapshot = encoded.snapshot()
    array[:] = 1
    assert decode("key", encoded.parts)[0] == 1
    assert decode("key", snapshot.parts)[0] == 0


@pytest.mark.parametrize("limit_bytes", [1, 7, 1000, 100_000, 10_000_000])
def test_chunks_of_any_size_are_the_same_bytes(limit_bytes: int) -> None:
    encoded = encode("key", [np.arange(500), b"abc", "x" * 2000, np.arange(3)])
    chunks = list(encoded.chunks(limit_bytes))
    assert b"".join(chunks) == encoded.joined()
    assert max(map(len, chunks)) <= limit_bytes
    assert decode("key", chunks)[1] == b"abc"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x02\0\0\0[",
        b"\x02\0\0\0{]",
        b"\x0f\0\0\0" + b'{"unknown": 12}',
        b"\x0f\0\0\0" + b'{"a": 1,"b": 2}',
        b"\x0c\0\0\0" + b'{"bytes": 5}' + b"four",
        b"\x0c\0\0\0" + b'{"array": 5}',
    ],
)
def test_damaged_bytes_are_refused_by_type(data: bytes) -> None:
    with pytest.raises(CorruptValueError, match="the stored value of 'key' is damaged"):
        decode("key", [data])


def test_reading_never_runs_what_a_pickle_would() -> None:
    evil = b'{"array": ["O", [1], "C"]}'
    with pytest.raises(CorruptValueError):
        decode("key", [len(evil).to_bytes(4, "little") + evil + bytes(8)])

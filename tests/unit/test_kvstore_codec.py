"""Values to bytes and back."""

from __future__ import annotations

import contextlib
import enum
import json
import math
import sys
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import pytest

from laggard.kvstore.checkpoints.layout import plan
from laggard.kvstore.checkpoints.shard import Shard
from laggard.kvstore.errors import CorruptValueError, UnsupportedValueError
from laggard.kvstore.values.blocks import Block, Region
from laggard.kvstore.values.codec import decode, encode
from laggard.kvstore.values.decoding import Value
from tests.fake_cupy.machine import Board, cupy_on, no_cupy

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


class Point(NamedTuple):
    x: Value
    y: Value


class Color(enum.IntEnum):
    RED = 1


class Kind(enum.StrEnum):
    TEXT = "text"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


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
    "tuple": (1, (), ("a", [(None,)])),
    "whole numbers as keys": {0: "a", -1: {2**70: 1}, "x" * 2000: [b"y"]},
    "ordered": OrderedDict([("b", 1), ("a", OrderedDict()), (3, 2)]),
    "counter": Counter({30: 1, 80: 2}),
    "complex": complex(1.5, -0.0),
    "set": {1, "b", (2, None), b"c" * 2000, 2**70},
    "no set": set(),
    "frozen set": frozenset({"x" * 2000, 0.5}),
    "named tuple": Point([1, {"a": b"b"}], Point(2, ())),
    "enums": [Color.RED, Kind.TEXT, {"a": Access.READ}],
    "default dict": defaultdict(list, {"a": [1], 3: []}),
    "default dict of nothing": defaultdict(None, {"a": (1,)}),
    "path": Path("/a/ü"),
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
def test_an_array_is_restored_bit_for_bit(array: np.ndarray) -> None:
    back = round_trip(array)
    assert type(back) is np.ndarray
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert back.flags.writeable
    assert not np.shares_memory(back, array)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_value_is_restored_with_the_same_type(value: Value) -> None:
    back = round_trip(value)
    assert back == value
    assert type(back) is type(value)
    if isinstance(value, set | frozenset):  # which are written in any order
        assert sorted(map(repr, cast("Any", back))) == sorted(map(repr, value))
    else:
        assert isinstance(value, int) or repr(back) == repr(value)


def test_an_ordered_dict_keeps_its_order_and_the_attributes_that_pytorch_gives_it() -> None:
    value = OrderedDict([("b", 1), ("a", 2)])
    vars(value)["_metadata"] = OrderedDict([("", {"version": 1})])
    back = round_trip(value)
    assert list(back) == ["b", "a"]
    assert vars(back) == vars(value)


def test_nan_is_restored() -> None:
    assert math.isnan(round_trip(math.nan))


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda scalar: type(scalar).__name__)
def test_a_numpy_scalar_is_restored_as_one(scalar: np.generic) -> None:
    back = round_trip(scalar)
    assert type(back) is type(scalar)
    assert back.dtype == scalar.dtype
    assert back == scalar


def test_arrays_inside_lists_and_dicts_are_restored() -> None:
    back = round_trip({"w": [np.arange(3), {"b": np.float32(2)}], "raw": b"x" * 5000})
    assert back["w"][0].tolist() == [0, 1, 2]
    assert back["w"][1]["b"] == np.float32(2)
    assert back["raw"] == b"x" * 5000


def test_a_memory_map_is_restored_as_an_array(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "file", dtype=np.int32, mode="w+", shape=(4,))
    mapped[:] = 7
    assert round_trip(mapped).tolist() == [7, 7, 7, 7]


def test_a_bfloat16_array_is_restored() -> None:
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


def test_a_cupy_array_is_restored_on_the_gpu(cupy: Any) -> None:
    for array in (cupy.arange(6).reshape(2, 3), cupy.array(1.5), cupy.arange(20)[::2], cupy.empty((0, 3))):
        back = round_trip(array)
        assert type(back) is cupy.ndarray
        assert (back.dtype, back.shape, back.get().tolist()) == (array.dtype, array.shape, array.get().tolist())


def test_an_array_of_a_gpu_can_be_read_on_a_machine_without_one(cupy: Any) -> None:
    stored = encode("k", cupy.arange(6).reshape(2, 3)).joined()
    with cupy_on():
        without_gpu = decode("k", [stored])
    with no_cupy():
        without_cupy = decode("k", [stored])
    for back in (without_gpu, without_cupy):
        assert type(back) is np.ndarray
        assert back.tolist() == [[0, 1, 2], [3, 4, 5]]


def local_classes() -> tuple[Value, Value]:
    Pair = namedtuple("Pair", "x y")
    return Pair(1, 2), enum.Enum("Side", "LEFT").LEFT  # type: ignore[attr-defined]


UNSUPPORTED = {
    "Pair is not found again by its name; define it at the top of its module": local_classes()[0],
    "Side is not found again by its name": local_classes()[1],
    "Access is not a supported type": Access.READ | Access.WRITE,
    "a defaultdict that makes <function .*>; use one of None, bool, int": defaultdict(lambda: 0),
    "bytearray is not a supported type; use arrays, numbers, text": bytearray(b"x"),
    "SimpleNamespace is not a supported type": SimpleNamespace(),
    "a dict key is of type bool; use text or whole numbers": {True: 2},
    "dtype object": np.array([None]),
    "holds Python objects": np.zeros(1, [("a", "O")]),
    "MaskedArray is not a supported type; use arrays, numbers, text": np.ma.masked_array([1], [True]),
    "matrix is not a supported type; use arrays, numbers, text": np.zeros((1, 1)).view(np.matrix),
    "unpaired surrogate": "\ud800",
    "StringDType": np.array(["a"], np.dtypes.StringDType()),
}


@pytest.mark.parametrize(("reason", "value"), UNSUPPORTED.items(), ids=UNSUPPORTED)
@pytest.mark.parametrize("nested", [False, True])
def test_an_unsupported_value_is_refused_with_key_type_and_advice(reason: str, value: Value, nested: bool) -> None:
    place = r"weights\.a\[1\]\[7\]\.b" if nested and not isinstance(value, dict) else "weights"
    with pytest.raises(UnsupportedValueError, match=f"'{place}.*': .*{reason}"):
        encode("weights", {"a": [0, {7: ({"b": value},)[0]}]} if nested else value)


def test_a_class_that_the_program_has_not_loaded_is_neither_imported_nor_guessed() -> None:
    for module, name in (("antigravity", "Color"), (__name__, "no_such"), (__name__, "Path"), ("os", "system")):
        text = json.dumps({"enum": [module, name, "RED"]}).encode()
        with pytest.raises(
            UnsupportedValueError, match=rf"it has a {module}\.{name}: import {module} before you read it"
        ):
            decode("key", [len(text).to_bytes(4, "little") + text])
    assert "antigravity" not in sys.modules


def test_a_named_tuple_is_made_without_a_call_of_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = encode("key", Point(1, 2))
    monkeypatch.setattr(Point, "__new__", None)
    back = decode("key", encoded.parts)
    assert (type(back), tuple(back)) == (Point, (1, 2))


def test_equal_sets_are_the_same_bytes_in_whatever_order_they_were_filled() -> None:
    one, other = {0, 8}, {8, 0}
    assert list(one) != list(other)
    assert encode("key", one).joined() == encode("key", other).joined()


def test_a_list_that_contains_itself_is_refused() -> None:
    loop: list[Value] = []
    loop.append(loop)
    with pytest.raises(UnsupportedValueError, match="contains itself"):
        encode("key", loop)


def test_a_contiguous_array_is_not_copied_by_encoding() -> None:
    array = np.zeros(1000)
    encoded = encode("key", array)
    detached = encoded.detached()
    array[:] = 1
    assert decode("key", encoded.parts)[0] == 1
    assert decode("key", detached.parts)[0] == 0


@pytest.mark.parametrize("limit_bytes", [1, 7, 1000, 100_000, 10_000_000])
def test_chunks_of_any_size_are_the_same_bytes(limit_bytes: int) -> None:
    encoded = encode("key", [np.arange(500), b"abc", "x" * 2000, np.arange(3)])
    chunks = list(encoded.chunks(limit_bytes))
    assert b"".join(chunks) == encoded.joined()
    assert max(map(len, chunks)) <= limit_bytes
    assert decode("key", chunks)[1] == b"abc"


def test_short_text_and_numbers_of_64_bits_stand_in_the_header_as_they_are() -> None:
    def header(value: Value) -> bytes:
        return bytes(encode("key", value).parts[0])[4:]

    for number in (0, -(2**63), 2**64 - 1):
        assert header(number) == str(number).encode()
    assert header(-(2**63) - 1) == b'{"int":"-8000000000000001"}'
    assert header(2**64) == b'{"int":"10000000000000000"}'
    assert [len(encode("key", "x" * length).parts) for length in (1024, 1025)] == [1, 2]
    assert header("ü") == '"ü"'.encode()


def test_the_order_of_an_arrays_axes_in_memory_is_kept() -> None:
    for array in (np.zeros((3, 4)), np.asfortranarray(np.zeros((3, 4)))):
        back = round_trip(array)
        assert (back.flags.c_contiguous, back.flags.f_contiguous) == (
            array.flags.c_contiguous,
            array.flags.f_contiguous,
        )
    assert b'"C"' in bytes(encode("key", np.zeros(3)).parts[0])  # of one axis, both hold
    assert b'"C"' in bytes(encode("key", np.zeros((4, 6))[::2, ::2]).parts[0])


def test_a_part_of_a_mebibyte_is_sent_in_place_and_a_smaller_one_joined() -> None:
    for length, in_place in ((2**20, True), (2**20 - 1, False)):
        array = np.zeros(length, np.uint8)
        encoded = encode("key", [array, array])
        chunks = list(encoded.chunks(2**30))
        assert [np.shares_memory(np.frombuffer(chunk, np.uint8), array) for chunk in chunks].count(True) == 2 * in_place
        assert b"".join(chunks) == encoded.joined()
        assert encoded.nbytes == len(encoded.joined())


def test_small_parts_are_joined_up_to_the_limit() -> None:
    encoded = encode("key", [b"a" * 40, b"b" * 40, b"c" * 40])
    header = len(encoded.parts[0])

    assert [len(chunk) for chunk in encoded.chunks(header + 80)] == [header + 80, 40]
    assert [len(chunk) for chunk in encoded.chunks(header + 79)] == [header + 40, 80]
    assert [len(chunk) for chunk in encoded.chunks(40)] == [*[40] * (header // 40), header % 40, 40, 40, 40]


def test_what_was_cut_anywhere_is_read_and_what_was_cut_off_is_damaged() -> None:
    data = encode("key", {"a": np.arange(4), "b": b"xyz"}).joined()

    for at in range(len(data) + 1):
        back = decode("key", [data[:at], b"", data[at:]])
        assert (back["a"].tolist(), back["b"]) == ([0, 1, 2, 3], b"xyz")
    for at in range(len(data)):
        with pytest.raises(CorruptValueError):
            decode("key", [data[:at]])


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
        b"\x0b\0\0\0" + b'{"same": 0}',
    ],
)
def test_damaged_bytes_are_refused_by_type(data: bytes) -> None:
    with pytest.raises(CorruptValueError, match="the stored value of 'key' is damaged"):
        decode("key", [data])


def test_reading_never_runs_what_a_pickle_would() -> None:
    evil = b'{"array": ["O", [1], "C"]}'
    with pytest.raises(CorruptValueError):
        decode("key", [len(evil).to_bytes(4, "little") + evil + bytes(8)])


def test_leaves_without_bytes_do_not_shift_those_that_are_decoded_in_place() -> None:
    empty: dict[str, Value] = {"a": b"", "b": np.str_(""), "c": np.empty(0), "d": np.empty((0, 3), order="F")}
    value = empty | {"e": np.arange(3), "f": b"bytes", "g": Block(np.ones((2, 1)), Region((1, 0), (2, 1)), (3, 1))}
    found = Shard.whole("key", plan(encode("key", value).parts).content()).value()

    assert list(found) == list(value)
    assert all(np.array_equal(found[name], value[name]) for name in "abcdef")
    assert found["g"].data.tolist() == [[1], [1]]
    assert (found["g"].region, found["g"].shape) == (Region((1, 0), (2, 1)), (3, 1))


@pytest.mark.parametrize(
    ("data", "region", "shape", "reason"),
    [
        (np.ones(2), Region((0,), (3,)), (3,), r"the data has shape \(2,\), and its region \[0:3\] has \(3,\)"),
        (np.ones(2), Region((2,), (2,)), (3,), r"the region \[2:4\] is not within an array of shape \(3,\)"),
        (np.ones(2), Region((0,), (2,)), (3, 1), r"the region \[0:2\] is not within an array of shape \(3, 1\)"),
    ],
)
def test_a_block_that_is_no_part_of_its_array_is_refused(
    data: Value, region: Region, shape: tuple[int, ...], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        Block(data, region, shape)


def test_a_block_of_anything_but_an_array_or_a_tensor_is_refused() -> None:
    class Other:
        shape = (2,)

    with pytest.raises(UnsupportedValueError, match=r"the data of a Block is a .*Other; use an array or a tensor"):
        encode("key", Block(Other(), Region((0,), (2,)), (2,)))

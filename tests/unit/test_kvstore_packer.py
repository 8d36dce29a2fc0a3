"""The wire format of commands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.connection import PythonRespSerializer

from kvstore.packer import Packer

ARGUMENTS = st.lists(st.text() | st.binary() | st.integers() | st.floats() | st.integers(0, 400_000).map(bytes))


@given(arguments=ARGUMENTS)
def test_the_bytes_are_those_that_the_client_itself_would_send(arguments: list[str | bytes | int | float]) -> None:
    def encode(value: str | bytes | int | float) -> bytes:
        return value if isinstance(value, bytes) else value.encode() if isinstance(value, str) else repr(value).encode()

    expected = PythonRespSerializer(6000, encode).pack("CONFIG GET", *arguments)  # type: ignore[no-untyped-call]
    assert b"".join(Packer().pack("CONFIG GET", *arguments)) == b"".join(expected)


def test_a_large_argument_is_not_copied() -> None:
    large = bytearray(1 << 20)
    packed = Packer().pack("SET", "key", memoryview(large), "EX", 1)
    views = [part for part in packed if isinstance(part, memoryview)]
    assert [view.obj is large for view in views] == [True]


def test_small_arguments_are_one_send() -> None:
    assert len(Packer().pack("XADD", "key", "*", *["field", "value"] * 1000)) == 1


@pytest.mark.parametrize("argument", [None, True, [1]])
def test_an_argument_of_another_type_is_refused(argument: object) -> None:
    with pytest.raises(TypeError, match="is no argument of a command"):
        Packer().pack("SET", "key", argument)  # type: ignore[arg-type]

"""The copies of a --per-node program: their variables, their common exit code, their output."""

from __future__ import annotations

import io
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.resilience.nodes.copies import LONGEST_LINE_BYTES, Lines, Printer, combined_exit_code, rank_variables

DEADLINE_S = 10.0


def test_a_copy_gets_its_rank_and_the_address_of_the_primary_also_for_torchrun() -> None:
    variables = rank_variables(1, 3, "127.5.6.1", 29500)
    expected = {"NODE_RANK": "1", "NNODES": "3", "MASTER_ADDR": "127.5.6.1", "MASTER_PORT": "29500"}
    assert variables == expected | {f"PET_{name}": value for name, value in expected.items()}


@pytest.mark.parametrize(
    ("exits", "exit_code"),
    [
        ([None, None], None),
        ([0, None], None),
        ([0, 0], 0),
        ([None, 3], 3),  # the first failure wins: the others are still running
        ([0, 3, None], 3),
        ([1, -9], -9),  # the other one failed because this one was killed
        ([-15, -9], -15),
    ],
)
def test_the_exit_code_of_all_copies_together(exits: list[int | None], exit_code: int | None) -> None:
    assert combined_exit_code(exits) == exit_code


@given(st.lists(st.text(alphabet="ab\n\r", max_size=8)), st.text(alphabet="ab", max_size=3))
def test_lines_are_the_same_however_the_text_is_cut(pieces: list[str], rest: str) -> None:
    text = "".join(pieces) + rest
    lines = Lines(b"> ")
    cut = b"".join(lines.take(piece.encode()) for piece in pieces) + lines.take(rest.encode()) + lines.end()
    ends = text if not text or text[-1] in "\r\n" else text + "\n"
    whole = "".join(f"> {line}" for line in ends.splitlines(keepends=True))
    assert cut.replace(b"\r> \n", b"\r\n") == whole.encode()  # a cut between the two makes them two ends


def test_an_endless_line_is_split() -> None:
    assert Lines(b"> ").take(b"x" * (LONGEST_LINE_BYTES + 1)) == b"> " + b"x" * LONGEST_LINE_BYTES + b"\n"


def test_printing_does_not_wait_for_a_terminal_that_hangs() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as terminal, os.fdopen(writer, "wb", buffering=0) as ours:
        printer = Printer({"stdout": ours})
        printed = threading.Event()
        printer.add("stdout", b"x" * 1_000_000, printed.set)
        assert not printed.is_set()
        read = 0
        while read < 1_000_000:
            read += len(terminal.read1(1 << 16))
        assert printed.wait(DEADLINE_S)
        printer.close(DEADLINE_S)


class Closed(io.BytesIO):
    def write(self, _: object) -> int:
        raise BrokenPipeError


def test_output_that_cannot_be_written_is_dropped_and_the_copies_go_on() -> None:
    printer = Printer({"stdout": Closed()})
    printed: list[int] = []
    for number in range(3):
        printer.add("stdout", b"line\n", lambda number=number: printed.append(number))  # type: ignore[misc]
    printer.close(DEADLINE_S)
    assert printed == [0, 1, 2]

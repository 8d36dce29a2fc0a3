"""What the copies of a program are told, what their ends mean together, and how their output is put together."""

from __future__ import annotations

import io
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.copies import rank_variables, verdict_on
from resilience.printer import LONGEST_LINE_BYTES, Lines, Printer

DEADLINE_S = 10.0


def test_a_copy_is_told_its_rank_and_where_to_meet_the_others_and_torchrun_hears_it_too() -> None:
    variables = rank_variables(1, 3, "127.5.6.1", 29500)
    expected = {"NODE_RANK": "1", "NNODES": "3", "MASTER_ADDR": "127.5.6.1", "MASTER_PORT": "29500"}
    assert variables == expected | {f"PET_{name}": value for name, value in expected.items()}


@pytest.mark.parametrize(
    ("exits", "verdict"),
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
def test_what_the_ends_of_copies_mean_together(exits: list[int | None], verdict: int | None) -> None:
    assert verdict_on(exits) == verdict


@given(st.lists(st.text(alphabet="ab\n\r", max_size=8)), st.text(alphabet="ab", max_size=3))
def test_however_a_text_is_cut_its_lines_are_the_same(pieces: list[str], rest: str) -> None:
    text = "".join(pieces) + rest
    lines = Lines(b"> ")
    cut = b"".join(lines.take(piece.encode()) for piece in pieces) + lines.take(rest.encode()) + lines.end()
    ends = text if not text or text[-1] in "\r\n" else text + "\n"
    whole = "".join(f"> {line}" for line in ends.splitlines(keepends=True))
    assert cut.replace(b"\r> \n", b"\r\n") == whole.encode()  # a cut between the two makes them two ends


def test_a_line_without_end_is_broken() -> None:
    assert Lines(b"> ").take(b"x" * (LONGEST_LINE_BYTES + 1)) == b"> " + b"x" * LONGEST_LINE_BYTES + b"\n"


def test_who_gives_output_away_does_not_wait_for_a_terminal_that_hangs() -> None:
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


def test_output_that_nobody_reads_any_more_is_dropped_and_the_copies_go_on() -> None:
    printer = Printer({"stdout": Closed()})
    printed: list[int] = []
    for number in range(3):
        printer.add("stdout", b"line\n", lambda number=number: printed.append(number))  # type: ignore[misc]
    printer.close(DEADLINE_S)
    assert printed == [0, 1, 2]

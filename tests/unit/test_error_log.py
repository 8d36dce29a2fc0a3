"""The lines of standard error that a job's record and its page have: whole, plain and bounded."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from laggard.resilience.record.error_log import (
    MAX_TEXT,
    OF_ALL,
    OF_ONE,
    Allowance,
    ErrorLog,
    plain_line,
    read_error_lines,
)
from laggard.telemetry.error_lines import MAX_LINES, ErrorLine

NOW_S = 1_700_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


def kept(log: ErrorLog, folder: Path) -> list[ErrorLine]:
    log.save(folder)
    return read_error_lines(folder)


def texts(lines: Iterable[ErrorLine]) -> list[str]:
    return [line.text for line in lines]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"  File 'train.py', line 3\r", "  File 'train.py', line 3"),
        (b"\x1b[31mError\x1b[0m: \xff \x07", "Error: \ufffd"),
        (b" 10%|#  |\r 20%|## |\r", " 20%|## |"),
        (b"x" * 1000, "x" * MAX_TEXT),
        (b" \t", ""),
    ],
)
def test_a_line_is_as_a_terminal_shows_it_at_last(line: bytes, text: str) -> None:
    assert plain_line(line) == text


def test_lines_are_put_together_from_pieces_of_each_rank_and_saved_with_their_moments(tmp_path: Path) -> None:
    clock = Clock()
    log = ErrorLog(clock)
    log.take("node1", 0, b"one\ntw")
    log.take("node1", 1, b"other\n")
    clock.now_s += 2
    log.take("node1", 0, b"o\n\nthe end")
    log.take("node1", 0, b"")
    log.take("node2", None, b"without a rank\n")

    assert [(line.time_us - NOW_S * 1e6, line.host, line.rank, line.text) for line in kept(log, tmp_path)] == [
        (0, "node1", 0, "one"),
        (0, "node1", 1, "other"),
        (2e6, "node1", 0, "two"),
        (2e6, "node1", 0, "the end"),
        (2e6, "node2", None, "without a rank"),
    ]


def test_a_record_without_lines_has_no_file(tmp_path: Path) -> None:
    assert kept(ErrorLog(), tmp_path) == []
    assert [*tmp_path.iterdir()] == []


def test_one_that_writes_without_end_leaves_room_for_the_others_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    clock = Clock()
    log = ErrorLog(clock)
    log.take("node1", 0, b"again\n" * 100_000)
    log.take("node1", 1, b"why it failed\n")
    clock.now_s += 60
    log.take("node1", 0, b"later\n")

    found = texts(kept(log, tmp_path))

    assert found == [
        *["again"] * OF_ONE[0],
        f"({100_000 - OF_ONE[0]:,} lines before this one were not kept) why it failed",
        "later",
    ]


def test_of_all_that_fail_at_once_the_first_are_kept_and_of_a_long_job_the_newest(tmp_path: Path) -> None:
    clock = Clock()
    log = ErrorLog(clock)
    for rank in range(10_000):
        log.take("node1", rank, b"lost\n" if rank else b"CUDA error\n")
    assert texts(kept(log, tmp_path)) == ["CUDA error", *["lost"] * (OF_ALL[0] - 1)]
    for number in range(MAX_LINES + 10):
        clock.now_s += 1
        log.take("node2", 0, b"%d\n" % number)
    found = texts(kept(log, tmp_path))
    assert (len(found), found[-1]) == (MAX_LINES, str(MAX_LINES + 9))


def test_an_allowance_grows_with_time_up_to_its_limit_and_not_with_a_clock_that_goes_back() -> None:
    allowance = Allowance(2, 0.5)
    granted = [allowance.grants(at_s) for at_s in (10, 10, 10, 5, 7, 7, 1000, 1000, 1000)]
    assert granted == [True, True, False, False, True, False, True, True, False]

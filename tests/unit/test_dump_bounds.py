"""Dumps that unpack to more than any machine has, and numbers that no sample has."""

from __future__ import annotations

import gzip
import itertools
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from laggard.kvstore.series.sample_store import key_of
from laggard.kvstore.series.timeseries import TimeSeries
from laggard.resilience.command.cli import main
from laggard.telemetry.dumps.lines import MAX_ROW_CHARS
from laggard.telemetry.dumps.reading import read_dump
from laggard.telemetry.dumps.writing import COLUMNS, write_dump
from laggard.telemetry.errors import DumpError
from tests.made_up_job import write_record

HEADER = (",".join(COLUMNS) + "\n").encode()
SAMPLE = "1700000000.0,m,1.5,h,,host=h,,,,,,,\n"
PIECE_BYTES = 16 << 20
UNPACKED_BYTES = 10 << 30
# Of which a few rows, and what unpacks them, take a part.
SMALL_BYTES = 16 * MAX_ROW_CHARS
SMALL_MACHINE_BYTES = 8 << 20


def bomb(path: Path, begin: bytes, unit: bytes) -> Path:
    """Write a file that unpacks to 10 GiB: the beginning, and then the same over and over."""
    piece = gzip.compress(unit * (PIECE_BYTES // len(unit)))
    with path.open("wb") as file:
        file.write(gzip.compress(begin))
        file.writelines(itertools.repeat(piece, UNPACKED_BYTES // PIECE_BYTES))
    assert path.stat().st_size < 100 << 20
    return path


def refusal(path: Path, memory_bytes: int | None = None) -> str:
    """Return why a dump is refused, in one line; reading it takes little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(DumpError) as refused:
            read_dump([path], memory_bytes)
        assert tracemalloc.get_traced_memory()[1] < SMALL_BYTES
    finally:
        tracemalloc.stop()
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(str(path))
    return refused.value.reason


@pytest.mark.parametrize(
    ("begin", "unit"),
    [
        (b"", b"\0"),
        (HEADER, b"\0"),
        (HEADER, b"a"),
        (HEADER, b"\r\0" * 8 + b","),
        (HEADER + b'"', b"a\n"),  # a field that is never closed
        (HEADER + b'"', b'a\n","'),  # a row of many fields that never ends
    ],
)
def test_ten_gigabytes_without_an_end_of_row_are_refused_before_they_are_unpacked(
    tmp_path: Path, begin: bytes, unit: bytes
) -> None:
    assert refusal(bomb(tmp_path / "bomb.csv.gz", begin, unit))


@pytest.mark.parametrize("command", ["replay", "report"])
def test_the_commands_that_read_dumps_refuse_a_bomb_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    path = bomb(write_record(tmp_path, samples=False) / "bomb.csv.gz", HEADER, b"a")

    assert main([command, str(tmp_path)]) != 0

    printed = capfd.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert f"{path}: it cannot be read: a line has more than 1,048,576 characters" in line


def test_more_lines_than_the_memory_has_room_for_are_refused(tmp_path: Path) -> None:
    reason = refusal(bomb(tmp_path / "bomb.csv.gz", HEADER, SAMPLE.encode()), SMALL_MACHINE_BYTES)

    assert "need more than 0.00391 GiB of memory, half of what there is" in reason
    assert "name fewer, or read them on a larger machine" in reason


def test_millions_of_series_are_refused_as_soon_as_they_need_too_much_memory(tmp_path: Path) -> None:
    path = tmp_path / "many.csv.gz"
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write(HEADER.decode())
        file.writelines(SAMPLE.replace("m", f"m{number}") for number in range(2_000))

    assert "half of what there is" in refusal(path, SMALL_MACHINE_BYTES)


def test_the_bound_is_for_all_dumps_together(tmp_path: Path) -> None:
    for name in "ab":
        with gzip.open(tmp_path / f"{name}.csv.gz", "wt") as file:
            file.write(HEADER.decode() + SAMPLE * 6_000)

    assert read_dump([tmp_path / "a.csv.gz"], SMALL_MACHINE_BYTES).samples.size().samples == 1
    with pytest.raises(DumpError, match=r"b\.csv\.gz: line .*half of what there is"):
        read_dump([tmp_path], SMALL_MACHINE_BYTES)


@pytest.mark.parametrize("time_s", ["nan", "inf", "-inf", "-1", "1e300", "1e11", "", "1.7e9.5"])
def test_a_time_that_no_sample_can_have_is_refused_with_its_line(tmp_path: Path, time_s: str) -> None:
    for line in (SAMPLE.replace("1700000000.0", time_s), f"60.0,m,1.5,h,,host=h,60,1,1,1,1,1,{time_s}\n"):
        path = tmp_path / "times.csv.gz"
        path.write_bytes(gzip.compress(HEADER + SAMPLE.encode() + line.encode()))

        assert refusal(path).startswith("line 3: ")


def test_values_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    times_us = np.arange(5, dtype=np.int64) + 1_700_000_000_000_000
    values = np.array([1.0, np.nan, np.inf, -np.inf, 2.0])
    dump = write_dump(str(tmp_path), "node1", 1.7e9, [TimeSeries("m", {"host": "h"}, times_us, values)])
    summaries = [f"{60 * n}.0,s,1.0,h,,host=h,60,{fields},{60 * n}.5\n" for n, fields in enumerate(BROKEN, start=1)]
    broken = tmp_path / "broken.csv.gz"
    broken.write_bytes(gzip.compress(HEADER + "".join(summaries).encode()))

    history = read_dump([dump, broken])

    (found,) = history.samples.read(["m"], 0, 2**60)
    assert found.values.tolist() == [1.0, 2.0]
    assert history.everything("s") == ([], [])
    assert history.series_keys() == [key_of("m", {"host": "h"})]


# Count, sum, lowest, highest and last value.
BROKEN = [
    "nan,1,1,1,1",
    "inf,1,1,1,1",
    "0,1,1,1,1",
    "-1,1,1,1,1",
    "1,inf,1,1,1",
    "1,1,nan,1,1",
    "1,1,1,-inf,1",
    "1,1,1,1,nan",
]


def test_a_damaged_gzip_file_is_refused(tmp_path: Path) -> None:
    dump = bytearray(gzip.compress(HEADER + SAMPLE.encode() * 1000))
    dump[20:30] = bytes(10)
    path = tmp_path / "damaged.csv.gz"
    path.write_bytes(dump)

    assert refusal(path).startswith("it cannot be read: ")

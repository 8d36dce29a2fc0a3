"""The lines of dumps, read within bounds: a file of a few megabytes can unpack to more than any machine has.

What is read counts against a budget of memory before it is kept, and no row is longer than :data:`MAX_ROW_CHARS`.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import parse_qsl

from laggard.kvstore.series.sample_store import SeriesKey, key_of
from laggard.telemetry.dumps.writing import COLUMNS
from laggard.telemetry.errors import DumpError

LATEST_S = 1e11
"""No sample is of this Unix time or later."""
MAX_ROW_CHARS = 1 << 20
# At the peak, while lines are sorted and packed.
SAMPLE_BYTES = 400
SUMMARY_BYTES = 1000
SERIES_BYTES = 8192
# A series' tags become a piece of memory for each few characters.
NAME_CHAR_BYTES = 64


class Lines:
    """The lines of all files: samples and summaries, with the numbers of their series and files.

    They, and what is made of them, take half of the memory that this process may have, at most.
    """

    def __init__(self, memory_bytes: int) -> None:
        self.names: dict[tuple[str, str], int] = {}  # the metric and tags of each series
        # Columns: the numbers of the series and of the file, time in seconds, value
        self.samples = [_numbers(kind) for kind in "qqdd"]
        # Columns: the numbers of the series and of the file, width in seconds, start, and the rest of the line
        self.summaries = [_numbers(kind) for kind in "qqdddddddd"]
        self._max_bytes = self._left_bytes = memory_bytes // 2  # of what the machine has

    def read(self, place: int, file: Path) -> None:
        """Add the lines of a file, which has this place among the files."""
        for number, row in enumerate(_rows(file), start=2):
            try:
                self._add(place, row)
            except ValueError as error:
                raise DumpError(str(file), f"line {number}: {error}") from error
            if self._left_bytes < 0:
                bound = f"{self._max_bytes / (1 << 30):.3g} GiB of memory, half of what there is"
                reason = (
                    f"line {number}: the dumps need more than {bound}; name fewer, or read them on a larger machine"
                )
                raise DumpError(str(file), reason)

    def keys(self) -> list[SeriesKey]:
        """Return the keys of the series."""
        return [key_of(metric, dict(parse_qsl(tags))) for metric, tags in self.names]

    def _add(self, file: int, row: list[str]) -> None:
        time_s, metric, value, _, _, tags, width, *summary = row
        series = self.names.setdefault((metric, tags), n_before := len(self.names))
        start_s = _unix_s(time_s)
        if not width:
            fields: tuple[float, ...] = (series, file, start_s, float(value))
            columns, needed = self.samples, SAMPLE_BYTES
        else:
            *numbers, last_s = summary
            fields = (series, file, _unix_s(width), start_s, *map(float, numbers), _unix_s(last_s))
            columns, needed = self.summaries, SUMMARY_BYTES
        if series == n_before:
            needed += SERIES_BYTES + NAME_CHAR_BYTES * (len(metric) + len(tags))
        self._left_bytes -= needed
        if len(fields) != len(columns):
            raise ValueError(f"{len(row)} fields")
        for column, field in zip(columns, fields, strict=True):
            column.append(field)


def _unix_s(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < LATEST_S:
        raise ValueError(f"{text[:40]!r} is not a time in seconds")
    return seconds


def _rows(file: Path) -> Iterator[list[str]]:
    try:
        with gzip.open(file, "rt", encoding="utf-8", newline="") as text:
            rows = _bounded_rows(text)
            if next(rows, None) != [*COLUMNS]:
                raise DumpError(str(file), f"not a dump: its first line is not {','.join(COLUMNS)}")
            yield from rows
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise DumpError(str(file), f"it cannot be read: {error}") from error


def _bounded_rows(text: TextIO) -> Iterator[list[str]]:
    """Yield rows, none of which has more than :data:`MAX_ROW_CHARS` characters, in however many lines."""
    taken = 0

    def lines() -> Iterator[str]:
        nonlocal taken
        while line := text.readline(MAX_ROW_CHARS + 1):
            taken += len(line)
            if taken > MAX_ROW_CHARS:
                raise csv.Error(f"a line has more than {MAX_ROW_CHARS:,} characters")
            yield line

    for row in csv.reader(lines()):
        taken = 0
        yield row


def _numbers(kind: str) -> Any:
    return array(kind)

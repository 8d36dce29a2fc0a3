"""Dumps: samples in a file that other programs can open directly.

A dump is CSV, compressed with gzip, with a line for each sample. One line reads it:

    pandas.read_csv("node1-20260131T120000.csv.gz")                     # pandas
    SELECT * FROM 'node1-20260131T120000.csv.gz'                        -- DuckDB
    zcat node1-20260131T120000.csv.gz > node1.csv                       # a spreadsheet opens the result

Columns: ``time_s`` (Unix time), ``metric``, ``value``, ``host``, ``gpu``, and ``tags`` (all tags, as a URL's query).
"""

from __future__ import annotations

import csv
import gzip
import io
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import numpy as np

from laggard.kvstore.sample_store import SampleStore, key_of
from laggard.kvstore.timeseries import TimeSeries
from laggard.telemetry.bus import NodeAsker
from laggard.telemetry.errors import DumpError
from laggard.telemetry.events import Event, series_of_events
from laggard.telemetry.gathering import gather
from laggard.telemetry.query.times import ALL_TIME_US, SECOND_US

__all__ = ["DumpError", "dump_nodes", "read_dump", "write_dump"]

COLUMNS = ("time_s", "metric", "value", "host", "gpu", "tags")
SUFFIX = ".csv.gz"
GATHER_DEADLINE_S = 60.0
_FOR_EVER_S = 1e11


def write_dump(directory: str, name: str, now_s: float, series: Iterable[TimeSeries]) -> Path:
    """Write series, atomically, to a new file ``<name>-<time>.csv.gz`` and return its path.

    Parameters
    ----------
    directory
        Created if it does not exist; empty: the working directory.
    name
        Beginning of the file's name.
    now_s
        Unix time, for the file's name.
    series
        What to write.
    """
    folder = Path(directory or ".")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{datetime.fromtimestamp(now_s, UTC):%Y%m%dT%H%M%S}{SUFFIX}"
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{name}.") as drafts:
        draft = Path(drafts, path.name)
        with gzip.open(draft, "wt", compresslevel=3, encoding="utf-8", newline="") as file:
            file.write(",".join(COLUMNS) + "\n")
            for each in series:
                file.writelines(_lines(each))
        return draft.replace(path)


def dump_nodes(asker: NodeAsker, directory: str, now_s: float, start_us: int, events: Iterable[Event]) -> Path:
    """Write one file with the samples of all nodes, which are gathered node by node, and the job's events."""

    def gathered() -> Iterator[TimeSeries]:
        for host, keys in sorted(replies.by_host.items()):
            for metric in sorted({metric for metric, _ in keys}):
                found = gather(asker, [metric], start_us, ALL_TIME_US, hosts=[host], deadline_s=GATHER_DEADLINE_S)
                yield from found.series
        yield from series_of_events(events)

    replies = asker.ask({"kind": "keys", "metric": ""})
    return write_dump(directory, "all", now_s, gathered())


def read_dump(paths: Sequence[Path]) -> SampleStore:
    """Read dumps, of any number of nodes and times, into one store; samples that several dumps have count once.

    Parameters
    ----------
    paths
        Files, or folders of files.

    Raises
    ------
    DumpError
        If a file is not a dump; the message names file and line.
    """
    files = [file for path in paths for file in (sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path])]
    if not files:
        raise DumpError(", ".join(map(str, paths)), f"there is no dump (*{SUFFIX}) here")
    found: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
    for file in files:
        for number, row in enumerate(_rows(file), start=2):
            try:
                time_s, metric, value, _, _, tags = row
                times, values = found.setdefault((metric, tags), ([], []))
                times.append(float(time_s))
                values.append(float(value))
            except ValueError as error:
                raise DumpError(str(file), f"line {number}: {error}") from error
    store = SampleStore(_FOR_EVER_S, clock=lambda: 0.0, max_series=10**9, max_bytes=1 << 62)
    for (metric, tags), (times, values) in found.items():
        times_us, numbers = np.rint(np.array(times) * SECOND_US).astype(np.int64), np.array(values)
        order = np.lexsort((numbers, times_us))
        times_us, numbers = times_us[order], numbers[order]
        new = np.append([True], (np.diff(times_us) != 0) | (np.diff(numbers) != 0))
        store.extend(key_of(metric, dict(parse_qsl(tags))), times_us[new], numbers[new])
    return store


def _lines(series: TimeSeries) -> Iterator[str]:
    text = io.StringIO()
    tags = dict(series.tags)
    csv.writer(text, lineterminator="").writerow([series.metric])
    metric = text.getvalue()
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([tags.get("host", ""), tags.get("gpu", ""), urlencode(tags)])
    rest = text.getvalue()
    times_s = (series.times_us / SECOND_US).tolist()
    return (
        f"{time_s:.6f},{metric},{value!r},{rest}" for time_s, value in zip(times_s, series.values.tolist(), strict=True)
    )


def _rows(file: Path) -> Iterator[list[str]]:
    try:
        with gzip.open(file, "rt", encoding="utf-8", newline="") as text:
            rows = csv.reader(text)
            if next(rows, None) != list(COLUMNS):
                raise DumpError(str(file), f"not a dump: its first line is not {','.join(COLUMNS)}")
            yield from rows
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise DumpError(str(file), f"it cannot be read: {error}") from error

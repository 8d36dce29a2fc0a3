"""Dumps: samples in a file that other programs can open directly.

A dump is CSV, compressed with gzip, with a line for each sample. One line reads it:

    pandas.read_csv("node1-20260131T120000.csv.gz")                     # pandas
    SELECT * FROM 'node1-20260131T120000.csv.gz'                        -- DuckDB
    zcat node1-20260131T120000.csv.gz > node1.csv                       # a spreadsheet opens the result

Columns: ``time_s`` (Unix time), ``metric``, ``value``, ``host``, ``gpu``, and ``tags`` (all tags, as a URL's query).
Times of which the samples were dropped have a line for each summary instead: then ``time_s`` and ``interval_s`` say of
which time, ``value`` is the average, and ``count``, ``sum``, ``min``, ``max``, ``last`` and ``last_s`` (the time of the
last sample) are filled in. :mod:`laggard.telemetry.dumps.reading` reads dumps.
"""

from __future__ import annotations

import csv
import gzip
import io
import tempfile
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlencode

from laggard.kvstore.series.timeseries import TimeSeries
from laggard.telemetry.events import Event, series_of_events
from laggard.telemetry.nodes.bus import NodeAsker
from laggard.telemetry.nodes.sources import unpack_series, unpack_summaries
from laggard.telemetry.query.times import SECOND_US
from laggard.telemetry.store.history import Summarized

_SUMMARY = ("interval_s", "count", "sum", "min", "max", "last", "last_s")
COLUMNS = ("time_s", "metric", "value", "host", "gpu", "tags", *_SUMMARY)
SUFFIX = ".csv.gz"
GATHER_DEADLINE_S = 60.0

Part: TypeAlias = TimeSeries | Summarized
"""Samples or summaries of one series."""


def write_dump(directory: str, name: str, now_s: float, parts: Iterable[Part]) -> Path:
    """Write samples and summaries, atomically, to a new file ``<name>-<time>.csv.gz`` and return its path."""
    folder = Path(directory or ".")
    try:
        return _written(folder, name, now_s, parts)
    except OSError as error:
        error.filename = error.filename or str(folder)
        raise


def _written(folder: Path, name: str, now_s: float, parts: Iterable[Part]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{datetime.fromtimestamp(now_s, UTC):%Y%m%dT%H%M%S}{SUFFIX}"
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{name}.") as drafts:
        draft = Path(drafts, path.name)
        with gzip.open(draft, "wt", compresslevel=3, encoding="utf-8", newline="") as file:
            file.write(",".join(COLUMNS) + "\n")
            for each in parts:
                file.writelines(_lines(each))
        return draft.replace(path)


def parts_of_nodes(
    asker: NodeAsker,
    events: Iterable[Event],
    expected: Collection[str],
    missing: list[str],
    deadline_s: float = GATHER_DEADLINE_S,
) -> Iterator[Part]:
    """Yield all that all nodes have, node by node, and the events; note in ``missing`` who does not answer."""
    known = asker.ask({"kind": "keys", "metric": ""}, hosts=sorted({*asker.hosts(), *expected}))
    missing += known.missing
    for host, keys in sorted(known.by_host.items()):
        for metric in sorted({metric for metric, _ in keys}):
            replies = asker.ask({"kind": "everything", "metric": metric}, hosts=[host], deadline_s=deadline_s)
            for reply in replies.by_host.values():
                yield from unpack_summaries(reply["summaries"])
                yield from unpack_series(reply)
            if replies.missing:
                missing.append(host)
                break
    yield from series_of_events(events)


def _lines(part: Part) -> Iterator[str]:
    metric, tags = (part.metric, dict(part.tags)) if isinstance(part, TimeSeries) else (part.key[0], dict(part.key[1]))
    name = _csv([metric])
    about = _csv([tags.get("host", ""), tags.get("gpu", ""), urlencode(tags)])
    if isinstance(part, TimeSeries):
        times_s, values = (part.times_us / SECOND_US).tolist(), part.values.tolist()
        return (
            f"{time_s:.6f},{name},{value!r},{about},,,,,,,\n" for time_s, value in zip(times_s, values, strict=True)
        )
    rows, width = part.rows, f"{part.width_us / SECOND_US:g}"
    columns = [rows["start_us"] / SECOND_US, rows["sum"] / rows["count"]]
    columns += [rows[column] for column in ("count", "sum", "min", "max", "last")]
    columns.append(rows["last_us"] / SECOND_US)
    return (
        f"{start_s:.6f},{name},{average!r},{about},{width},{count:.0f},{total!r},{low!r},{high!r},{last!r},{last_s:.6f}\n"
        for start_s, average, count, total, low, high, last, last_s in zip(*(c.tolist() for c in columns), strict=True)
    )


def _csv(fields: list[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(fields)
    return text.getvalue()

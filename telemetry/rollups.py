"""Rollups: count, sum, extremes and last value of every series in each ten seconds.

Each node computes its own and publishes them; the primary keeps them for hours. They answer a query in buckets of ten
seconds, or a multiple of it, exactly and without asking any node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from laggard.kvstore.codec import Value, decode, encode
from laggard.kvstore.errors import KVStoreError
from laggard.kvstore.sample_store import SampleStore, SeriesKey
from laggard.kvstore.timeseries import TimeSeries
from laggard.telemetry.query.downsampling import Downsample, buckets, downsample
from laggard.telemetry.query.engine import Span, is_wanted, read_start_us
from laggard.telemetry.query.parsing import SubQuery
from laggard.telemetry.query.times import SECOND_US

__all__ = ["INTERVAL_US", "ROLLUPS", "Rollups", "roll_up"]

ROLLUPS = "telemetry-rollups"
"""Name of the channel on which nodes publish them."""
INTERVAL_US = 10 * SECOND_US
_STATISTICS = ("count", "sum", "min", "max", "last")
# Which statistic a downsampling function needs, and the function that downsamples each statistic further.
_FUNCTIONS: Mapping[str, str] = {
    "count": "count",
    **dict.fromkeys(("sum", "zimsum", "pfsum"), "sum"),
    **dict.fromkeys(("min", "mimmin"), "min"),
    **dict.fromkeys(("max", "mimmax"), "max"),
    "last": "last",
}
_DOWNSAMPLED_BY = {"count": "sum", "sum": "sum", "min": "min", "max": "max", "last": "last"}


def roll_up(store: SampleStore, start_us: int) -> bytes:
    """Return a store's rollups of one interval, as they are published."""
    end_us = start_us + INTERVAL_US - 1
    series, rows = [], []
    for each in store.read(sorted(store.metrics()), start_us, end_us):
        values = each.values[np.isfinite(each.values)]
        if len(values):
            series.append([each.metric, [part for pair in each.tags.items() for part in pair]])
            rows.append([len(values), values.sum(), values.min(), values.max(), values[-1]])
    table = np.array(rows, dtype=np.float64).reshape(-1, len(_STATISTICS))
    return encode(ROLLUPS, {"start_us": start_us, "series": series, "table": table}).joined()


class Rollups:
    """The rollups of all nodes.

    Parameters
    ----------
    window_s
        How long they are kept.
    node_window_s
        How long the nodes keep samples.
    clock
        Returns Unix time in seconds.
    """

    def __init__(self, window_s: float, node_window_s: float, clock: Callable[[], float]) -> None:
        self._stores = {
            name: SampleStore(window_s, clock=clock, max_series=200_000, max_bytes=512 << 20) for name in _STATISTICS
        }
        self._node_window_s = node_window_s
        self._clock = clock

    def take(self, message: bytes) -> None:
        """Add the rollups of one interval of one node.

        Raises
        ------
        ValueError
            If they cannot be read.
        """
        try:
            found: Value = decode(ROLLUPS, [message])
            start = np.array([found["start_us"]], dtype=np.int64)
            keys = [(metric, tuple(zip(tags[::2], tags[1::2], strict=True))) for metric, tags in found["series"]]
            for key, row in zip(keys, found["table"], strict=True):
                for name, value in zip(_STATISTICS, row, strict=True):
                    self._stores[name].extend(key, start, np.array([value]))
        except (KVStoreError, KeyError, TypeError) as error:
            raise ValueError(f"not valid rollups: {error}") from error

    def trim(self) -> None:
        """Drop rollups that are older than the window."""
        for store in self._stores.values():
            store.trim()

    def series_keys(self) -> list[SeriesKey]:
        """Return the keys of all series that have rollups."""
        return self._stores["last"].series_keys()

    def can_answer(self, spec: Downsample | None) -> bool:
        """Return whether rollups give this downsampling exactly."""
        return (
            spec is not None
            and spec.calendar is None
            and spec.interval_us > 0
            and spec.interval_us % INTERVAL_US == 0
            and (spec.function in _FUNCTIONS or spec.function == "avg")
        )

    def reach_further_than_nodes(self, start_us: int) -> bool:
        """Return whether there are rollups of a time for which the nodes have already dropped samples."""
        oldest_on_nodes_us = (self._clock() - self._node_window_s) * SECOND_US
        if start_us >= oldest_on_nodes_us:
            return False
        first = self._first_us()
        return first is not None and first < oldest_on_nodes_us

    def downsampled(self, query: SubQuery, span: Span) -> list[TimeSeries]:
        """Return the series that a query selects, downsampled as it asks."""
        assert query.downsample is not None  # noqa: S101 - for the type checker: can_answer has said yes
        function = query.downsample.function
        if function != "avg":
            return list(self._read(_FUNCTIONS[function], query, span).values())
        sums, counts = self._read("sum", query, span), self._read("count", query, span)
        return [
            TimeSeries(each.metric, each.tags, each.times_us, each.values / counts[key].values)
            for key, each in sums.items()
        ]

    def _read(self, statistic: str, query: SubQuery, span: Span) -> dict[SeriesKey, TimeSeries]:
        assert query.downsample is not None  # noqa: S101 - as above
        spec = Downsample(query.downsample.interval_us, _DOWNSAMPLED_BY[statistic])
        starts = buckets(spec, span.start_us, span.end_us)
        found = {}
        series = self._stores[statistic].read(
            query.metrics, read_start_us(query, span), span.end_us, lambda tags: is_wanted(query, tags)
        )
        for each in series:
            at, values = downsample(spec, starts, each.times_us, each.values)
            key = each.metric, tuple(each.tags.items())
            found[key] = TimeSeries(each.metric, each.tags, starts[at], values)
        return found

    def _first_us(self) -> int | None:
        return self._stores["last"].oldest_us()

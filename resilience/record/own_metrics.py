"""The program's own metrics in a job's record, and a few of the nodes: every series, or a range of very many.

The nodes merge the series of a metric that has very many, so what the controller reads, and keeps, has a bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import numpy as np

from laggard.kvstore.series.sample_store import key_of
from laggard.kvstore.series.timeseries import Floats, TimeSeries
from laggard.resilience.record.downsampler import Downsampler
from laggard.telemetry.catalogue import CATALOGUE
from laggard.telemetry.nodes.bus import NodeAsker
from laggard.telemetry.nodes.sources import MAX_TRAVELLING_SAMPLES, unpack_series
from laggard.telemetry.page.content import MEAN, N_SERIES, OF_SERIES, importance
from laggard.telemetry.store.program_metrics import COLUMNS, MAX_LINES, OF_NODES, STEP_S, merged_ranges, with_lines

MAX_METRICS = 32
LOOK_BACK_S = 60
# Programs send their samples in batches, and clocks differ.
MAX_DELAY_S = 15
_STEP_US = STEP_S * 1_000_000
_FOLDS = {"lowest": np.minimum, MEAN: np.add, "highest": np.maximum}
_RANK = "rank"


def chosen(kept: Collection[str], known: Collection[str], max_metrics: int = MAX_METRICS) -> list[str]:
    """Return the metrics that are kept from now on: those that were, and new ones as long as there is room."""
    return [*kept, *sorted({*known} - {*kept}, key=importance)][:max_metrics]


def readable_steps(n_nodes: int) -> int:
    """Return how many seconds may be asked for at once, so that the answers do not choke the state server."""
    room = MAX_TRAVELLING_SAMPLES // (max(1, n_nodes) * MAX_METRICS * len(COLUMNS) + MAX_LINES)
    return max(1, min(LOOK_BACK_S, room))


class OwnMetrics:
    """Reads the metrics from the nodes, and keeps them in at most 300 slices of time."""

    def __init__(self, asker: NodeAsker, start_us: int) -> None:
        self._asker = asker  # asks the nodes
        self._samples = Downsampler(start_us, max_series=len(_FOLDS) * MAX_METRICS + 2 * MAX_LINES)
        self._n_series: dict[str, int] = {}
        self._kept: list[str] = []
        # What was read before is final; what was read after it is read again, since samples may be late.
        self._final_us = start_us - start_us % _STEP_US
        self._newest: list[TimeSeries] = []
        self._answered_us: dict[str, int] = {}  # until when each node was read

    def silent(self, now_us: int, after_s: float = MAX_DELAY_S) -> set[str]:
        """Return the nodes that have not answered for so long that the record lacks something of them."""
        return {host for host, until_us in self._answered_us.items() if now_us - until_us > after_s * 1_000_000}

    def read(self, now_us: int) -> None:
        """Ask the nodes."""
        hosts, now_step = self._asker.hosts(), now_us // _STEP_US
        steps = min(now_step - self._final_us // _STEP_US, readable_steps(len(hosts)))
        if steps <= 0:
            return
        self._answered_us = dict.fromkeys(hosts, now_us) | self._answered_us
        start_us, end_us = (now_step - steps) * _STEP_US, now_step * _STEP_US - 1
        self.settle(start_us)
        if self._ask(hosts, start_us, end_us):  # there are metrics that the question did not name
            self._ask(hosts, start_us, end_us)
        self.settle(now_us - MAX_DELAY_S * 1_000_000)

    def settle(self, until_us: int) -> None:
        """Take what was read of the time before as final."""
        until_us -= until_us % _STEP_US
        for each in self._newest:
            settled = each.times_us < until_us
            fold = _FOLDS.get(each.tags.get(OF_SERIES, MEAN), np.add)
            middles_us = each.times_us[settled] + _STEP_US // 2
            self._samples.add(each.metric, each.tags, middles_us, each.values[settled], fold)
        after = ((each, each.times_us >= until_us) for each in self._newest)
        self._newest = [
            replace(each, times_us=each.times_us[rest], values=each.values[rest]) for each, rest in after if rest.any()
        ]
        self._final_us = max(self._final_us, until_us)

    def series(self) -> Iterator[TimeSeries]:
        """Yield what is final: every series of a metric, or of very many the lowest, the mean and the highest."""
        lines = self._with_lines()
        for each in self._samples.series():
            if OF_SERIES not in each.tags and each.metric in lines:
                yield each
            elif OF_SERIES in each.tags and each.metric not in lines and not _is_counter(each.metric):
                yield replace(each, tags={**each.tags, N_SERIES: str(self._n_series[each.metric])})

    def _with_lines(self) -> list[str]:
        """Return of which metrics every series is kept; one that is given up has more of them than there is room."""
        stored = Counter(metric for metric, tags in self._samples.series_keys() if OF_SERIES not in dict(tags))
        return with_lines({metric: max(number, stored[metric]) for metric, number in self._n_series.items()})

    def _ask(self, hosts: Collection[str], start_us: int, end_us: int) -> bool:
        """Return whether there is a metric to be kept that was not asked for."""
        span = {"start_us": start_us, "end_us": end_us}
        asked = [*self._kept, *OF_NODES]
        question = {"kind": "program", "metrics": asked, "lines": self._with_lines(), **span}
        by_host = self._asker.ask(question, hosts=hosts).by_host
        self._answered_us |= dict.fromkeys(by_host, end_us)
        replies = list(by_host.values())
        n_series: Counter[str] = Counter()
        for reply in replies:
            n_series.update(reply["n_series"])
        before = len(self._kept)
        self._kept = chosen(self._kept, n_series.keys() - {*OF_NODES})
        for metric in (*self._kept, *OF_NODES):
            self._n_series[metric] = max(self._n_series.get(metric, 0), n_series[metric])
        ranges = {metric: [each["ranges"][metric] for each in replies if metric in each["ranges"]] for metric in asked}
        merged = [each for metric, of in ranges.items() if of for each in _columns(metric, merged_ranges(of), start_us)]
        lines = [replace(each, tags=_named(each.tags)) for reply in replies for each in unpack_series(reply["lines"])]
        new = {key_of(each.metric, each.tags) for each in (*merged, *lines)}
        silent = [each for each in self._newest if key_of(each.metric, each.tags) not in new]
        self._newest = [*silent, *merged, *lines]
        return len(self._kept) > before


def _named(tags: Mapping[str, str]) -> Mapping[str, str]:
    """Return by what a line is known: a rank stays the same when it moves to another node."""
    return {name: value for name, value in tags.items() if name != "host"} if _RANK in tags else tags


def _is_counter(metric: str) -> bool:
    return metric in CATALOGUE and CATALOGUE[metric].kind == "counter"  # how fast these rise is not known of a range


def _columns(metric: str, merged: dict[str, Floats], start_us: int) -> list[TimeSeries]:
    """Return the lowest, mean and highest of each second that has a value."""
    used = np.flatnonzero(merged["count"])
    times_us = start_us + _STEP_US * used.astype(np.int64)
    mean = merged["total"][used] / merged["count"][used]
    columns = {"lowest": merged["low"][used], MEAN: mean, "highest": merged["high"][used]}
    return [TimeSeries(metric, {OF_SERIES: name}, times_us, values) for name, values in columns.items()]

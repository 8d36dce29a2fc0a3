"""The program's own metrics in a job's record: of each the lowest, mean and highest of its series.

The nodes merge their series, so what the controller reads, and keeps, does not depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from laggard.kvstore.series.timeseries import Floats, Times, TimeSeries
from laggard.resilience.record.downsampler import Downsampler
from laggard.telemetry.nodes.bus import NodeAsker
from laggard.telemetry.nodes.sources import MAX_TRAVELLING_SAMPLES
from laggard.telemetry.page.content import MEAN, N_SERIES, OF_SERIES, importance
from laggard.telemetry.store.program_metrics import COLUMNS, STEP_S, merged_ranges

MAX_METRICS = 32
LOOK_BACK_S = 60
# Programs send their samples in batches, and clocks differ.
MAX_DELAY_S = 15
_STEP_US = STEP_S * 1_000_000
_FOLDS = {"lowest": np.minimum, MEAN: np.add, "highest": np.maximum}


def chosen(kept: Collection[str], known: Collection[str], max_metrics: int = MAX_METRICS) -> list[str]:
    """Return the metrics that are kept from now on: those that were, and new ones as long as there is room."""
    return [*kept, *sorted({*known} - {*kept}, key=importance)][:max_metrics]


def readable_steps(n_nodes: int) -> int:
    """Return how many seconds may be asked for at once, so that the answers do not choke the state server."""
    room = MAX_TRAVELLING_SAMPLES // (max(1, n_nodes) * MAX_METRICS * len(COLUMNS))
    return max(1, min(LOOK_BACK_S, room))


class OwnMetrics:
    """Reads the program's own metrics from the nodes, and keeps them in at most 300 slices of time."""

    def __init__(self, asker: NodeAsker, start_us: int) -> None:
        self._asker = asker  # asks the nodes
        self._samples = Downsampler(start_us)
        self._n_series: dict[str, int] = {}
        self._kept: list[str] = []
        # What was read before is final; what was read after it is read again, since samples may be late.
        self._final_us = start_us - start_us % _STEP_US
        self._newest: dict[str, tuple[Times, dict[str, Floats]]] = {}

    def read(self, now_us: int) -> None:
        """Ask the nodes."""
        hosts, now_step = self._asker.hosts(), now_us // _STEP_US
        steps = min(now_step - self._final_us // _STEP_US, readable_steps(len(hosts)))
        if steps <= 0:
            return
        start_us, end_us = (now_step - steps) * _STEP_US, now_step * _STEP_US - 1
        self.settle(start_us)
        if self._ask(hosts, start_us, end_us):  # there are metrics that the question did not name
            self._ask(hosts, start_us, end_us)
        self.settle(now_us - MAX_DELAY_S * 1_000_000)

    def settle(self, until_us: int) -> None:
        """Take what was read of the time before as final."""
        until_us -= until_us % _STEP_US
        for metric, (times_us, columns) in self._newest.items():
            settled = times_us < until_us
            middles_us = times_us[settled] + _STEP_US // 2
            for name, values in columns.items():
                self._samples.add(metric, {OF_SERIES: name}, middles_us, values[settled], _FOLDS[name])
            rest = {name: values[~settled] for name, values in columns.items()}
            self._newest[metric] = times_us[~settled], rest
        self._final_us = max(self._final_us, until_us)

    def series(self) -> Iterator[TimeSeries]:
        """Yield what is final: one series of a metric that has one, else the lowest, the mean and the highest."""
        for each in self._samples.series():
            n_series = self._n_series[each.metric]
            if n_series > 1 or each.tags[OF_SERIES] == MEAN:
                yield replace(each, tags={**each.tags, N_SERIES: str(n_series)})

    def _ask(self, hosts: Collection[str], start_us: int, end_us: int) -> bool:
        """Return whether there is a metric to be kept that was not asked for."""
        question = {"kind": "program", "metrics": self._kept, "start_us": start_us, "end_us": end_us}
        replies = list(self._asker.ask(question, hosts=hosts).by_host.values())
        n_series: dict[str, int] = {}
        for reply in replies:
            for metric, number in reply["n_series"].items():
                n_series[metric] = n_series.get(metric, 0) + number
        before = len(self._kept)
        self._kept = chosen(self._kept, n_series)
        for metric in self._kept:
            self._n_series[metric] = max(self._n_series.get(metric, 0), n_series.get(metric, 0))
            ranges = [reply["ranges"][metric] for reply in replies if metric in reply["ranges"]]
            if ranges:
                self._newest[metric] = _columns(merged_ranges(ranges), start_us)
        return len(self._kept) > before


def _columns(merged: dict[str, Floats], start_us: int) -> tuple[Times, dict[str, Floats]]:
    """Return the starts of the seconds that have values, and the lowest, mean and highest of each."""
    used = np.flatnonzero(merged["count"])
    times_us = start_us + _STEP_US * used.astype(np.int64)
    mean = merged["total"][used] / merged["count"][used]
    return times_us, {"lowest": merged["low"][used], MEAN: mean, "highest": merged["high"][used]}

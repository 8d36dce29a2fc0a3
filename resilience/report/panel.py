"""Series of many devices, averaged over one grid of time bins: pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laggard.collectors.device import DeviceId
from laggard.kvstore.series.timeseries import Floats, TimeSeries

_SECOND_US = 1_000_000
MAX_BINS = 300
# Wider than the usual interval between two samples, so that few bins are empty.
_BIN_SAMPLES = 1.2


@dataclass(frozen=True, slots=True)
class Panel:
    """One metric of many devices."""

    metric: str
    devices: tuple[DeviceId, ...]  # host and GPU of each row
    models: tuple[str, ...]  # model of each row's device; only devices of the same model are compared
    edges_s: Floats  # edges of the time bins as Unix times, `(n_bins + 1,)`
    values: Floats  # means, `(n_devices, n_bins)`; NaN where nothing was measured

    @property
    def times_s(self) -> Floats:
        """The middles of the bins, as Unix times."""
        return (self.edges_s[:-1] + self.edges_s[1:]) / 2


def panel_of(metric: str, series: Iterable[TimeSeries], order: Sequence[DeviceId] = ()) -> Panel | None:
    """Average the series of one metric over a grid of time bins; None if there are no samples."""
    with_samples = [each for each in series if len(each.times_us)]
    if not with_samples:
        return None
    start_s = min(int(each.times_us[0]) for each in with_samples) / _SECOND_US
    end_s = max(int(each.times_us[-1]) for each in with_samples) / _SECOND_US
    edges_s = np.linspace(start_s, end_s + 1e-3, _n_bins(with_samples, end_s - start_s) + 1)
    place = {device: number for number, device in enumerate(order)}
    names = {_device(each): each.tags.get("model", "") for each in with_samples}
    devices = tuple(sorted(names, key=lambda device: (place.get(device, len(place)), device)))
    row_of = {device: row for row, device in enumerate(devices)}
    total = np.zeros((len(devices), len(edges_s) - 1))
    count = np.zeros_like(total)
    for each in with_samples:
        bins = np.searchsorted(edges_s, each.times_us / _SECOND_US, "right") - 1
        np.add.at(total[row_of[_device(each)]], bins, each.values)
        np.add.at(count[row_of[_device(each)]], bins, 1)
    with np.errstate(invalid="ignore"):
        return Panel(metric, devices, tuple(names[device] for device in devices), edges_s, total / count)


def percentile(values: Floats, percent: float) -> NDArray[np.float64]:
    """Return a percentile of each column, ignoring NaN; NaN if the column has nothing else."""
    result = np.full(values.shape[1], np.nan)
    measured = ~np.isnan(values).all(axis=0)
    if measured.any():
        result[measured] = np.nanpercentile(values[:, measured], percent, axis=0)
    return result


def _device(series: TimeSeries) -> DeviceId:
    return series.tags.get("host", ""), series.tags.get("gpu", "")


def _n_bins(series: Sequence[TimeSeries], span_s: float) -> int:
    steps = [float(np.median(np.diff(each.times_us))) / _SECOND_US for each in series if len(each.times_us) > 2]
    min_width_s = _BIN_SAMPLES * float(np.median(steps)) if steps else span_s
    return max(1, min(MAX_BINS, int(span_s / min_width_s))) if min_width_s > 0 else 1

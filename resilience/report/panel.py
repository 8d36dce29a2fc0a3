"""Series of many devices on one grid of time: pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors.part import PART
from kvstore.timeseries import Floats, TimeSeries

__all__ = ["Device", "Panel", "held", "panel_of", "ratio_to_peers"]

Device = tuple[str, str]
"""Host and GPU."""
_SECOND_US = 1_000_000
MAX_PIECES = 300
# A piece longer than the usual time between two samples, so that seldom one is empty.
_PIECE_SAMPLES = 1.2


@dataclass(frozen=True, slots=True)
class Panel:
    """One metric of many devices.

    Attributes
    ----------
    metric
        Its name.
    devices
        Host and GPU of each row.
    models
        Model of each row's device; only devices of one model are compared.
    edges_s
        Unix times, ``(n_pieces + 1,)``: where the pieces of time begin and end.
    values
        Means, ``(n_devices, n_pieces)``; NaN where nothing was measured.
    """

    metric: str
    devices: tuple[Device, ...]
    models: tuple[str, ...]
    edges_s: Floats
    values: Floats

    @property
    def in_seconds(self) -> bool:
        """Whether it is a time, to judge by its name: then a device that reads more is slower."""
        return self.metric.partition(PART)[0].endswith("time")

    @property
    def times_s(self) -> Floats:
        """The pieces' middles."""
        return (self.edges_s[:-1] + self.edges_s[1:]) / 2

    def rows(self, devices: Collection[Device]) -> list[int]:
        """Return the rows of some devices."""
        return [row for row, device in enumerate(self.devices) if device in devices]


def panel_of(metric: str, series: Iterable[TimeSeries], order: Sequence[Device] = ()) -> Panel | None:
    """Put the series of one metric on a grid; None where there are no samples.

    Parameters
    ----------
    metric
        Name of the metric.
    series
        With the tags ``host`` and ``gpu``; what a device has in several is put together.
    order
        Of the devices; those that are not in it come last.
    """
    found = [each for each in series if len(each.times_us)]
    if not found:
        return None
    start_s = min(int(each.times_us[0]) for each in found) / _SECOND_US
    end_s = max(int(each.times_us[-1]) for each in found) / _SECOND_US
    edges_s = np.linspace(start_s, end_s + 1e-3, _n_pieces(found, end_s - start_s) + 1)
    place = {device: number for number, device in enumerate(order)}
    names = {_device(each): each.tags.get("model", "") for each in found}
    devices = tuple(sorted(names, key=lambda device: (place.get(device, len(place)), device)))
    row_of = {device: row for row, device in enumerate(devices)}
    total = np.zeros((len(devices), len(edges_s) - 1))
    count = np.zeros_like(total)
    for each in found:
        piece = np.searchsorted(edges_s, each.times_us / _SECOND_US, "right") - 1
        np.add.at(total[row_of[_device(each)]], piece, each.values)
        np.add.at(count[row_of[_device(each)]], piece, 1)
    with np.errstate(invalid="ignore"):
        return Panel(metric, devices, tuple(names[device] for device in devices), edges_s, total / count)


def ratio_to_peers(panel: Panel, apart: Collection[Device] = ()) -> Floats:
    """Return each value over the median of its model's other devices at that time, ``(n_devices, n_pieces)``.

    Parameters
    ----------
    panel
        What was measured.
    apart
        Devices that are nobody's peers, for instance those that were found slow.
    """
    ratio = np.full_like(panel.values, np.nan)
    models = np.array(panel.models)
    alone = np.zeros(len(panel.devices), np.bool_)
    alone[panel.rows(apart)] = True
    for model in dict.fromkeys(panel.models):
        reference = median(panel.values[(models == model) & ~alone])
        ratio[models == model] = panel.values[models == model] / reference
    return ratio


def held(values: Floats) -> Floats:
    """Return the values with each hole filled by what was read before it; NaN before the first reading."""
    at = np.where(np.isnan(values), 0, np.arange(values.shape[1]))
    return np.take_along_axis(values, np.maximum.accumulate(at, axis=1), axis=1)


def median(values: Floats) -> Floats:
    """Return the median of each column, without NaN; NaN where there is nothing else."""
    return percentile(values, 50.0)


def percentile(values: Floats, percent: float) -> NDArray[np.float64]:
    """Return a percentile of each column, without NaN; NaN where there is nothing else."""
    result = np.full(values.shape[1], np.nan)
    there = ~np.isnan(values).all(axis=0)
    if there.any():
        result[there] = np.nanpercentile(values[:, there], percent, axis=0)
    return result


def _device(series: TimeSeries) -> Device:
    return series.tags.get("host", ""), series.tags.get("gpu", "")


def _n_pieces(series: Sequence[TimeSeries], span_s: float) -> int:
    steps = [float(np.median(np.diff(each.times_us))) / _SECOND_US for each in series if len(each.times_us) > 2]
    shortest_s = _PIECE_SAMPLES * float(np.median(steps)) if steps else span_s
    return max(1, min(MAX_PIECES, int(span_s / shortest_s))) if shortest_s > 0 else 1

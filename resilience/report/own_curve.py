"""One of the program's own metrics over time, as the page draws it: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from laggard.kvstore.series.timeseries import Floats, TimeSeries
from laggard.resilience.report.panel import panel_of, percentile
from laggard.telemetry.page.content import MEAN, OF_SERIES, n_series_of


@dataclass(frozen=True, slots=True)
class OwnCurve:
    """The lowest, mean and highest value of a metric's series at each time."""

    metric: str
    n_series: int  # how many series it has
    times_s: Floats  # Unix times, `(n,)`
    low: Floats  # values, `(n,)`; NaN where there is none
    mean: Floats
    high: Floats


def own_curve(metric: str, series: Sequence[TimeSeries]) -> OwnCurve | None:
    """Return the curve of a metric, of a job's record or of a dump; None if there are no samples."""
    recorded = {each.tags[OF_SERIES]: each for each in series if OF_SERIES in each.tags and len(each.times_us)}
    if MEAN in recorded:
        return _of_record(metric, recorded[MEAN], recorded)
    # Every series has a row of its own.
    panel = panel_of(metric, [replace(each, tags={"host": str(place)}) for place, each in enumerate(series)])
    if panel is None:
        return None
    known = ~np.isnan(panel.values)
    with np.errstate(invalid="ignore"):
        mean = np.where(known, panel.values, 0.0).sum(axis=0) / known.sum(axis=0)
    low, high = (percentile(panel.values, percent) for percent in (0, 100))
    return OwnCurve(metric, len(panel.devices), panel.times_s, low, mean, high)


def _of_record(metric: str, mean: TimeSeries, recorded: dict[str, TimeSeries]) -> OwnCurve:
    def values(name: str) -> Floats:
        found = recorded.get(name, mean)
        return np.interp(mean.times_us, found.times_us, found.values)  # their times are the same in an intact record

    return OwnCurve(
        metric, n_series_of(mean.tags), mean.times_us / 1e6, values("lowest"), mean.values, values("highest")
    )

"""One time series as two arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Floats", "TimeSeries", "Times", "tidy"]

Times = NDArray[np.int64]
"""Unix times in microseconds."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TimeSeries:
    """The samples of one metric with one set of tags.

    Attributes
    ----------
    metric
        Name of the metric.
    tags
        For instance ``{"host": "node1", "gpu": "0"}``.
    times_us, values
        ``(n_samples,)`` each: Unix times in microseconds, in increasing order, and values.
    """

    metric: str
    tags: Mapping[str, str]
    times_us: Times
    values: Floats


def tidy(times_us: Times, values: Floats) -> tuple[Times, Floats]:
    """Put samples into the order of time, without those that are not finite; of equal times, in the order given."""
    finite = np.isfinite(values)
    if not finite.all():
        times_us, values = times_us[finite], values[finite]
    if (times_us[1:] < times_us[:-1]).any():
        order = np.argsort(times_us, kind="stable")
        times_us, values = times_us[order], values[order]
    return times_us, values

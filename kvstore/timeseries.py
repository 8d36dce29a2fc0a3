"""One time series as two arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Floats", "Piece", "TimeSeries", "Times", "assemble", "distinct_times", "is_tidy", "tidy", "within"]

Times = NDArray[np.int64]
"""Unix times in microseconds."""
Floats = NDArray[np.float64]
Piece = tuple[bytes, bytes]
"""Some times and values of one series, as the memory of arrays."""


# Not frozen, which takes four times as long to make: a query makes hundreds.
@dataclass(slots=True)
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


def within(times_us: Times, start_us: int, end_us: int) -> slice:
    """Return where, in increasing times, a range lies; both of its ends are included."""
    return slice(int(times_us.searchsorted(start_us, "left")), int(times_us.searchsorted(end_us, "right")))


def is_tidy(times_us: Times, values: Floats) -> bool:
    """Whether times do not fall, and all values, of one series or of several as rows, are finite."""
    return not (times_us[1:] < times_us[:-1]).any() and bool(np.isfinite(values).all())


def tidy(times_us: Times, values: Floats) -> tuple[Times, Floats]:
    """Put samples into the order of time, without those that are not finite; of equal times, in the order given."""
    finite = np.isfinite(values)
    if not finite.all():
        times_us, values = times_us[finite], values[finite]
    if (times_us[1:] < times_us[:-1]).any():
        order = np.argsort(times_us, kind="stable")
        times_us, values = times_us[order], values[order]
    return times_us, values


def assemble(pieces: Sequence[Sequence[Piece]], start_us: int, end_us: int) -> list[tuple[Times, Floats]]:
    """Make arrays of many series' pieces: tidy, and cut to a range of time, both ends included.

    Series with the same times, as what is written together has them, are made in one go and share the array of times.
    """
    together: dict[tuple[bytes, ...], list[int]] = {}
    for place, series in enumerate(pieces):
        together.setdefault(tuple([times for times, _ in series]), []).append(place)
    found: dict[int, tuple[Times, Floats]] = {}
    for times, places in together.items():
        times_us = np.frombuffer(b"".join(times), dtype=np.int64)
        memory = b"".join([values for place in places for _, values in pieces[place]])
        rows = np.frombuffer(memory, dtype=np.float64).reshape(len(places), len(times_us))
        found |= zip(places, _cut(times_us, rows, start_us, end_us), strict=True)
    return [found[place] for place in range(len(pieces))]


def _cut(times_us: Times, rows: Floats, start_us: int, end_us: int) -> list[tuple[Times, Floats]]:
    if is_tidy(times_us, rows):
        kept = within(times_us, start_us, end_us)
        cut_us = times_us[kept]
        return [(cut_us, row) for row in rows[:, kept]]
    tidied = [tidy(times_us, row) for row in rows]
    return [(times[kept := within(times, start_us, end_us)], values[kept]) for times, values in tidied]


def distinct_times(series: Sequence[TimeSeries]) -> tuple[list[int], list[Times]]:
    """Find the series with the same times: return each one's place among the different times, and these."""
    arrays = {id(each.times_us): each.times_us for each in series}
    raw = {key: times_us.tobytes() for key, times_us in arrays.items()}
    different = {raw[key]: times_us for key, times_us in arrays.items()}
    order = {each: place for place, each in enumerate(different)}
    places = {key: order[each] for key, each in raw.items()}
    return [places[id(each.times_us)] for each in series], list(different.values())

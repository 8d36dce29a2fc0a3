"""Rates: the change per second between neighbouring points, also of counters that wrap or restart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laggard.kvstore.series.timeseries import Floats, Times
from laggard.telemetry.query.times import SECOND_US

MAX_COUNTER = float(2**63 - 1)


@dataclass(frozen=True, slots=True)
class Rate:
    """How to compute the rate."""

    counter: bool = False  # the values only rise; if they fall, the counter has wrapped or restarted
    counter_max: float = MAX_COUNTER  # the value at which it wraps
    reset_value: float = 0.0  # a rate above this after a fall is taken for a restart, and is 0. 0: off.
    drop_resets: bool = False  # leave out points at which the values fall


def rate(spec: Rate, times_us: Times, values: Floats) -> tuple[Times, Floats]:
    """Return the rates, with the time of the later point: one fewer than there were points."""
    # The change of a falling counter is `counter_max - v1 + v2` (OpenTSDB's user guide, queries, "Rate").
    change = np.diff(values)
    elapsed_s = np.diff(times_us) / SECOND_US
    kept = elapsed_s > 0
    fell = spec.counter & (change < 0)
    if spec.drop_resets:
        kept &= ~fell
    change = np.where(fell, change + spec.counter_max, change)
    rates = change / np.where(elapsed_s > 0, elapsed_s, 1.0)
    if spec.reset_value > 0:
        rates = np.where(fell & (rates > spec.reset_value), 0.0, rates)
    return times_us[1:][kept], rates[kept]

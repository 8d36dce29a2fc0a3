"""The limits of the sample store."""

from __future__ import annotations

import numpy as np

from laggard.kvstore.series.sample_store import SampleStore, key_of
from laggard.kvstore.series.timeseries import encode_block

SECOND_US = 1_000_000


def fill(store: SampleStore, name: str, first_s: int, count: int) -> None:
    times = (first_s + np.arange(count)) * SECOND_US
    store.extend(key_of(name, {"host": "a"}), times, np.random.default_rng(1).standard_normal(count))


def test_samples_older_than_the_window_are_dropped() -> None:
    store = SampleStore(window_s=300, clock=lambda: 2000.0)
    fill(store, "m", 0, 2000)

    store.trim()

    (series,) = store.read(["m"], 0, 2000 * SECOND_US)
    assert series.times_us[0] <= 1700 * SECOND_US
    assert store.size().samples < 300 + 4096
    assert series.times_us[-1] == 1999 * SECOND_US


def test_a_series_without_samples_in_the_window_is_forgotten() -> None:
    store = SampleStore(window_s=300, clock=lambda: 5000.0)
    fill(store, "old", 0, 1000)
    fill(store, "new", 4990, 5)

    store.trim()

    assert store.metrics() == {"new"}
    assert (store.size().series, store.size().samples) == (1, 5)


def test_a_store_beyond_its_limit_drops_the_oldest_samples_and_counts_them() -> None:
    store = SampleStore(window_s=1e6, clock=lambda: 50_000.0, max_bytes=100_000)
    for begin in range(0, 40_000, 200):
        fill(store, "m", begin, 200)

    store.trim()

    size = store.size()
    assert size.nbytes <= 100_000
    assert size.dropped + size.samples == 40_000
    (series,) = store.read(["m"], 0, 50_000 * SECOND_US)
    assert series.times_us[-1] == 39_999 * SECOND_US


def test_samples_of_too_many_series_are_dropped_and_counted() -> None:
    store = SampleStore(window_s=300, clock=lambda: 0.0, max_series=2)

    for name in ("a", "b", "c", "a"):
        store.add(name, {}, 0, 1.0)

    assert (store.size().series, store.size().samples, store.size().dropped) == (2, 3, 1)


def test_the_newest_sample_of_each_series_is_known_without_reading() -> None:
    store = SampleStore(window_s=300, clock=lambda: 0.0)
    fill(store, "m", 0, 500)

    (newest,) = store.newest()

    assert (newest.metric, newest.tags, newest.time_us) == ("m", {"host": "a"}, 499 * SECOND_US)


def test_a_steady_rate_of_a_sensor_with_three_decimals_takes_less_than_three_bytes_a_sample() -> None:
    times = np.arange(128, dtype=np.int64) * 500_000
    watts = np.round(np.random.default_rng(1).normal(300, 20, 128), 3)

    assert len(encode_block(times, watts)) / 128 < 3

"""The limits of the sample store."""

from __future__ import annotations

import numpy as np
import pytest

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

    assert [metric for metric, _ in store.series_keys()] == ["new"]
    assert (store.size().series, store.size().samples, store.size().nbytes) == (1, 5, 700 + 5 * 16)


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


def add(store: SampleStore, name: str, *at_s: float, value: float = 1.0) -> None:
    for each in at_s:
        store.add(name, {}, round(each * SECOND_US), value)


@pytest.mark.parametrize(
    ("step_s", "count", "is_packed"),
    [
        (1.0, 127, False),
        (1.0, 128, True),
        (0.01, 200, False),  # 1.99 s
        (0.01, 201, True),
        (0.0001, 4095, False),
        (0.0001, 4096, True),
    ],
)
def test_samples_are_packed_by_128_and_those_of_a_quick_series_by_two_seconds_or_4096(
    step_s: float, count: int, *, is_packed: bool
) -> None:
    for begin_s, direction in ((0, 1), (1e9, 1), (1e9, -1)):
        store = SampleStore(window_s=300, clock=lambda: 0.0)
        for number in range(count):
            assert store.size().nbytes == 700 * (number > 0) + 16 * number
            store.add("m", {}, round((begin_s + direction * number * step_s) * SECOND_US), 1.0)
        assert (store.size().nbytes < 700 + 16 * count) == is_packed
        assert store.size().samples == count


@pytest.mark.parametrize(
    ("start_s", "end_s", "found", "about"),
    [
        (0, 127, 128, 128),
        (127, 127, 1, 128),
        (127.5, 127.9, 0, 0),
        (128, 128, 1, 128),
        (-5, -0.1, 0, 0),
        (-5, 0, 1, 128),
        (127, 128, 2, 256),
        (256, 256, 1, 0),
        (255.5, 300, 4, 0),
    ],
)
def test_a_range_includes_both_of_its_ends_and_is_counted_by_whole_blocks(
    start_s: float, end_s: float, found: int, about: int
) -> None:
    store = SampleStore(window_s=300, clock=lambda: 0.0)
    add(store, "m", *range(260))  # two blocks, and four samples that are not packed
    start_us, end_us = round(start_s * SECOND_US), round(end_s * SECOND_US)
    assert sum(len(each.values) for each in store.read(["m"], start_us, end_us)) == found
    assert store.count(["m", "x"], start_us, end_us, lambda _: True) == about + 4
    assert store.count(["m"], start_us, end_us, lambda _: False) == 0


def test_what_is_dropped_is_what_is_older_than_the_window_and_the_store_says_from_when_on_it_has_all() -> None:
    clock_s = [260.0]
    store = SampleStore(window_s=100, clock=lambda: clock_s[0])
    add(store, "m", *range(260))
    assert store.complete_from_us == 0
    clock_s[0] = 227.0
    store.trim()
    assert (store.size().samples, store.complete_from_us) == (260, 0)  # the first block ends at 127 s
    clock_s[0] = 228.0
    store.trim()
    assert (store.size().samples, store.complete_from_us) == (132, 127 * SECOND_US + 1)
    clock_s[0] = 358.5
    store.trim()
    assert (store.size().samples, store.complete_from_us) == (1, round(258.5 * SECOND_US))
    assert [each.times_us.tolist() for each in store.read(["m"], 0, 10**12)] == [[259 * SECOND_US]]
    assert store.size().dropped == 0  # for want of room


@pytest.mark.parametrize(("ahead_s", "lacks_s"), [(3599, 3599), (3601, 3600)])
def test_a_sample_of_the_far_future_does_not_hide_what_comes_until_then(ahead_s: float, lacks_s: float) -> None:
    clock_s = [1000.0]
    store = SampleStore(window_s=100, clock=lambda: clock_s[0], max_bytes=0)
    add(store, "m", *(1000.0 + ahead_s - 127 + at for at in range(128)))
    store.trim()  # there is no room for it
    assert store.size().dropped == 128
    assert store.complete_from_us == round((1000.0 + lacks_s) * SECOND_US) + (lacks_s == ahead_s)


def test_a_store_that_is_too_large_shrinks_to_nine_tenths_of_its_room() -> None:
    whole = SampleStore(window_s=1e6, clock=lambda: 0.0)
    for begin in range(0, 12_800, 128):
        fill(whole, "m", begin, 128)
    nbytes = whole.size().nbytes
    for limit, dropped in ((nbytes, 0), (nbytes - 1, 11 * 128)):
        store = SampleStore(window_s=1e6, clock=lambda: 0.0, max_bytes=limit)
        for begin in range(0, 12_800, 128):
            fill(store, "m", begin, 128)
        store.trim()
        assert store.size().dropped == pytest.approx(dropped, abs=128)
        assert store.size().nbytes <= limit


def test_a_store_that_is_not_trimmed_for_long_stays_within_its_limit_too() -> None:
    store = SampleStore(window_s=1e6, clock=lambda: 0.0, max_bytes=10_000)
    for begin in range(0, 128_000, 128):
        fill(store, "m", begin, 128)
    assert store.size().nbytes <= 11_000
    assert store.size().samples + store.size().dropped == 128_000


def test_the_newest_sample_is_the_latest_and_of_two_at_one_time_the_one_that_came_later() -> None:
    store = SampleStore(window_s=300, clock=lambda: 0.0)
    for at_s, value in ((0, 1.0), (5, 2.0), (3, 3.0), (5, 4.0)):
        add(store, "m", at_s, value=value)
    assert [(each.time_us, each.value) for each in store.newest()] == [(5 * SECOND_US, 4.0)]


def test_a_sample_of_the_beginning_of_time_is_one_too() -> None:
    store = SampleStore(window_s=300, clock=lambda: 0.0)
    add(store, "m", 0, value=5.0)
    assert [(each.time_us, each.value) for each in store.newest()] == [(0, 5.0)]
    assert store.oldest_us() == 0


@pytest.mark.parametrize(
    ("older_s", "now_s", "left", "complete_from_s"),
    [
        ((), 357.9, 2, 0),
        ((), 358, 2, 0),
        ((), 358.1, 1, 258.1),
        ((250,), 357.9, 2, 257.9),
        ((250,), 358, 2, 258),
        ((250, 257.9), 358.1, 1, 258.1),
    ],
)
def test_a_sample_as_old_as_the_window_is_kept(
    older_s: tuple[float, ...], now_s: float, left: int, complete_from_s: float
) -> None:
    store = SampleStore(window_s=100, clock=lambda: now_s)
    add(store, "m", *older_s, 258, 300)
    store.trim()
    assert (store.size().samples, store.complete_from_us) == (left, round(complete_from_s * SECOND_US))


def test_many_samples_at_once_are_packed_in_blocks_that_are_dropped_one_by_one() -> None:
    clock_s = [0.0]
    store = SampleStore(window_s=100, clock=lambda: clock_s[0])
    fill(store, "m", 0, 10_000)
    everything = list(store.read(["m"], 0, 10**12))
    assert [len(each.values) for each in everything] == [10_000]
    for now_s, left in ((4195, 10_000), (4196, 10_000 - 4096), (8291, 10_000 - 4096), (8292, 10_000 - 8192)):
        clock_s[0] = now_s
        store.trim()
        assert store.size().samples == left
        (series,) = store.read(["m"], 0, 10**12)
        assert series.values.tolist() == everything[0].values[-left:].tolist()
    clock_s[0] = 20_000
    store.trim()
    assert (store.size().samples, store.size().nbytes, store.series_keys()) == (0, 0, [])


def test_the_oldest_blocks_of_all_series_go_first_until_a_tenth_of_the_room_is_free() -> None:
    def filled(max_bytes: int) -> SampleStore:
        store = SampleStore(window_s=1e9, clock=lambda: 0.0, max_bytes=max_bytes)
        for turn in range(10):
            for place, name in ((2, "c"), (0, "a"), (1, "b")):
                fill(store, name, 128 * (3 * turn + place), 128)
        return store

    store = filled(filled(1 << 30).size().nbytes - 1)
    store.trim()  # of 30 blocks, and a little for the series
    begins = {each.metric: each.times_us[0] // (128 * SECOND_US) for each in store.read("abc", 0, 10**12)}
    assert begins == {"a": 6, "b": 4, "c": 5}
    assert (store.size().dropped, store.complete_from_us) == (4 * 128, (4 * 128 - 1) * SECOND_US + 1)


@pytest.mark.parametrize(("less", "dropped"), [(0, 128), (1, 256)])
def test_no_block_is_dropped_beyond_what_makes_room(less: int, dropped: int) -> None:
    def filled(first_block: int, max_bytes: int = 1 << 30) -> SampleStore:
        store = SampleStore(window_s=1e9, clock=lambda: 0.0, max_bytes=max_bytes)
        for block in range(first_block, 4):
            fill(store, "m", 128 * block, 128)
        return store

    wanted_bytes = filled(first_block=1).size().nbytes - less
    store = filled(0, next(room for room in range(wanted_bytes, 2 * wanted_bytes) if round(room * 0.9) == wanted_bytes))
    store.trim()
    assert store.size().dropped == dropped


def test_the_oldest_sample_is_about_the_first_one_whether_it_is_packed_or_not() -> None:
    store = SampleStore(window_s=300, clock=lambda: 0.0)
    assert store.oldest_us() is None
    add(store, "open", 50, 60)
    assert store.oldest_us() == 50 * SECOND_US
    add(store, "packed", *range(40, 40 + 200))
    assert store.oldest_us() == 40 * SECOND_US
    add(store, "open too", 30)
    assert store.oldest_us() == 30 * SECOND_US


def test_what_is_added_is_observed_but_for_what_is_refused() -> None:
    seen: list[tuple[str, int]] = []
    store = SampleStore(
        window_s=300,
        clock=lambda: 0.0,
        max_series=1,
        observe=lambda key, times, _: seen.append((key[0], len(times) // 8)),
    )
    fill(store, "a", 0, 3)
    fill(store, "b", 0, 5)
    assert (seen, store.size().dropped) == ([("a", 3)], 5)
    fill(store, "a", 3, 0)
    assert store.size().samples == 3

"""The statistics of one round, groups, and one cross-section."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate, stats

from laggard.collectors.device import DeviceId
from laggard.detectors import SlowGPUAnalysis
from laggard.detectors.statistics.devices import Grouping, codes_of, present_places
from laggard.detectors.statistics.readings import log_fastest, repeat_noise, repeats_of
from laggard.detectors.statistics.thresholds import checked_slowdown
from laggard.detectors.verdict import Severity

NAN, INF = math.nan, math.inf


def row(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def grouping(*codes: int) -> Grouping:
    return Grouping(np.array(codes, np.int32))


def test_readings_that_are_not_positive_and_finite_are_as_good_as_none() -> None:
    repeats = repeats_of(np.array([[1.0, 2.0], [0.0, 3.0], [-1.0, INF], [NAN, 5.0]]))

    assert repeats.tolist() == [[1, INF, INF, INF], [2, 3, INF, 5]]
    np.testing.assert_allclose(log_fastest(repeats), row(0, math.log(3), NAN, math.log(5)), rtol=1e-6)


def test_readings_that_are_the_time_of_nothing_are_as_good_as_none() -> None:
    repeats = repeats_of(np.array([[1e-20, 2.0], [1e20, 3.0]]))
    assert repeats.tolist() == [[INF, INF], [2, 3]]


def expected_greatest(count: int) -> float:
    """Return the expected greatest of so many standard normal values, by integration."""
    density = stats.norm.pdf
    return float(integrate.quad(lambda x: x * count * density(x) * stats.norm.cdf(x) ** (count - 1), -9, 9)[0])


@pytest.mark.parametrize("count", [*range(2, 9), 12])
def test_noise_is_read_from_the_distance_of_the_middle_repeat_to_the_fastest(count: int) -> None:
    middle = 1.05 if count == 2 else 1.1  # of two, half-way between them
    repeats = np.array([1.0, *[1.1] * (count - 1)], np.float32)[::-1, None]

    noise = repeat_noise(repeats)

    assert noise[0] == pytest.approx(0.75 * math.log(middle) / expected_greatest(min(count, 8)), rel=2e-3)


def test_noise_of_an_even_number_of_repeats_is_that_of_the_two_in_the_middle() -> None:
    repeats = np.array([1.0, 1.2, 1.1, 9.0], np.float32)[:, None]

    assert repeat_noise(repeats)[0] == pytest.approx(0.75 * math.log(1.15) / 1.0294, rel=2e-3)


def test_repeats_that_are_not_good_do_not_count_in_the_noise_and_one_good_repeat_has_none() -> None:
    repeats = np.array([[1.0, 1.0, 1.0], [INF, 1.1, INF], [1.1, 1.1, INF]], np.float32)

    pair, three = 0.75 * math.log(1.05) / 0.5642, 0.75 * math.log(1.1) / 0.8463
    np.testing.assert_allclose(repeat_noise(repeats), row(pair, three, NAN), rtol=2e-3)


@pytest.mark.parametrize(
    ("values", "center", "spread"),
    [
        (range(11), 5, 4 / stats.norm.ppf(0.9)),  # 10 % of the way: 1; 20 %: 2, which says more
        ([0, 0, 4, 4.1, 4.1, 5, 9, 9, 9, 9, 9], 5, 1 / stats.norm.ppf(0.8)),
        ([1, 2, 3, 4], 2, 1 / stats.norm.ppf(0.9)),  # of two in the middle the faster
        ([7], 7, 0),
        ([NAN, 1, 2, 3, NAN], 2, 1 / stats.norm.ppf(0.9)),
        ([NAN], NAN, NAN),
    ],
)
def test_the_center_is_the_low_median_and_the_spread_that_of_the_fast_half(
    values: list[float], center: float, spread: float
) -> None:
    shuffled = np.random.default_rng(0).permutation(np.array(values, np.float32))
    found = grouping(*[0] * len(shuffled)).center_and_spread(shuffled)

    np.testing.assert_allclose(np.array(found)[:, 0], [center, spread], rtol=1e-4)


def test_medians_and_counts_are_by_group() -> None:
    found = grouping(2, 0, 0, 1, 0, 0, 1)
    values = row(NAN, 4, 1, NAN, 3, 2, 5)

    np.testing.assert_array_equal(found.high_median(values), row(3, 5, NAN))
    np.testing.assert_array_equal(found.low_median(values), row(2, 5, NAN))
    assert found.count(values > 1).tolist() == [3, 1, 0]


@pytest.mark.parametrize("ratio", [1.0, 0.5, INF, NAN])
def test_a_ratio_that_is_not_a_slowdown_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="min_slowdown"):
        checked_slowdown(ratio)


def test_labels_are_numbered_as_they_appear() -> None:
    codes = codes_of(["b", "a", "b", "c", "c"])
    found = Grouping(codes)

    assert codes.tolist() == [0, 1, 0, 2, 2]
    assert (found.n_groups, found.sizes.tolist(), [found.size_at(place) for place in range(5)]) == (
        3,
        [2, 1, 2],
        [2, 1, 2, 2, 2],
    )
    assert found.per_device(row(7, 8, 9)).tolist() == [7, 8, 7, 9, 9]


@pytest.mark.parametrize(
    ("now_at", "places"),
    [
        ({}, [("a", "0"), ("a", "1")]),
        ({("a", "0"): "one"}, [("a", "0"), ("a", "1")]),
        ({("b", "0"): "one"}, [("b", "0"), ("a", "1")]),
        ({("a", "0"): "other"}, [None, ("a", "1")]),
        ({("a", "1"): "other"}, [("a", "0"), ("a", "1")]),  # which may be what had no name
        ({("a", "1"): "one"}, [("a", "1"), None]),
    ],
)
def test_a_saved_device_is_where_its_name_is_else_where_it_was(
    now_at: dict[DeviceId, str], places: list[DeviceId | None]
) -> None:
    assert present_places([("a", "0"), ("a", "1")], ["one", ""], now_at) == places


def checked(ratios: list[float], repeats: tuple[float, ...] = (1.0,)) -> dict[int, tuple[str, float]]:
    devices: list[DeviceId] = [(f"n{number}", "0") for number in range(len(ratios))]
    labels = dict.fromkeys(devices, "one model")
    readings = {device: [ratio * each for each in repeats] for device, ratio in zip(devices, ratios, strict=True)}
    found = SlowGPUAnalysis(groups=labels).check(readings)
    return {int(verdict.host[1:]): (verdict.action, round(verdict.slowdown, 4)) for verdict in found}


@pytest.mark.parametrize(
    ("ratio", "repeats", "expected"),
    [
        (1.0575, (1.0,), {}),  # log(1.05) times the root of 1 + pi / 8 is 5.93 %
        (1.0636, (1.0,), {4: ("report", 1.0636)}),
        (1.0830, (1.0,), {4: ("report", 1.0830)}),  # log(1.07) + 0.2 / 16 is 8.35 %
        (1.0838, (1.0,), {4: ("restart", 1.0838)}),
        (1.1130, (1.0, 1.02), {4: ("report", 1.1130)}),  # and 2.1 times the repeats' noise: 11.4 %
        (1.1150, (1.0, 1.02), {4: ("restart", 1.1150)}),
    ],
)
def test_a_cross_section_judges_by_the_effect_the_peers_and_the_repeats(
    ratio: float, repeats: tuple[float, ...], expected: dict[int, tuple[str, float]]
) -> None:
    assert checked([1.0] * 4 + [ratio], repeats) == expected


def test_a_device_that_is_slow_in_all_samples_is_as_slow_as_in_its_fastest() -> None:
    devices: list[DeviceId] = [(f"n{number}", "0") for number in range(5)]
    readings = dict.fromkeys(devices[:4], (1.0, 1.0, 1.0)) | {devices[4]: (1.3, 1.6, 1.6)}
    [verdict] = SlowGPUAnalysis(groups=dict.fromkeys(devices, "one model")).check(readings)
    assert verdict.action == "restart"
    assert verdict.slowdown == pytest.approx(1.3)


def test_a_cross_section_accuses_fewer_than_45_percent() -> None:
    assert set(checked([1.0] * 12 + [1.5] * 8)) == {*range(12, 20)}
    assert checked([1.0] * 11 + [1.5] * 9) == {}
    assert checked([1.0, 2.1]) == {1: ("restart", 2.1)}


def test_a_slow_quarter_does_not_hide_one_that_is_less_slow() -> None:
    spread = [0.98, 0.99, 0.99, 1.0, 1.0, 1.0, 1.01, 1.01, 1.02, 1.0, 1.0, 1.0]

    assert set(checked([*spread, 1.12, 1.6, 1.6, 1.6])) == {12, 13, 14, 15}


@pytest.mark.parametrize(
    ("of_device", "of_node", "kept"),
    [
        (1.0, 1.06, {("0", "suspect"), ("1", "suspect"), ("2", "suspect")}),
        (1.04, 1.06, {("0", "slow"), ("1", "suspect"), ("2", "suspect")}),
        (1.0, 1.12, {(None, "slow")}),
        (1.3, 1.12, {(None, "slow")}),
    ],
)
def test_a_verdict_on_a_node_takes_the_place_of_those_on_its_devices_that_say_less(
    of_device: float, of_node: float, kept: set[tuple[str | None, Severity]]
) -> None:
    readings = {(f"n{node}", str(gpu)): [1.0 + 0.001 * gpu] for node in range(6) for gpu in range(4)}
    readings |= {("n0", str(gpu)): [of_node + 0.001 * gpu] for gpu in range(4)}
    readings |= {("n0", "0"): [of_node * of_device], ("n0", "3"): [1.0]}
    found = SlowGPUAnalysis().check(readings)
    assert {(each.gpu, each.severity) for each in found} == kept
    assert {each.host for each in found} == {"n0"}

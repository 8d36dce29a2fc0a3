"""The detector's arithmetic, piece by piece: numbers worked out by hand, by SciPy, or by an obvious slow program."""

from __future__ import annotations

import math
from collections import defaultdict
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate, special, stats

from laggard.collectors.device import DeviceId
from laggard.detectors import SlowGPUAnalysis
from laggard.detectors.evidence import Slow
from laggard.detectors.statistics.common_mode import CommonMode
from laggard.detectors.statistics.cross_section import with_nodes
from laggard.detectors.statistics.device_index import DeviceIndex, codes_of
from laggard.detectors.statistics.estimates import (
    RollingMean,
    bet_on_none,
    bet_on_one,
    center_and_spread,
    count_of,
    high_median,
    log_fastest,
    low_median,
    median_and_deviation,
    onset_weight,
    repeat_noise,
    repeats_of,
)
from laggard.detectors.statistics.exceedance import Scales, compare
from laggard.detectors.statistics.false_alarm_budget import Rates, accumulate
from laggard.detectors.statistics.grouping import Grouping, clear_classes, joint_classes, slow_minorities
from laggard.detectors.statistics.history import PEER, REPORT, RESTART, SELF, History, present_places
from laggard.detectors.statistics.shared_runs import SharedRuns
from laggard.detectors.statistics.thresholds import Thresholds
from laggard.detectors.verdict import Evidence, Severity, Verdict
from tests.naive_detector import Group, age_class, factor_of, own_rates

NAN, INF = math.nan, math.inf
ALL = [slice(None)]


def row(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def grouping(*codes: int) -> Grouping:
    return Grouping(np.array(codes, np.int32))


# -- statistics of a round ---------------------------------------------------------------------------------------------


def test_readings_that_are_not_positive_and_finite_are_as_good_as_none() -> None:
    repeats = repeats_of(np.array([[1.0, 2.0], [0.0, 3.0], [-1.0, INF], [NAN, 5.0]]))

    assert repeats.tolist() == [[1, INF, INF, INF], [2, 3, INF, 5]]
    np.testing.assert_allclose(log_fastest(repeats), row(0, math.log(3), NAN, math.log(5)), rtol=1e-6)


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


@pytest.mark.parametrize("count", [2, 4, 6, 8, 16, 18])
def test_the_median_and_the_deviation_are_those_of_scipy(count: int) -> None:
    rows = np.random.default_rng(count).normal(0, 1, (count, 3, 40)).astype(np.float32)

    usual, deviation = median_and_deviation(rows)

    np.testing.assert_allclose(usual, np.median(rows, axis=0), atol=1e-6)
    np.testing.assert_allclose(deviation, stats.median_abs_deviation(rows, axis=0, scale="normal"), atol=1e-6)


def test_more_devices_than_fit_a_block_have_the_same_median_each() -> None:
    rows = np.random.default_rng(1).normal(0, 1, (8, 2, 20_000)).astype(np.float32)

    np.testing.assert_allclose(median_and_deviation(rows)[0], np.median(rows, axis=0), atol=1e-6)


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
    found = center_and_spread(np.random.default_rng(0).permutation(np.array(values, np.float32)), ALL)

    np.testing.assert_allclose(np.array(found)[:, 0], [center, spread], rtol=1e-5)


def test_medians_and_counts_are_by_group() -> None:
    groups = grouping(0, 0, 0, 0, 1, 1, 2).groups
    values = row(4, 1, 3, 2, NAN, 5, NAN)

    np.testing.assert_array_equal(high_median(values, groups), row(3, 5, NAN))
    assert count_of(values > 1, groups).tolist() == [3, 1, 0]


def test_the_budget_is_spread_over_an_endless_run() -> None:
    assert onset_weight(1) == pytest.approx(1 / special.zeta(1.1), rel=1e-9)
    assert onset_weight(32) == pytest.approx(onset_weight(1) / 32**1.1, rel=1e-9)


@pytest.mark.parametrize(
    ("rate", "one", "none"), [(0.02, 40.0, 0.2 / 0.98), (0.5, 1.6, 0.4), (0.6, 0.8 / 0.6, 0.5), (0.9, 0.95 / 0.9, 0.5)]
)
def test_the_bets_are_a_likelihood_ratio_with_a_mean_of_at_most_one(rate: float, one: float, none: float) -> None:
    up, down = (float(bet(np.float32(rate))) for bet in (bet_on_one, bet_on_none))  # type: ignore[arg-type]

    assert [up, down] == pytest.approx([one, none])
    assert rate * up + (1 - rate) * down <= 1 + 1e-6


def test_a_rolling_mean_is_that_of_the_last_values_that_came() -> None:
    mean = RollingMean(2)
    for values in (row(9, 9, NAN), row(1, NAN, NAN), row(3, 4, NAN)):
        mean.add(values)

    np.testing.assert_array_equal(mean.mean(), row(2, 4, NAN))


# -- thresholds --------------------------------------------------------------------------------------------------------


def test_against_its_past_a_device_must_exceed_the_effect_and_what_noise_allows() -> None:
    report, restart = Thresholds(min_slowdown=1.1).against_self(row(0.005, 0.05, 0.15))

    np.testing.assert_allclose(report, row(0.3 * math.log(1.1), 0.05, 0.15), rtol=1e-6)
    np.testing.assert_allclose(restart, row(math.log(1.1), math.log(1.1), 0.15), rtol=1e-6)


@pytest.mark.parametrize(
    ("peers", "spread", "report", "restart"),
    [
        (1, 0.0, math.log(1.05) + 0.2, math.log(1.07) + 0.2),
        (3, 0.0, math.log(1.05) + 0.2 / 4, math.log(1.07) + 0.2 / 4),
        (5, 0.02, 0.07, math.log(1.07) + 0.2 / 16),
        (15, 0.05, 0.12, 0.12),  # few peers: the spread asks for no more
        (16, 0.05, 0.175, 0.175),
        (2, 0.5, math.log(2), math.log(2)),  # of two only the factor of two counts
    ],
)
def test_against_peers_the_margin_shrinks_with_their_number(
    peers: int, spread: float, report: float, restart: float
) -> None:
    found = Thresholds().against_peers(row(0.0), row(spread), np.array([peers]))

    np.testing.assert_allclose(np.ravel(found), [report, restart], rtol=1e-5)


def test_noise_widens_the_margin_against_peers_and_a_greater_effect_that_of_a_pair() -> None:
    quiet, noisy = (Thresholds().against_peers(row(noise), row(0.0), np.array([5]))[1] for noise in (0.0, 0.01))
    pair = Thresholds(min_slowdown=1.5).against_peers(row(0.0), row(0.0), np.array([2]))

    assert noisy - quiet == pytest.approx(3 * 0.01, rel=1e-5)
    np.testing.assert_allclose(np.ravel(pair), [math.log(2), 2 * math.log(1.5)], rtol=1e-5)


@pytest.mark.parametrize("ratio", [1.0, 0.5, INF, NAN])
def test_a_ratio_that_is_not_a_slowdown_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="min_slowdown"):
        Thresholds(min_slowdown=ratio)
    with pytest.raises(ValueError, match="peer_slowdown"):
        Thresholds(peer_slowdown=ratio)


# -- groups ------------------------------------------------------------------------------------------------------------


def test_labels_are_numbered_as_they_appear() -> None:
    codes = codes_of(["b", "a", "b", "c", "c"])
    found = Grouping(codes)

    assert codes.tolist() == [0, 1, 0, 2, 2]
    assert (len(found), found.sizes.tolist(), [found.size_at(place) for place in range(5)]) == (
        3,
        [2, 1, 2],
        [2, 1, 2, 2, 2],
    )
    assert [np.arange(5)[group].tolist() for group in found.groups] == [[0, 2], [1], [3, 4]]
    assert found.per_device(row(7, 8, 9)).tolist() == [7, 8, 7, 9, 9]


def test_one_group_is_all_values_and_copies_none() -> None:
    values = row(1, 2, 3)
    [group] = grouping(0, 0, 0).groups

    assert np.shares_memory(values[group], values)


@pytest.mark.parametrize(("devices", "sampled"), [(2047, 2047), (2048, 1024), (4095, 2048), (4096, 1366)])
def test_of_a_large_group_a_thousand_devices_or_two_are_sampled(devices: int, sampled: int) -> None:
    one, two = Grouping(np.zeros(devices, np.int32)), Grouping(np.arange(2 * devices, dtype=np.int32) % 2)

    assert [len(np.arange(devices)[sample]) for sample in one.samples] == [sampled]
    assert [len(np.arange(2 * devices)[sample]) for sample in two.samples] == [sampled] * 2


def index_of(hosts: int, gpus: int) -> DeviceIndex:
    return DeviceIndex((f"n{host}", str(gpu)) for host in range(hosts) for gpu in range(gpus))


def test_a_class_has_three_devices_on_two_hosts_on_either_side() -> None:
    def codes(slow: list[int], hosts: int = 5, gpus: int = 3, by: float = 0.5) -> list[int]:
        readings = np.linspace(0, 0.002, hosts * gpus, dtype=np.float32)
        readings[slow] += np.float32(by)
        return np.flatnonzero(clear_classes(readings, index_of(hosts, gpus))).tolist()

    assert codes([9, 10, 11, 12, 13, 14]) == [9, 10, 11, 12, 13, 14]
    assert codes([12, 13, 14]) == []  # one host only
    assert codes([3, 4, 5], hosts=6, gpus=1) == [3, 4, 5]
    assert codes([4, 5], hosts=6, gpus=1) == []  # two devices only
    assert codes([9, 10, 11, 12, 13, 14], by=0.275) == [9, 10, 11, 12, 13, 14]  # 30 % is 0.262
    assert codes([9, 10, 11, 12, 13, 14], by=0.25) == []
    assert codes([17, *range(18, 36)], hosts=12) == [*range(17, 36)]  # one host in ten may have both
    assert codes([14, 17, *range(18, 36)], hosts=12) == []
    assert codes([14, *range(15, 30)], hosts=10) == [*range(14, 30)]
    assert codes([11, *range(12, 27)], hosts=9) == []
    assert codes([3, 7, 11, 15], hosts=4, gpus=4) == [3, 7, 11, 15]  # the same GPU of each host


SPREAD_OUT = [0.0] * 45 + [number * 0.014 for number in range(10)]


@pytest.mark.parametrize(
    ("fast", "slow", "classes"),
    [
        ([0.0, 0.004, 0.008], [0.264, 0.272, 0.28], 2),  # the gap is less than 30 %, the distance of the centers is not
        ([0.0, 0.004, 0.008], [0.260, 0.264, 0.268], 1),
        ([0.0, 0.0, 0.02, 0.02], [0.275] * 4, 2),  # the center is half-way between the two in the middle
        ([0.0, 0.0, 0.02, 0.02], [0.27] * 4, 1),
        ([0.0, 0.0, 0.0], [0.5, 0.52, 0.54], 2),  # three need not be as alike as two
        (SPREAD_OUT, [0.272 - each for each in reversed(SPREAD_OUT)], 2),  # the gap is 0.02
        ([each - 0.126 for each in SPREAD_OUT], [0.144 - each for each in reversed(SPREAD_OUT)], 2),  # 0.018
        (SPREAD_OUT, [0.269 - each for each in reversed(SPREAD_OUT)], 1),  # 0.017, though most devices are alike
    ],
)
def test_two_classes_have_centers_thirty_percent_apart_and_a_gap_of_two_percent(
    fast: list[float], slow: list[float], classes: int
) -> None:
    codes = clear_classes(row(*fast, *slow), index_of(len(fast) + len(slow), 1))

    assert codes.tolist() == [0] * len(fast) + [classes - 1] * len(slow)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0)])
def test_the_host_of_the_fastest_and_that_of_the_slowest_device_count(order: tuple[int, ...]) -> None:
    index = DeviceIndex([("a", "0"), ("b", "0"), ("b", "1"), ("c", "0"), ("d", "0"), ("d", "1")])
    side = row(0.0, 0.001, 0.002)[list(order)]

    assert clear_classes(np.concatenate([side, side + np.float32(0.5)]), index).tolist() == [0, 0, 0, 1, 1, 1]


def test_two_devices_are_a_class_if_they_are_alike_and_are_no_whole_node() -> None:
    def codes(slow: list[int], hosts: int, gpus: int, apart: float = 0.02) -> list[int]:
        readings = np.linspace(0, 0.002, hosts * gpus, dtype=np.float32)
        readings[slow] += np.float32(0.5)
        readings[slow[0]] += np.float32(apart)
        return np.flatnonzero(clear_classes(readings, index_of(hosts, gpus), pairs_too=True)).tolist()

    assert codes([4, 5], 6, 1) == [4, 5]
    assert codes([4, 5], 6, 1, apart=0.035) == []
    for second, number in ((-0.03, 2), (-0.0301, 0)):
        assert np.count_nonzero(clear_classes(row(*[-0.5] * 4, second, 0), index_of(6, 1), pairs_too=True)) == number
    assert codes([14, 15], 4, 4) == [14, 15]  # half of a node
    assert codes([11, 15], 4, 4) == [11, 15]  # at the same place in two nodes
    assert codes([10, 15], 4, 4) == [10, 15]
    assert codes([6, 7], 4, 2) == []  # a whole node
    assert codes([30, 31], 8, 4) == []  # less than a tenth
    assert codes([3, 6, 9], 4, 4) == []  # three in different places are three faults


def test_two_devices_that_are_alike_on_two_nodes_are_a_class_though_one_node_has_another_device() -> None:
    index = DeviceIndex([("a", "0"), ("b", "0"), ("b", "1"), ("c", "0"), ("d", "0"), ("e", "0")])

    assert clear_classes(row(0.5, 0.5, 0, 0, 0, 0), index, pairs_too=True).tolist() == [1, 1, 0, 0, 0, 0]


def test_of_forty_devices_a_class_has_four() -> None:
    def codes(slow: int) -> int:
        readings = np.linspace(0, 0.002, 40, dtype=np.float32)
        readings[40 - slow :] += np.float32(0.5)
        return int(np.count_nonzero(clear_classes(readings, index_of(40, 1))))

    assert [codes(slow) for slow in (3, 4, 5)] == [0, 4, 5]


def test_three_clear_classes_are_numbered_from_the_fastest_and_a_missing_reading_is_of_the_first() -> None:
    readings = np.repeat(np.array([2.0, 0.0, 0.5], np.float32), 4)
    readings[5] = NAN

    assert clear_classes(readings, index_of(12, 1)).tolist() == [2] * 4 + [0] * 4 + [1] * 4


def test_a_gap_must_be_six_times_the_wider_sides_spread() -> None:
    def classes(deviation: float) -> int:
        side = (
            deviation * stats.norm.ppf(0.75) * np.array([-1, -1, 0, 1, 1], np.float32)
        )  # its median distance is the second
        return len(np.unique(clear_classes(np.concatenate([side, side + np.float32(0.5)]), index_of(10, 1))))

    # The gap is 0.5 less two steps: six deviations of 0.0681 at most.
    assert classes(0.067) == 2
    assert classes(0.070) == 1


def test_classes_of_several_probes_are_joined() -> None:
    one, other = np.zeros(12, np.float32), np.zeros(12, np.float32)
    one[6:], other[3:9] = 0.5, 0.5

    assert joint_classes([one, other], index_of(12, 1)).tolist() == [0] * 3 + [1] * 3 + [3] * 3 + [2] * 3
    assert joint_classes([one, one * 0], index_of(12, 1)).tolist() == [0] * 6 + [1] * 6
    other[:9], other[9:] = 0, 0.5
    assert joint_classes([one, other], index_of(12, 1)).tolist() == [0] * 6 + [1] * 3 + [2] * 3  # no number is left out
    other[:2], other[9:11], other[11] = 0.5, 0, 0.5
    assert joint_classes([one, other], index_of(12, 1)).tolist() == [1] * 2 + [0] * 4 + [2] * 5 + [3]


def test_only_a_smaller_class_that_is_thirty_percent_slower_is_a_slow_minority() -> None:
    codes = grouping(0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 3, 3)
    readings = row(0, 0, 0, 0, 0.27, 0.27, 0.25, 0.25, 0.9, 0.9, 0.9, 0.9) - np.float32(4)
    found = slow_minorities([readings], codes)

    assert found == {4: pytest.approx(math.exp(0.27), rel=1e-5), 5: pytest.approx(math.exp(0.27), rel=1e-5)}


# -- history -----------------------------------------------------------------------------------------------------------


def remembering(rounds: list[list[float]], common: float = 0.5) -> tuple[History, list[list[bool]]]:
    history = History.empty(len(rounds[0]))
    return history, [history.remember(row(*each), row(*[common] * len(each))).tolist() for each in rounds]


def test_a_baseline_is_the_median_of_eight_rounds_and_its_noise_their_deviation() -> None:
    residuals = [0.1, 0.3, 0.2, 0.4, 0.5, 0.9, 0.7, 0.6]
    history, ready = remembering([[value, NAN] for value in residuals])

    assert ready == [[False, False]] * 7 + [[True, False]]
    np.testing.assert_allclose(history.baseline, row(0.45, NAN), rtol=1e-5)
    np.testing.assert_allclose(history.noise, row(1.4826 * 0.2, NAN), rtol=1e-5)
    np.testing.assert_allclose(history.common, row(0.5, 0), rtol=1e-5)
    np.testing.assert_allclose(history.recent[:, 0], np.array(residuals) - 0.45, atol=1e-6)
    assert history.seen.tolist() == [8, 0]


def test_the_last_residuals_are_those_of_each_devices_own_last_rounds() -> None:
    history, _ = remembering([[value / 100, value / 100 if value < 5 else NAN] for value in range(1, 11)])
    history.rounds[:] = [3, 9]

    middle = 0.045  # of the first eight, which is taken off them
    np.testing.assert_allclose(history.last(), row(0.10, 0.04), atol=1e-6)
    np.testing.assert_allclose(history.last_residuals(0), [0.10, 0.09, 0.08 - middle], atol=1e-6)
    np.testing.assert_allclose(history.last_residuals(1), [0.04, 0.03, 0.02, 0.01], atol=1e-6)
    np.testing.assert_allclose(history.recent[2:, 0], np.arange(3, 9) / 100 - middle, atol=1e-6)
    assert np.isnan(History.empty(1).last()).all()
    assert remembering([[0.5]])[0].last() == 0.5


def test_an_episode_begins_with_an_exceedance_and_ends_when_the_evidence_is_gone() -> None:
    history = History.empty(3)

    def note(slow: list[bool], now_s: float, present: bool = True) -> tuple[list[float], list[int]]:
        history.note_episodes(np.array(slow), np.array([present] * 3), now_s)
        return history.since_s.tolist(), history.rounds.tolist()

    assert note([False] * 3, 5.0)[1] == [0, 0, 0]
    history.evidence[:, REPORT, 0] = [0.6, 0.6]  # of both tests together
    history.evidence[SELF, :, 1] = [0.9, 0.9]  # of neither level alone
    history.reported[:] = 2
    assert note([True, True, False], 10.0)[1] == [1, 1, 0]
    since_s, rounds = note([False, False, True], 20.0)
    assert (since_s[0], since_s[2], rounds) == (10.0, 20.0, [2, 0, 1])
    assert math.isnan(since_s[1])
    assert history.reported[:2].tolist() == [2, 0]
    assert note([True, False, True], 30.0, present=False)[1] == [2, 0, 1]
    history.evidence[SELF, RESTART, 2] = 1.0  # as much as before the first round is not gone
    assert note([False] * 3, 40.0)[1] == [3, 0, 2]
    history = History.empty(3)
    assert note([True] * 3, 50.0) == ([50.0] * 3, [1] * 3)  # slow from its first round on


def test_a_device_in_a_new_state_learns_its_past_anew_and_is_still_compared_with_its_peers() -> None:
    history, _ = remembering([[0.1, 0.2, 0.3]] * 8)
    for counts in (history.evidence, history.run, history.runs, history.exceedances):
        counts[:] = 5
    history.intermittent[:] = 5

    found = history.enter_states(np.array([0, 1]), np.array([1, 0], np.uint8), row(0.02, 0.0))

    assert found.tolist() == [False] * 3
    np.testing.assert_allclose(history.before, [0.08, NAN, NAN], rtol=1e-2)
    np.testing.assert_allclose(history.baseline, row(NAN, 0.2, 0.3), rtol=1e-5)
    np.testing.assert_array_equal(np.isnan(history.noise), [True, False, False])
    assert (history.seen.tolist(), history.common.tolist()) == ([0, 8, 8], [0, 0.5, 0.5])
    assert history.intermittent.tolist() == [0, 5, 5]
    for counts in (history.evidence, history.run, history.runs, history.exceedances):
        assert counts[SELF].tolist() == [[0, 5, 5]] * 2
        assert (counts[PEER] == 5).all()


def test_states_are_gained_and_a_device_in_fewer_of_them_is_told() -> None:
    history, _ = remembering([[0.1, 0.2]] * 8)

    def enter(*states: int) -> list[bool]:
        found: list[bool] = history.enter_states(np.arange(2), np.array(states, np.uint8), row(0.0, 0.0)).tolist()
        return found

    assert enter(1, 0) == [False, False]
    assert enter(0, 2) == [True, False]
    assert enter(1, 1) == [False, True]  # it never was in both at once
    assert history.state.tolist() == [1, 3]
    for past, before in ((0.3, 0.1), (0.05, 0.05)):  # the least of those it had
        history.state[:] = 0
        history.baseline[:] = past
        enter(1, 0)
        assert history.before[0] == pytest.approx(before, rel=1e-2)


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


def test_room_for_more_devices_keeps_what_is_known() -> None:
    history, _ = remembering([[0.1, 0.2]] * 8)
    history.evidence[1, 0, 1] = 7

    bigger = history.extended(3)

    np.testing.assert_allclose(bigger.baseline, row(0.1, 0.2, NAN), rtol=1e-5)
    assert (bigger.evidence.sum(), bigger.evidence[1, 0, 1], bigger.recent.shape) == (7, 7, (8, 3))
    assert bigger.take(np.array([2, 0])).seen.tolist() == [0, 8]
    bigger.forget_run()
    assert bigger.evidence.shape == (2, 2, 3)
    assert bigger.evidence.sum() == 0
    assert bigger.seen.tolist() == [8, 8, 0]


# -- the false-alarm budget --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounds", "runs", "first"),
    [(0, 0, 0.02), (150, 4, (4 + 2 * 2 + 1) / (150 + 50)), (1e6, 4, 0.005), (100, 400, 0.98), (100, 1, 4 / 150)],
)
def test_the_rate_of_first_exceedances_is_an_upper_estimate_between_half_a_percent_and_98_percent(
    rounds: float, runs: float, first: float
) -> None:
    rates = Rates(np.array([4]))
    rates.rounds[:], rates.runs[:] = rounds, runs
    np.testing.assert_allclose(rates.first(), first, rtol=1e-6)


def test_nothing_is_known_yet_of_how_long_a_disturbance_lasts() -> None:
    np.testing.assert_allclose(Rates(np.array([4])).again().ravel(), 0.01, rtol=1e-6)


def test_the_rate_of_one_more_exceedance_is_learned_by_age_and_never_falls_with_it() -> None:
    rates, codes = Rates(np.array([4])), np.zeros(3, np.intp)
    rates.learn_ended(SELF, RESTART, codes, np.arange(3), np.array([1, 3, 6]))

    assert rates.runs[SELF, RESTART].tolist() == [3 * 4 / 3]
    assert rates.tries[:, SELF, RESTART, 0].tolist() == [3, 4, 3, 0, 0]  # rounds that followed 1, 2-3, 4-7 ...
    assert rates.repeats[:, SELF, RESTART, 0].tolist() == [2, 3, 2, 0, 0]
    young = (2 + 8**0.5 + 0.2) / 23
    older = (3 + 8 * young) / (4 + 8)
    oldest = (2 + 8 * older) / (3 + 8)
    upper = [young, older, oldest, oldest, oldest]
    np.testing.assert_allclose(rates.again()[:, SELF, RESTART, 0], upper, rtol=1e-6)
    np.testing.assert_allclose(rates.again()[:, SELF, REPORT, 0], 0.01, rtol=1e-6)


@pytest.mark.parametrize(
    ("length", "tries", "repeats"),
    [
        (1, [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]),
        (2, [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]),
        (4, [1, 2, 1, 0, 0], [1, 2, 0, 0, 0]),
        (15, [1, 2, 4, 8, 0], [1, 2, 4, 7, 0]),
        (16, [1, 2, 4, 8, 1], [1, 2, 4, 8, 0]),
        (255, [1, 2, 4, 8, 240], [1, 2, 4, 8, 239]),
    ],
)
def test_a_run_teaches_every_age_that_it_had(length: int, tries: list[int], repeats: list[int]) -> None:
    rates = Rates(np.array([4]))
    for place in (0, 1):
        rates.learn_ended(SELF, RESTART, np.zeros(1, np.intp), np.array([place]), np.array([length]))
    assert rates.tries[:, SELF, RESTART, 0].tolist() == tries
    assert rates.repeats[:, SELF, RESTART, 0].tolist() == repeats


@pytest.mark.parametrize(
    ("runs", "repeats", "rounds", "lasting"),
    [
        (5, 3, 1000, 5),
        (4, 3, 1000, 0),  # too few to tell
        (6, 3, 1000, 0),  # not more than half of them went on
        (5, 3, 34, 5),
        (5, 3, 33, 0),  # no more than four times as often as by chance
    ],
)
def test_runs_last_if_more_than_half_of_at_least_five_go_on_and_far_more_than_by_chance(
    runs: int, repeats: int, rounds: int, lasting: int
) -> None:
    rates = Rates(np.array([4]))
    for counts, value in ((rates.tries, runs), (rates.repeats, repeats)):
        counts[0, SELF, RESTART] = value
    rates.rounds[SELF, RESTART] = rounds
    n_runs, length = rates.lasting()
    assert (n_runs.tolist(), length.tolist()) == ([lasting], [1 + repeats / runs])
    rates.repeats[1, SELF, RESTART] = 2 * runs
    assert rates.lasting()[1].tolist() == [1 + repeats / runs + 2]


def test_a_group_learns_how_far_its_devices_typically_wander_from_their_own_past() -> None:
    scales = Scales(History.empty(4), grouping(0, 0, 0, 0))
    residual, slow = row(-0.03, 0.01, 0.02, 0.5), np.array([False, False, False, True])
    for _ in range(400):
        scales.learn_wander(residual, -residual, slow, [slice(None)])
    np.testing.assert_allclose(scales.wander, 0.02 * 1.4826, rtol=0.01)
    np.testing.assert_allclose(scales.change, 0.04 * 1.4826 / 2**0.5, rtol=0.01)
    for _ in range(400):
        scales.learn_wander(0 * residual, residual, np.zeros_like(slow), [slice(None)])
    assert scales.wander < 1e-3


@pytest.mark.parametrize(("correlation", "noises"), [(0.0, 2.0), (0.9, 5.0)])
def test_noise_that_does_not_last_allows_twice_itself_and_noise_that_lasts_five_times(
    correlation: float, noises: float
) -> None:
    rng, history = np.random.default_rng(1), History.empty(64)
    history.noise[:] = 0.02
    scales, noise = Scales(history, grouping(*[0] * 64)), rng.standard_normal(64)
    none = np.zeros(1, np.float32)
    assert scales.allowed(none, grouping(*[0] * 64)).max() == pytest.approx(0.1)  # nothing is known yet
    for _ in range(100):
        last = noise
        noise = correlation * noise + math.sqrt(1 - correlation**2) * rng.standard_normal(64)
        scales.learn_wander(row(*(0.02 * noise)), row(*(0.02 * last)), np.zeros(64, np.bool_), [slice(None)])
    allowed = scales.allowed(none, grouping(*[0] * 64))
    assert allowed.max() == pytest.approx(noises * scales.wander[0], rel=0.05)
    assert scales.allowed(none + 1, grouping(*[0] * 64)).min() == pytest.approx(noises, rel=0.05)  # a restless round


def test_a_baseline_moves_towards_the_mean_of_its_first_64_rounds_by_no_more_than_its_noise() -> None:
    history = History.empty(2)
    for number in range(8):
        history.remember(row(*[0.01 * (-1) ** number] * 2), row(0.0, 0.0))
    noise = history.noise[0]
    for _ in range(8, 80):
        history.remember(row(0.001, 9.0), row(0.0, 0.0))
    steps = sum(1 / number for number in range(9, 65))
    np.testing.assert_allclose(history.baseline, [0.001 * steps, noise * steps], rtol=1e-3)


def test_a_baseline_with_much_noise_moves_by_a_tenth_of_a_log_second_at_most() -> None:
    history, _ = remembering([[0.3 * (-1) ** number] for number in range(8)])
    history.remember(row(9.0), row(0.0))
    assert history.noise > 0.4
    np.testing.assert_allclose(history.baseline, 0.1 / 9, rtol=1e-5)


def test_of_two_devices_neither_is_excused_by_how_far_it_wanders() -> None:
    scales = Scales(History.empty(2), grouping(0, 0))
    scales.learn_wander(row(0.0, 0.1), row(0.0, 0.0), np.zeros(2, np.bool_), [slice(None)])
    assert not scales.wander.any()


def test_many_short_runs_and_a_few_long_ones_are_not_taken_for_runs_of_middling_length() -> None:
    rates, codes = Rates(np.array([200])), np.zeros(101, np.intp)
    rates.learn_ended(SELF, RESTART, codes, np.arange(101), np.array([1] * 100 + [40]))
    young, *_, old = rates.again()[:, SELF, RESTART, 0]
    assert young < 0.05
    assert old > 0.9


def test_the_rounds_that_made_the_baselines_teach_their_runs() -> None:
    rates = Rates(np.array([1, 4]))
    exceeds = np.array([[1, 1, 0, 0, 0], [1, 0, 0, 1, 0], [0, 1, 0, 1, 0], [1, 1, 1, 0, 1]], np.bool_)

    not_ended = rates.learn_window(exceeds, RESTART, np.array([True] * 4 + [False]), grouping(0, 1, 1, 1, 1))

    assert not_ended.tolist() == [1, 2, 1, 0, 0], "a run that has not ended teaches nothing yet"
    assert rates.rounds[SELF, RESTART].tolist() == [2, 2 + 4 + 2]  # rounds that followed a good one
    assert rates.runs[SELF, RESTART].tolist() == [0, 4 / 3]  # one device teaches nothing
    assert rates.held[SELF, RESTART].tolist() == [1, 1]
    assert rates.tries[:, SELF, RESTART].sum(axis=0).tolist() == [0, 1]
    assert rates.repeats[:, SELF, RESTART].sum() == 0  # the run of two rounds is held back


def test_baselines_without_exceedances_teach_their_rounds() -> None:
    rates = Rates(np.array([4]))
    rates.learn_window(np.zeros((8, 3), np.bool_), REPORT, np.array([True, True, False]), grouping(0, 0, 0))
    assert rates.rounds[SELF, REPORT].tolist() == [16]
    assert rates.runs.sum() == 0


def test_a_devices_own_noise_is_that_of_the_last_hundred_rounds() -> None:
    history, good = History.empty(2), np.zeros(2, np.float32)
    history.note_ended(SELF, RESTART, np.array([1]), np.array([3], np.uint8))
    np.testing.assert_allclose(history.own_rates(SELF, RESTART), [0, 2 / 8], rtol=1e-5)  # no fewer than no good rounds
    for _ in range(40):
        history.remember(good, good)
    everyone = np.arange(2)
    np.testing.assert_allclose(history.own_rates(SELF, RESTART), [0, 2 / (40 - 3 + 8)], rtol=1e-5)
    np.testing.assert_allclose(history.own_repeats(SELF, RESTART, everyone), [0, (2 + 2**0.5) / (3 + 20)], rtol=1e-5)
    np.testing.assert_allclose(history.density(), [0, 3 / (40 + 8)], rtol=1e-5)
    for _ in range(24 + 64):
        history.remember(good, good)
    np.testing.assert_allclose(history.own_rates(SELF, RESTART), [0, (0.25 + 0.5) / (48 - 0.75 + 8)], rtol=1e-5)
    assert not history.own_rates(PEER, RESTART).any()


def test_counts_stay_in_the_range_of_their_types() -> None:
    history = History.empty(1)
    for _ in range(1001):
        history.note_ended(SELF, RESTART, np.array([0]), np.array([255], np.uint8))
    history.seen[:] = 65_534
    history.remember(row(0.0), row(0.0))

    assert history.runs[SELF, RESTART, 0] == history.exceedances[SELF, RESTART, 0] == 1000
    assert history.seen == 65_535 - 32_768


KEY = ("self", "report")  # the slow book has a group for each test and level


class SlowBook:
    """The same book-keeping, one number at a time."""

    def __init__(self, codes: list[int], budget: float) -> None:
        self.codes, self.budget = codes, budget
        self.kept: dict[tuple[int, ...], dict[str, float]] = {}
        self.groups: dict[tuple[int, ...], Group] = {}

    def account(self, *place: int) -> dict[str, float]:
        return self.kept.setdefault(place, {"evidence": 0.0, "run": 0, "runs": 0, "exceedances": 0})

    def round(
        self, exceeds: Any, far: Any, tested: Any, reported: list[int], seen: float, rounds_tested: list[int]
    ) -> None:
        [devices] = tested[0].shape
        present = sum(tested[0] | tested[1])
        before, ended = deepcopy(self.groups), defaultdict[tuple[int, ...], list[tuple[object, int]]](list)
        for test, level, device in np.ndindex(2, 2, devices):
            if not rounds_tested[test] or not tested[test][device]:
                continue
            group = (test, level, self.codes[device])
            size = self.codes.count(self.codes[device])
            known, learns = before.get(group, Group()), self.groups.setdefault(group, Group(size=size))
            mine = self.account(test, level, device)
            own, own_again = own_rates(int(seen), mine["runs"], mine["exceedances"])
            of_group = known.first(KEY)
            if mine["run"]:
                of_group = max(of_group, known.again(KEY)[age_class(int(mine["run"]))])
                own = max(own, own_again)
            now = bool(exceeds[test][level][device])
            factor = factor_of(now, bool(far[test][device]), of_group, own)
            weight = rounds_tested[test] ** -1.1 / special.zeta(1.1) / (2 * present)
            mine["evidence"] = min((mine["evidence"] + weight) * factor, 100 / self.budget)
            learns.rounds[KEY] += reported[device] == 0 and not mine["run"]
            if not now and mine["run"] and reported[device] == 0:
                ended[group].append((device, int(mine["run"])))
            if not now and mine["run"] and (reported[device] == 0 or mine["run"] < 4):
                mine["runs"] += 1
                mine["exceedances"] += mine["run"]
            mine["run"] = min(mine["run"] + 1, 255) if now else 0
        for where, runs in ended.items():
            self.groups[where].learn(KEY, runs)


@pytest.mark.parametrize("often", [0.05, 0.5])
def test_the_evidence_is_that_of_an_obvious_slow_book(often: float) -> None:
    rng, codes, reported = np.random.default_rng(3), [0, 1, 0, 1, 1], [0, 0, 0, 0, 1]
    history, rates, book = History.empty(5), Rates(np.array([2, 3])), SlowBook(codes, 0.01)
    history.reported[:] = reported
    history.seen[:] = 12
    rounds_tested = np.zeros(2, np.int64)
    for number in range(60):
        tested = [rng.random(5) < 0.9, np.full(5, number >= 3)]
        rounds_tested += [tests.any() for tests in tested]
        exceeds = [[(rng.random(5) < often) & tests for _ in range(2)] for tests in tested]
        far = [rng.random(5) < 0.3 for _ in range(2)]
        accumulate(history, exceeds, far, tested, rates, grouping(*codes), rounds_tested, 0.01)
        book.round(exceeds, far, tested, reported, 12, rounds_tested.tolist())

    for name in ("evidence", "run", "runs", "exceedances"):
        slow = [book.account(*place)[name] for place in np.ndindex(2, 2, 5)]
        np.testing.assert_allclose(getattr(history, name).ravel(), slow, rtol=1e-3, err_msg=name)
    for name in ("rounds", "runs"):
        slow = [getattr(book.groups.get(where, Group()), name)[KEY] for where in np.ndindex(2, 2, 2)]
        np.testing.assert_allclose(getattr(rates, name).ravel(), slow, err_msg=name)
    for name in ("tries", "repeats"):
        by_age = [getattr(book.groups.get(where, Group()), name)[KEY] for where in np.ndindex(2, 2, 2)]
        np.testing.assert_allclose(getattr(rates, name).reshape(5, -1).T, by_age, err_msg=name)


def test_a_round_without_readings_changes_nothing() -> None:
    history, rates, no = History.empty(2), Rates(np.array([2])), np.zeros(2, np.bool_)
    history.run[:], history.evidence[:] = 3, 7.0
    accumulate(history, [[no, no], [no, no]], [no, no], [no, no], rates, grouping(0, 0), np.array([5, 5]), 0.01)
    assert (history.run == 3).all()
    assert (history.evidence == 7.0).all()
    assert not rates.rounds.any()


def test_evidence_has_a_cap_and_a_run_a_longest_length() -> None:
    history, rates, yes = History.empty(1), Rates(np.array([4])), np.ones(1, np.bool_)
    for number in range(1, 301):
        exceeds = [[yes, yes], [~yes, ~yes]]
        accumulate(history, exceeds, [~yes, ~yes], [yes, ~yes], rates, grouping(0), np.array([number, 0]), 0.01)

    assert history.run[SELF, REPORT, 0] == 255
    assert history.evidence[SELF, REPORT, 0] == pytest.approx(100 / 0.01)
    assert history.evidence[PEER].max() == 0


def test_groups_of_one_size_have_the_statistics_that_each_has_alone() -> None:
    rng, groups = np.random.default_rng(1), [slice(0, 4), slice(4, 8), slice(8, 12)]
    values = rng.standard_normal(12).astype(np.float32)
    values[[1, 4, 5, 6, 7, 9]] = NAN
    each_of: list[Any] = [high_median, low_median, count_of, lambda *about: center_and_spread(*about)[1]]
    for of_groups in each_of:
        given = values > 0 if of_groups is count_of else values
        alone = [of_groups(given, [group]) for group in groups]
        np.testing.assert_array_equal(of_groups(given, groups), np.concatenate(alone))


def test_what_one_device_does_teaches_its_group_nothing() -> None:
    shared, one = SharedRuns(np.array([16])), np.zeros(1, np.intp)
    for number in range(100):
        new, codes, _ = shared.add(SELF, RESTART, one, np.array([4]), np.array([3]))
        assert (len(new), len(codes)) == (number == 0, 0)
    other = shared.add(SELF, RESTART, one, np.array([5]), np.array([1]))
    assert (other.new.tolist(), other.lengths.tolist()) == ([0], [3])  # once


def test_of_runs_that_all_devices_have_alike_the_known_share_counts() -> None:
    rng = np.random.default_rng(1)
    for size in (2, 3, 16, 64, 1000):
        shared, n_runs, n_shared = SharedRuns(np.array([size])), 4000, 0
        for place in rng.integers(size, size=n_runs):
            n_shared += len(shared.add(SELF, RESTART, np.zeros(1, np.intp), np.array([place]), np.array([1])).shared)
        assert n_shared * shared.runs_for_each[0] == pytest.approx(n_runs, rel=0.05)


# -- what exceeds ------------------------------------------------------------------------------------------------------


def flags(
    log_seconds: list[float], noise: float | list[float] = 0.002, repeat_noise: float | None = None, **known: Any
) -> dict[str, list[int]]:
    """Return which devices exceed and are tested, in one round of one group whose baselines are all 0."""
    values = row(*log_seconds)
    history = History.empty(len(values))
    history.baseline[:], history.noise[:] = known.get("baseline", 0.0), noise
    history.common[:] = known.get("common", 0.0)
    together = Grouping(np.zeros(len(values), np.int32))
    repeats = None if repeat_noise is None else np.full_like(values, repeat_noise)
    found = compare(values, repeats, history, Scales(history, together), together, Thresholds())
    names = {"report": (SELF, REPORT), "restart": (SELF, RESTART), "peers": (PEER, RESTART), "shy": (PEER, REPORT)}
    which = {name: found.exceeds[test][level] for name, (test, level) in names.items()}
    which |= {"self tested": found.tested[SELF], "peers tested": found.tested[PEER]}
    return {name: np.flatnonzero(each).tolist() for name, each in which.items()}


@pytest.mark.parametrize(
    ("rise", "noise", "report", "restart"),
    [
        (0.0140, 0.001, [], []),  # 0.3 * log(1.05) = 0.0146
        (0.0150, 0.001, [5], []),
        (0.0480, 0.001, [5], []),  # log(1.05) = 0.0488
        (0.0495, 0.001, [5], [5]),
        (0.0495, 0.01, [], []),  # five times the noise
        (0.0505, 0.01, [5], [5]),
    ],
)
def test_a_device_exceeds_its_past_by_the_effect_and_five_noises(
    rise: float, noise: float, report: list[int], restart: list[int]
) -> None:
    found = flags([0.3] * 5 + [0.3 + rise], noise)  # what all have in common says nothing

    assert (found["report"], found["restart"]) == (report, restart)
    assert (found["self tested"], found["peers tested"]) == ([*range(6)], [*range(6)])


def test_a_restless_round_excuses_devices_but_three_are_too_few_to_tell() -> None:
    assert flags([-0.1, 0, 0, 0.06])["restart"] == []
    assert flags([-0.1, 0, 0.06])["restart"] == [2]


@pytest.mark.parametrize(("offset", "noise", "found"), [(0.080, 0.002, []), (0.083, 0.002, [5]), (0.083, 0.004, [])])
def test_a_device_exceeds_its_peers_by_the_effect_and_three_noises(
    offset: float, noise: float, found: list[int]
) -> None:
    # log(1.07) + 0.2 / 25 + 3 * 0.002 = 0.0817
    assert flags([0.0] * 5 + [offset], noise, baseline=[0.0] * 5 + [0.08])["peers"] == found


def test_a_device_without_a_past_is_compared_with_its_peers_by_the_noise_of_the_repeats() -> None:
    found = [flags([0.0] * 5 + [offset], NAN, 0.002, baseline=NAN) for offset in (0.080, 0.083)]

    assert [each["peers"] for each in found] == [[], [5]]
    assert [each["self tested"] for each in found] == [[], []]
    assert flags([0.0, 1.0, NAN], NAN, 0.002, baseline=NAN)["peers tested"] == [0, 1]
    assert flags([0.0, NAN], NAN, 0.002, baseline=NAN)["peers tested"] == []


def test_a_noisy_device_is_excused_by_five_percent_at_most_or_five_times_its_groups_noise() -> None:
    history = History.empty(5)
    for typical, noise in ((0.01, 0.05), (0.04, 0.2), (0.0001, 0.05)):
        history.noise[:] = [typical] * 4 + [0.5]
        scales = Scales(history, grouping(0, 0, 0, 0, 0))
        np.testing.assert_allclose(scales.noise, row(*[max(typical, 0.001)] * 4, noise), rtol=1e-5)


def test_where_nearly_half_look_slow_only_those_that_rose_without_their_group_do() -> None:
    many = [0.0] * 11 + [0.2] * 9  # 45 %
    assert flags(many)["restart"] == [*range(11, 20)]
    assert flags(many, common=0.2)["restart"] == []  # all were that slow before: the others became faster
    assert flags([0.0] * 12 + [0.2] * 8, common=0.2)["restart"] == [*range(12, 20)]
    assert flags(many)["peers"] == []
    assert flags([0.0] * 12 + [0.2] * 8)["peers"] == [*range(12, 20)]
    assert flags([0.0, 0.8])["peers"] == [1]  # of two, one is half


def checked(ratios: list[float], repeats: tuple[float, ...] = (1.0,)) -> dict[int, tuple[str, float]]:
    devices: list[DeviceId] = [(f"n{number}", "0") for number in range(len(ratios))]
    labels = dict.fromkeys(devices, "one model")
    readings = {device: [ratio * each for each in repeats] for device, ratio in zip(devices, ratios, strict=True)}
    found = SlowGPUAnalysis(groups=labels).check(readings)
    return {int(verdict.host[1:]): (verdict.action, round(verdict.slowdown, 4)) for verdict in found}


@pytest.mark.parametrize(
    ("ratio", "repeats", "expected"),
    [
        (1.0628, (1.0,), {}),  # log(1.05) + 0.2 / 16 is 6.32 %
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
        ("suspect", "suspect", "0"),
        ("slow", "suspect", "0"),
        ("suspect", "slow", None),
        ("slow", "slow", None),  # of one of its devices alone
    ],
)
def test_a_verdict_on_a_node_takes_the_place_of_those_on_its_devices_that_say_less(
    of_device: Severity, of_node: Severity, kept: str | None
) -> None:
    def verdict(gpu: str | None, severity: Severity) -> Verdict:
        return Verdict("n1", gpu, 1.3, severity, Evidence("n1", gpu, Slow(1.3, "peers", 3)))

    other = Verdict("n2", "0", 1.3, "slow", Evidence("n2", "0", Slow(1.3, "peers", 3)))
    found = with_nodes([verdict("0", of_device), other], [verdict(None, of_node)])
    assert [(each.host, each.gpu) for each in found] == [("n1", kept), ("n2", "0")]


# -- the common mode ---------------------------------------------------------------------------------------------------


def test_a_group_without_readings_for_some_rounds_has_shifted_only_if_it_has_after_them() -> None:
    pace, common_mode = np.zeros((30, 2), np.float32), CommonMode(2)
    pace[12:20] = np.nan
    pace[20:, 1] = 0.2
    found = [(number, shift) for number, each in enumerate(pace) for shift in common_mode.add(each, 3.0 * number)]
    [(number, shift)] = found
    assert (number, shift.group, shift.since_s) == (24, 1, 60.0)
    assert shift.ratio == pytest.approx(math.exp(0.2), rel=1e-5)

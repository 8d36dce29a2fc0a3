"""What many share against its own past: what is told of it, when, and how often."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from laggard.detectors.notices import Shift
from laggard.detectors.statistics.common_mode import CommonMode

ROUND_S = 3.0
SMALLEST = math.log(1.05)
DAY = 28_800
Told = list[tuple[int, Shift]]
Slower = Callable[[int], float]
"""By which factor everything is slower in a round."""


def follow(slower: Slower, rounds: int, noise: Iterable[float] | None = None, round_s: float = ROUND_S) -> Told:
    """Return what is told of rounds with a noise of 0.2 %, and in which round."""
    mode = CommonMode()
    noise = np.random.default_rng(0).normal(0, 0.002, rounds) if noise is None else noise
    logs = (math.log(slower(number)) + each for number, each in zip(range(rounds), noise, strict=True))
    shifts = ((number, mode.add(log_time - 4.6, round_s * number, SMALLEST)) for number, log_time in enumerate(logs))
    return [(number, shift) for number, shift in shifts if shift is not None]


def between(begin: int, end: int, ratio: float) -> Slower:
    return lambda number: ratio if begin <= number < end else 1.0


def every(rounds: int, lasts: int, ratio: float) -> Slower:
    return lambda number: ratio if number % rounds < lasts else 1.0


@pytest.mark.parametrize("ratio", [1.12, 1.3, 3.0])
@pytest.mark.parametrize(("round_s", "after"), [(3.0, 50), (84.0, 4)], ids=["150 s", "five rounds"])
def test_a_slowdown_is_told_once_with_its_size_and_moment_and_so_is_its_end(
    ratio: float, round_s: float, after: int
) -> None:
    [(begun, slower), (ended, over)] = follow(between(100, 200, ratio), 300, round_s=round_s)
    assert (begun, ended) == (100 + after, 200 + after)
    assert (slower.since_s, slower.is_over) == (100 * round_s, False)
    assert (over.since_s, over.over_s, over.is_over) == (100 * round_s, 200 * round_s, True)
    assert slower.ratio == over.ratio == pytest.approx(ratio, rel=0.01)


@pytest.mark.parametrize("slower", [between(100, 110, 3.0), between(100, 400, 1.08)], ids=["short", "small"])
def test_what_is_short_or_hardly_slower_is_not_told(slower: Slower) -> None:
    assert follow(slower, 400) == []


@pytest.mark.parametrize(("ratio", "is_told"), [(1.15, False), (1.4, True)])
def test_what_is_within_five_times_the_noise_is_not_told(ratio: float, is_told: bool) -> None:
    rng = np.random.default_rng(3)
    noise = [*rng.normal(0, 0.002, 100), *rng.normal(0, 0.05, 500)]  # it has become more, which is learned
    assert bool(follow(between(400, 600, ratio), 600, noise)) == is_told


def test_a_slowdown_is_told_even_if_single_rounds_are_as_fast_as_ever() -> None:
    [(number, shift)] = follow(lambda number: 1.3 if number >= 100 and number % 4 else 1.0, 160)
    assert number <= 152
    assert shift.since_s == pytest.approx(100 * ROUND_S, abs=ROUND_S)


@pytest.mark.parametrize(
    ("slower", "most"),
    [
        (every(200, 7, 1.2), 0),  # a checkpoint of 21 s every 10 min
        (every(600, 30, 1.5), 0),  # an evaluation of 90 s every 30 min
        (lambda number: 1.2 if number % 600 < 30 or 33 <= number % 600 < 40 else 1.0, 0),  # one soon after the other
        (every(1200, 200, 1.5), 2),  # one of 10 min every hour is told when it is first seen, and its end
    ],
    ids=["checkpoint", "evaluation", "both", "long evaluation"],
)
def test_in_a_day_phases_that_come_again_are_told_once_at_most(slower: Slower, most: int) -> None:
    assert len(follow(lambda number: slower(number + 100), DAY)) == most


def test_a_slowdown_among_long_phases_is_told_once_it_has_lasted_for_longer_than_they_do() -> None:
    phases = every(1200, 200, 1.5)
    told = follow(lambda number: 1.5 if number >= 4000 else phases(number + 100), 4600)
    assert [(number, shift.since_s) for number, shift in told if number > 1500] == [(4306, 4000 * ROUND_S)]


def test_phases_too_short_to_be_told_say_for_how_long_to_wait_too() -> None:
    phases = every(1200, 36, 1.5)
    told = follow(lambda number: 1.5 if number >= 4000 else phases(number + 100), 4600)
    assert [number for number, _ in told] == [4000 + 60]  # half as long again as they last until they are over


def test_a_slowdown_much_larger_than_the_phases_is_told_at_once() -> None:
    phases = every(1200, 200, 1.2)
    told = follow(lambda number: 3.0 if number >= 4000 else phases(number + 100), 4600)
    assert [number for number, _ in told if number > 1500] == [4050]


def test_after_a_long_slowdown_another_one_is_told_within_the_hour() -> None:
    told = follow(lambda number: 1.3 if 100 <= number < 9000 or number >= 10_000 else 1.0, 11_300)
    assert [(shift.since_s, shift.is_over) for _, shift in told] == [
        (300.0, False),
        (300.0, True),
        (30_000.0, False),
    ]
    assert told[-1][0] == 10_000 + 1200


def test_one_that_becomes_much_worse_is_told_again_and_one_end() -> None:
    told = follow(lambda number: 1.0 if number < 100 or number >= 300 else 1.3 if number < 200 else 3.0, 400)
    assert [(round(shift.ratio, 1), shift.is_over) for _, shift in told] == [(1.3, False), (3.0, False), (3.0, True)]
    assert [shift.since_s for _, shift in told] == [300.0, 600.0, 300.0]


@pytest.mark.parametrize("round_s", [3.0, 84.0])
def test_what_has_become_faster_is_not_told_but_what_is_slower_than_that_is(round_s: float) -> None:
    [(_, shift)] = follow(lambda number: (1.0, 0.7, 0.7, 0.9)[number // 100], 400, round_s=round_s)
    assert shift.ratio == pytest.approx(0.9 / 0.7, rel=0.01)
    assert shift.since_s == 300 * round_s


def test_of_a_slow_creep_it_is_told_when_it_matters() -> None:
    [(number, shift)] = follow(lambda number: 1.0002 ** max(0, number - 100), 700)
    assert 1.1 < shift.ratio < 1.12
    assert number < 700


def test_rounds_that_are_not_known_are_left_out() -> None:
    mode = CommonMode()
    logs = [0.0] * 20 + [math.nan] * 20 + [0.3] * 60
    shifts = [shift for number, each in enumerate(logs) if (shift := mode.add(each, ROUND_S * number, SMALLEST))]
    assert shifts == [Shift(math.exp(0.3), 120.0)]


def test_without_times_five_rounds_are_enough() -> None:
    mode = CommonMode(past=0.0)
    shifts = [mode.add(log_time, math.nan, SMALLEST) for log_time in [0.0] + [0.3] * 5 + [0.0] * 5]
    assert [number for number, shift in enumerate(shifts) if shift] == [5, 10]
    ratio = math.exp(0.3)
    assert (shifts[5], shifts[10]) == (Shift(ratio, None), Shift(ratio, None, None, is_over=True))


def test_what_does_not_matter_of_one_does_not_matter_of_all() -> None:
    for ratio, is_told in ((1.4, False), (1.6, True)):
        mode = CommonMode(past=0.0)
        assert any(mode.add(math.log(ratio), 84.0 * number, math.log(1.5)) for number in range(50)) == is_told


def lasting(correlation: float, deviation: float) -> list[float]:
    draws = np.random.default_rng(1).standard_normal(3000)
    found = [0.0]
    for each in draws[1:]:
        found.append(correlation * found[-1] + math.sqrt(1 - correlation**2) * deviation * float(each))
    return found


@pytest.mark.parametrize(
    "noise",
    [
        lasting(0.0, 0.1),
        lasting(0.9, 0.05),
        lasting(0.98, 0.02),
        (0.05 * np.random.default_rng(2).standard_t(3, 3000)).tolist(),
        [0.04 * (1 - math.exp(-number / 100)) for number in range(3000)],
    ],
    ids=["10 %", "5 % that lasts for 20 rounds", "2 % for 100", "heavy tails", "warming up by 4 %"],
)
def test_in_three_thousand_healthy_rounds_with_noise_nothing_is_told(noise: list[float]) -> None:
    assert follow(lambda _: 1.0, 3000, noise) == []

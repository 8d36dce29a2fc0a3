"""The evidence: what a round is worth, how noise is measured, and what is learned from excursions that ended."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from laggard.collectors.device import DeviceId
from laggard.detectors import SlowGPUAnalysis, Verdict
from laggard.detectors.statistics.devices import Grouping
from laggard.detectors.statistics.excursions import Scale, Tails, advance, height
from laggard.detectors.statistics.groups import Noise
from laggard.detectors.statistics.history import AT_TIMES, History

STEP, SMALLEST, BUDGET = math.log(100), math.log(1.05), 1e-4
ZERO = np.zeros(1, np.intp), np.zeros(1, np.intp)  # a clock and a group
Floats = NDArray[np.float32]


def floats(*values: float) -> Floats:
    return np.array(values, np.float32)


def names(devices: int, per_node: int = 4) -> tuple[DeviceId, ...]:
    return tuple((f"node{number // per_node}", str(number % per_node)) for number in range(devices))


def scale(variance: float, lasts: float = 1.0, rounds: float = 64.0, base: float = 0.0) -> Scale:
    history = History.empty(1)
    history.base[:], history.rounds[:] = base, rounds
    return Scale.of(history, floats(variance), floats(lasts), floats(0.0), SMALLEST)


def evidence_of(residuals: list[float], variance: float, lasts: float = 1.0) -> Floats:
    """Return the evidence by clock after these residuals of one device."""
    history, measure = History.empty(1), scale(variance, lasts)
    for before, residual in pairwise([0.0, *residuals]):
        advance(history, floats(residual), floats(before), measure, BUDGET)
    return height(history)[:, 0]


# -- sizes and what a round is worth -----------------------------------------------------------------------------------


def test_in_quiet_readings_the_sizes_are_what_matters_and_four_and_seventeen_times_that() -> None:
    quiet = scale(0.003**2)
    np.testing.assert_allclose(quiet.size[:AT_TIMES, 0], SMALLEST * np.array([1, 4.1, 4.1**2]), rtol=1e-5)
    np.testing.assert_allclose(quiet.step[:AT_TIMES, 0], np.log([100, 410, 1681]), rtol=1e-5)


@pytest.mark.parametrize(
    ("variance", "lasts", "rounds", "smallest"),
    [
        (0.1**2, 1, 64, 0.15),  # one and a half noises
        (0.1**2, 1, 16, 0.2),  # eight errors of a past of 16 rounds
        (0.02**2, 16, 64, 0.08),  # noise that lasts leaves the past as badly known
        (0.02**2, 99, 16, 0.16),  # but never worse than the noise itself
    ],
)
def test_the_smallest_size_is_more_than_noise_and_errors_of_the_past(
    variance: float, lasts: float, rounds: float, smallest: float
) -> None:
    assert scale(variance, lasts, rounds).size[0, 0] == pytest.approx(smallest, rel=1e-5)
    assert scale(variance, lasts, rounds, base=math.nan).size[0, 0] == pytest.approx(
        max(SMALLEST, 1.5 * math.sqrt(variance)), rel=1e-5
    )


def test_a_round_may_be_anything_so_it_is_worth_so_much_and_no_more() -> None:
    assert evidence_of([0.06], 0.003**2)[0] == pytest.approx(STEP)
    assert evidence_of([5.0], 0.003**2)[0] == pytest.approx(STEP)
    assert evidence_of([5.0], 0.003**2)[2] == pytest.approx(
        math.log(4.1**2 * 100)
    )  # an outlier so large is as much rarer
    assert evidence_of([5.0, 0.0], 0.003**2)[0] == 0


def test_evidence_in_white_noise_is_the_log_likelihood_ratio() -> None:
    size, variance = 0.15, 0.1**2
    residuals = [0.14, 0.1, 0.16]
    expected = sum(size * (each - size / 2) / variance for each in residuals)
    assert evidence_of(residuals, variance)[0] == pytest.approx(expected, rel=1e-4)


def test_what_lasts_is_worth_what_it_is_against_the_innovations_of_the_noise() -> None:
    """AR(1) noise of correlation 0.8: a step is seen in its first round; who has been so for long says little."""
    variance, size, kept = 0.02**2, 8 * 0.02 * math.sqrt(9 / 64), 0.8
    innovations = variance * (1 - kept**2)
    slow = (1 - kept) * size
    at_once = size * (0.06 - size / 2) / innovations
    later = slow * ((1 - kept) * 0.06 - slow / 2) / innovations
    step = evidence_of([0.06] * 20, variance, 9.0)[0]
    assert step == pytest.approx(at_once + 19 * later, rel=1e-3)
    creeping = evidence_of([0.003 * number for number in range(1, 21)] + [0.06] * 20, variance, 9.0)[0]
    assert creeping < 40 * later < step


@pytest.mark.parametrize("correlation", [0.0, 0.6, 0.9])
def test_healthy_excursions_are_as_small_as_the_bound_says(correlation: float) -> None:
    """Lundberg: with a known past and noise an excursion reaches h nats with a chance of at most exp(-h)."""
    rng, devices = np.random.default_rng(3), 20_000
    history, one = History.empty(devices), scale(0.1**2)
    lasts = floats((1 + correlation) / (1 - correlation))
    measure = Scale(*(np.repeat(each, devices, axis=-1) for each in (one.variance, lasts, one.size, one.step)))
    peaks, tries = list[float](), 0
    reading = rng.normal(0, 0.1, devices)
    for _ in range(100):
        before = reading
        reading = correlation * before + math.sqrt(1 - correlation**2) * rng.normal(0, 0.1, devices)
        tries += devices  # each round may begin an excursion
        over = advance(history, floats(*reading), floats(*before), measure, BUDGET)
        peaks += history.peak[0, over[0]].tolist()
        history.peak[over] = 0
    for h in (2.0, 4.0, 6.0):
        assert sum(peak >= h for peak in peaks) <= tries * math.exp(-h)


# -- noise -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_how_long_noise_lasts_is_told_from_its_size_and_its_changes(correlation: float) -> None:
    rng, devices = np.random.default_rng(1), 400
    grouping, noise = Grouping(np.zeros(devices, np.int32)), Noise.empty(1)
    noise.set_least(SMALLEST)
    reading = rng.normal(0, 1, devices)
    for _ in range(200):
        last = reading
        reading = correlation * last + math.sqrt(1 - correlation**2) * rng.normal(0, 1, devices)
        noise.add(floats(*0.02 * reading), floats(*0.02 * last), grouping, np.zeros(1, np.bool_))
    assert math.sqrt(float(noise.variance()[0])) == pytest.approx(0.02, rel=0.05)
    assert noise.lasts()[0] == pytest.approx((1 + correlation) / (1 - correlation), rel=0.15)


def test_of_two_devices_the_noise_is_what_changes_and_not_the_fault() -> None:
    noise, grouping = Noise.empty(1), Grouping(np.zeros(2, np.int32))
    for _ in range(50):
        noise.add(floats(0.0, 0.3), floats(0.0, 0.3), grouping, np.zeros(1, np.bool_))
    noise.set_least(SMALLEST)
    assert math.sqrt(float(noise.variance()[0])) == pytest.approx(SMALLEST / 16)


# -- what is learned ---------------------------------------------------------------------------------------------------


def surprise(tails: Tails, steps: float) -> float:
    return float(tails.surprise(ZERO, floats(steps * STEP), floats(STEP))[0])


def ended(*steps: float) -> Tails:
    tails = Tails.empty(1)
    for each in steps:
        tails.learn(ZERO, floats(each * STEP), floats(STEP))
    return tails


def test_before_anything_has_ended_each_step_after_two_is_worth_what_it_says() -> None:
    assert [surprise(Tails.empty(1), steps) for steps in (1.0, 2.0, 3.0, 10.0)] == pytest.approx([0, 0, STEP, 8 * STEP])


def test_one_more_step_is_worth_how_seldom_those_that_ended_made_it() -> None:
    tails = ended(*[3.0] * 10, *[2.0] * 30)  # ten of forty went on
    assert surprise(tails, 3.0) == pytest.approx(-math.log((20 * 0.01 + 10) / (20 + 40)), rel=1e-5)


def test_a_phase_is_excused_as_long_as_phases_were_and_no_longer() -> None:
    tails = ended(*[32.0] * 40)
    within, beyond = surprise(tails, 30.0), surprise(tails, 40.0) - surprise(tails, 35.0)
    assert within / 28 < 0.5 < beyond / 5


def test_a_fault_that_does_not_end_teaches_nothing_and_its_number_raises_the_bar() -> None:
    tails = Tails.empty(2)
    assert tails.number((np.array([0, 0, 1]), np.array([0, 1, 0]))).tolist() == [1, 1, 1]
    assert tails.number((np.array([0, 0]), np.array([0, 0]))).tolist() == [3, 3]
    assert surprise(tails, 5.0) == pytest.approx(3 * STEP)


# -- jobs --------------------------------------------------------------------------------------------------------------


def play(
    slower: Callable[[int, Floats], object],
    rounds: int = 60,
    devices: int = 16,
    noise: float = 0.002,
    **settings: float,
) -> list[tuple[int, Verdict]]:
    rng, analysis = np.random.default_rng(5), SlowGPUAnalysis(**settings)  # type: ignore[arg-type]
    chips, found = np.clip(rng.normal(0, 0.015, devices), -0.03, 0.03), []
    for number in range(rounds):
        readings = chips + noise * rng.standard_normal(devices)
        slower(number, readings)  # type: ignore[arg-type]
        verdicts = analysis.update_arrays(names(devices), np.exp(readings)[:, None], now_s=10.0 * number)
        found += [(number, verdict) for verdict in verdicts]
    return found


def jobs_of(ratio: float) -> float:
    def slower(number: int, readings: Floats) -> None:
        readings[3] += math.log(ratio) * (number >= 20)

    [(_, verdict), *_] = play(slower)
    found = verdict.evidence.found
    return float(getattr(found, "jobs"))  # noqa: B009 - of whatever was found


def test_a_larger_slowdown_is_told_with_more_certainty_or_sooner() -> None:
    def first(ratio: float) -> int:
        def slower(number: int, readings: Floats) -> None:
            readings[3] += math.log(ratio) * (number >= 20)

        return play(slower)[0][0]

    assert first(1.06) >= first(1.3) >= first(3.0)
    assert jobs_of(3.0) > jobs_of(1.06) >= 500


def test_nobody_is_accused_because_faster_devices_join() -> None:
    rng, analysis = np.random.default_rng(2), SlowGPUAnalysis()
    found = []
    for number in range(80):
        devices = names(16 if number < 30 else 56)
        readings = np.where(np.arange(len(devices)) < 16, 0.0, -0.12) + 0.002 * rng.standard_normal(len(devices))
        found += analysis.update_arrays(devices, np.exp(readings)[:, None])
    assert found == []


def test_nobody_is_accused_if_half_of_the_devices_become_faster() -> None:
    def slower(number: int, readings: Floats) -> None:
        readings[:8] -= 0.2 * (number >= 20)

    assert play(slower) == []


def test_one_that_became_slower_is_found_though_all_became_faster() -> None:
    def slower(number: int, readings: Floats) -> None:
        readings[:] -= 0.3 * (number >= 20)
        readings[3] += 0.1 * (number >= 20)

    assert {(verdict.host, verdict.gpu) for _, verdict in play(slower)} == {("node0", "3")}


def test_a_device_that_recovers_is_well_again_as_soon_as_it_was_found() -> None:
    rng, analysis = np.random.default_rng(2), SlowGPUAnalysis()
    slow = []
    for number in range(400):
        readings = 0.002 * rng.standard_normal(16)
        readings[3] += 0.2 * (20 <= number < 320)
        analysis.update_arrays(names(16), np.exp(readings)[:, None], now_s=10.0 * number)
        slow.append(analysis.episode(names(16)[3]) is not None)
    assert slow.index(True) - 20 <= 5
    assert 400 - slow[::-1].index(True) - 320 <= 6


def test_what_a_device_loses_is_counted_from_the_lower_end_of_what_is_known() -> None:
    rng, analysis = np.random.default_rng(4), SlowGPUAnalysis()
    least = []
    for number in range(200):
        readings = 0.08 * rng.standard_normal(16)
        readings[3] += math.log(1.3) * (number >= 100)
        analysis.update_arrays(names(16), np.exp(readings)[:, None])
        episode = analysis.episode(names(16)[3])
        least += [] if episode is None else [1 / (1 - episode.share_lost)]
    assert least[0] < 1.25
    assert least[0] < least[-1] < 1.31


def test_a_devices_own_rare_outliers_do_not_grow_into_noise_that_hides_a_slowdown() -> None:
    rng = np.random.default_rng(6)

    def slower(number: int, readings: Floats) -> None:
        readings += (rng.random(16) < 0.01) * rng.uniform(0.1, 1.5, 16)
        readings[3] += math.log(2) * (number >= 1000)

    found = [number for number, verdict in play(slower, 1020) if verdict.gpu == "3" and number >= 1000]
    assert found
    assert found[0] <= 1010

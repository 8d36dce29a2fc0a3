"""What the detector promises, job by job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from laggard.detectors import SlowGPUAnalysis, Verdict

Seconds = NDArray[np.float64]
Promise = Callable[[], bool]

NAMES = tuple((f"node{number // 4}", str(number % 4)) for number in range(16))
SLOW, ONSET, ROUNDS, JOBS = 6, 12, 26, 6


def healthy(seed: int, repeats: int = 1) -> Seconds:
    rng = np.random.default_rng(seed)
    chips, noise = rng.normal(0, 0.012, (16, 1)), rng.normal(0, 0.002, (ROUNDS, 16, repeats))
    return np.asarray(0.01 * np.exp(chips + noise))


def slowed(seed: int, ratio: float) -> Seconds:
    seconds = healthy(seed)
    seconds[ONSET:, SLOW] *= ratio
    return seconds


def play(seconds: Seconds, **settings: Any) -> list[tuple[int, Verdict]]:
    analysis = SlowGPUAnalysis(**settings)
    return [(number, v) for number, each in enumerate(seconds) for v in analysis.update_arrays(NAMES, each)]


def in_all_jobs(holds: Callable[[int], bool]) -> bool:
    return all(holds(seed) for seed in range(JOBS))


def finds_five_percent_in_five_rounds() -> bool:
    return in_all_jobs(lambda seed: any(number < ONSET + 5 for number, _ in play(slowed(seed, 1.05))))


def accuses_the_slow_device_alone_and_once() -> bool:
    return in_all_jobs(lambda seed: [(v.host, v.gpu) for _, v in play(slowed(seed, 1.2))] == [NAMES[SLOW]])


def finds_a_ramp_by_six_percent() -> bool:
    def holds(seed: int) -> bool:
        seconds = healthy(seed)
        seconds[ONSET:, SLOW] *= (1 + 0.1 * np.arange(1, ROUNDS - ONSET + 1) / 12)[:, None]
        return any(number < ONSET + 8 for number, _ in play(seconds))

    return in_all_jobs(holds)


def sees_through_spikes_of_single_repeats() -> bool:
    def holds(seed: int) -> bool:
        rng, seconds = np.random.default_rng(seed), healthy(seed, repeats=5)
        seconds[ONSET:, SLOW] *= 1.1
        seconds[rng.random(seconds.shape) < 0.2] *= 2
        return [(v.host, v.gpu) for _, v in play(seconds)] == [NAMES[SLOW]]

    return in_all_jobs(holds)


def bears_a_spike_of_a_whole_round() -> bool:
    def holds(seed: int) -> bool:
        seconds = healthy(seed)
        seconds[ONSET, SLOW] *= 100
        return not play(seconds)

    return in_all_jobs(holds)


def bears_what_all_have_in_common() -> bool:
    ramp, step = np.linspace(1, 1.5, ROUNDS), np.where(np.arange(ROUNDS) < ONSET, 1, 1.3)
    return all(
        in_all_jobs(lambda seed, factors=factors: not play(healthy(seed) * factors[:, None, None]))  # type: ignore[misc]
        for factors in (ramp, step)
    )


def keeps_labelled_models_apart() -> bool:
    models = {device: number % 4 == 3 for number, device in enumerate(NAMES)}
    factors = np.array([1 + models[device] for device in NAMES])[:, None]
    return in_all_jobs(lambda seed: not play(healthy(seed) * factors, groups=models))


def merges_a_whole_node() -> bool:
    def holds(seed: int) -> bool:
        seconds = healthy(seed)
        seconds[ONSET:, 4:8] *= 1.2
        return [(v.host, v.gpu) for _, v in play(seconds)] == [("node1", None)]

    return in_all_jobs(holds)


def only_reports_what_does_not_matter() -> bool:
    return in_all_jobs(lambda seed: {v.action for _, v in play(slowed(seed, 1.035))} == {"report"})


def finds_what_is_slow_most_of_the_time_from_the_start() -> bool:
    def holds(seed: int) -> bool:
        rng, seconds = np.random.default_rng(seed), healthy(seed)
        often_fast = rng.random(ROUNDS) < np.where(np.arange(ROUNDS) < ONSET, 0.3, 0)
        seconds[~often_fast, SLOW] *= 16
        accused = [(v.host, v.gpu) for _, v in play(seconds, min_slowdown=1.5) if v.action == "restart"]
        return accused == [NAMES[SLOW]]

    return in_all_jobs(holds)


def excuses_no_device_by_its_own_slowness() -> bool:
    def holds(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        seconds = np.concatenate([healthy(seed), healthy(seed)])
        seconds[8:, SLOW][rng.random(len(seconds) - 8) < 0.7] *= 1.4
        return {(v.host, v.gpu) for _, v in play(seconds) if v.action == "restart"} == {NAMES[SLOW]}

    return all(holds(seed) for seed in range(2 * JOBS))


PROMISES: tuple[Promise, ...] = (
    finds_five_percent_in_five_rounds,
    accuses_the_slow_device_alone_and_once,
    finds_a_ramp_by_six_percent,
    sees_through_spikes_of_single_repeats,
    bears_a_spike_of_a_whole_round,
    bears_what_all_have_in_common,
    keeps_labelled_models_apart,
    merges_a_whole_node,
    only_reports_what_does_not_matter,
    finds_what_is_slow_most_of_the_time_from_the_start,
    excuses_no_device_by_its_own_slowness,
)


@pytest.mark.parametrize("promise", PROMISES)
def test_the_detector_keeps_its_promises(promise: Promise) -> None:
    assert promise()

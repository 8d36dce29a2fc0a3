"""What the detector promises, job by job; and detectors broken on purpose, each of which must break a promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from laggard.detectors import SlowGPUAnalysis, Verdict
from laggard.detectors.statistics import exceedance, false_alarm_budget, new_verdicts, shared_runs, slow_gpu_analysis
from laggard.detectors.statistics.estimates import center_and_spread
from laggard.detectors.statistics.false_alarm_budget import accumulate
from laggard.detectors.statistics.grouping import Grouping
from laggard.detectors.statistics.history import History
from laggard.detectors.statistics.shared_runs import Counted
from laggard.detectors.statistics.thresholds import Thresholds

Seconds = NDArray[np.float64]
Promise = Callable[[], bool]
Breaking = Callable[[pytest.MonkeyPatch], None]

NAMES = tuple((f"node{number // 4}", str(number % 4)) for number in range(16))
SLOW, ONSET, ROUNDS, JOBS = 6, 12, 26, 6


def healthy(seed: int, repeats: int = 1) -> Seconds:
    rng = np.random.default_rng(seed)
    chips, noise = rng.normal(0, 0.012, (16, 1, 1)), rng.normal(0, 0.002, (ROUNDS, 16, 1, repeats))
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
        seconds[ONSET:, SLOW] *= (1 + 0.1 * np.arange(1, ROUNDS - ONSET + 1) / 12)[:, None, None]
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
        in_all_jobs(lambda seed, factors=factors: not play(healthy(seed) * factors[:, None, None, None]))  # type: ignore[misc]
        for factors in (ramp, step)
    )


def keeps_labelled_models_apart() -> bool:
    models = {device: number % 4 == 3 for number, device in enumerate(NAMES)}
    factors = np.array([1 + models[device] for device in NAMES])[:, None, None]
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

    return all(holds(seed) for seed in range(4 * JOBS))


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


def bets_half_as_much(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(false_alarm_budget, "bet_on_one", lambda rate: np.sqrt(0.8 / rate))


def accuses_the_next_one(patch: pytest.MonkeyPatch) -> None:
    right = new_verdicts._verdict_at
    patch.setattr(new_verdicts, "_verdict_at", lambda *about: replace(right(*about), gpu="3"))


def says_it_every_round(patch: pytest.MonkeyPatch) -> None:
    def forgetful(history: History, *rest: Any) -> None:
        note(history, *rest)
        history.reported[:] = 0

    note = History.note_episodes
    patch.setattr(History, "note_episodes", forgetful)


def lets_the_past_follow(patch: pytest.MonkeyPatch) -> None:
    def following(history: History, residual: NDArray[np.float32], level: NDArray[np.float32]) -> NDArray[np.bool_]:
        ready = remember(history, residual, level)
        history.baseline += np.float32(0.5) * residual
        return ready

    remember = History.remember
    patch.setattr(History, "remember", following)


def takes_the_mean_of_repeats(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(slow_gpu_analysis, "log_fastest", lambda repeats: np.log(repeats.mean(axis=0)))


def takes_the_size_for_evidence(patch: pytest.MonkeyPatch) -> None:
    right = accumulate

    def by_size(history: History, exceeds: Any, *rest: Any) -> None:
        right(history, exceeds, *rest)
        history.evidence[0, 1][history.recent.max(axis=0) > 1] = 1e6

    patch.setattr(slow_gpu_analysis, "accumulate", by_size)


def knows_no_common_mode(patch: pytest.MonkeyPatch) -> None:
    right = center_and_spread

    def absolute(values: NDArray[np.float32], groups: Any) -> Any:
        center, spread = right(values, groups)
        return np.where(np.isnan(center), center, np.float32(np.log(0.01) * (abs(center) > 1))), spread

    patch.setattr(exceedance, "center_and_spread", absolute)


def knows_no_groups(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlowGPUAnalysis, "_labelled", lambda _, devices: Grouping(np.zeros(len(devices), np.int32)))


def knows_no_nodes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(new_verdicts, "merged_by_node", lambda findings, *_: list(findings))


def restarts_for_everything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Thresholds, "self_levels", property(lambda _: (0.015, 0.016)))


def takes_any_scatter_for_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(exceedance, "_VERY_NOISY", np.inf)
    patch.setattr(exceedance, "_WHITE", np.inf)


def lets_a_device_excuse_itself(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(false_alarm_budget, "_OWN_CEILING", 0.98)


def lets_a_device_teach_its_group(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shared_runs.SharedRuns, "add", lambda *about: Counted(about[3], about[3], about[5]))


@pytest.mark.parametrize(
    ("break_it", "promise"),
    [
        (bets_half_as_much, finds_five_percent_in_five_rounds),
        (accuses_the_next_one, accuses_the_slow_device_alone_and_once),
        (says_it_every_round, accuses_the_slow_device_alone_and_once),
        (lets_the_past_follow, finds_a_ramp_by_six_percent),
        (takes_the_mean_of_repeats, sees_through_spikes_of_single_repeats),
        (takes_the_size_for_evidence, bears_a_spike_of_a_whole_round),
        (knows_no_common_mode, bears_what_all_have_in_common),
        (knows_no_groups, keeps_labelled_models_apart),
        (knows_no_nodes, merges_a_whole_node),
        (restarts_for_everything, only_reports_what_does_not_matter),
        (takes_any_scatter_for_noise, finds_what_is_slow_most_of_the_time_from_the_start),
        (lets_a_device_excuse_itself, excuses_no_device_by_its_own_slowness),
        (lets_a_device_teach_its_group, excuses_no_device_by_its_own_slowness),
    ],
)
def test_a_detector_that_is_broken_on_purpose_is_caught(
    break_it: Breaking, promise: Promise, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    assert not promise()

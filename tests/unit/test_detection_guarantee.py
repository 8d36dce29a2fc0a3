"""The false-alarm bound, measured; and the measurement, which must catch detectors that break it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import beta

from laggard.detectors import SlowGPUAnalysis
from laggard.detectors.statistics import false_alarm_budget

BUDGET = 0.1
DEVICES, ROUNDS = 8, 60
NAMES = tuple((f"node{number}", "0") for number in range(DEVICES))


def correlated_jobs(seed: int, jobs: int) -> NDArray[np.float64]:
    """Healthy jobs: 1 % noise, 0.56 between neighbours, and 5 % of the rounds hit by a spike of 1.1-3x."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(0, 0.01, (jobs, ROUNDS, DEVICES))
    for number in range(1, ROUNDS):
        noise[:, number] = 0.56 * noise[:, number - 1] + (1 - 0.56**2) ** 0.5 * noise[:, number]
    seconds = np.exp(noise + rng.normal(0, 0.017, (jobs, 1, DEVICES)))
    hit = rng.random(seconds.shape) < 0.05
    return np.where(hit, seconds * rng.uniform(1.1, 3, seconds.shape), seconds)[..., None, None]


def restarted(seconds: NDArray[np.float64]) -> bool:
    analysis = SlowGPUAnalysis(false_alarm_budget=BUDGET)
    return any(v.action == "restart" for one_round in seconds for v in analysis.update_arrays(NAMES, one_round))


def false_share_bounds(seed: int, jobs: int) -> tuple[float, float]:
    """Return exact (Clopper and Pearson) 99 % bounds of the share of jobs with a false restart verdict."""
    count = sum(map(restarted, correlated_jobs(seed, jobs)))
    lower = float(beta.ppf(0.01, count, jobs - count + 1)) if count else 0.0
    return lower, float(beta.ppf(0.99, count + 1, jobs - count)) if count < jobs else 1.0


def share_found(seed: int) -> float:
    seconds = correlated_jobs(seed, 20)
    seconds[:, 30:, 3] *= 1.3
    return float(np.mean([restarted(job) for job in seconds]))


def test_the_share_of_healthy_jobs_with_a_false_restart_is_surely_within_the_budget() -> None:
    assert false_share_bounds(1, 120)[1] <= BUDGET


def test_the_same_detector_finds_what_is_slow() -> None:
    assert share_found(2) == 1.0


def broken_spending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(false_alarm_budget, "onset_weight", lambda _: 1.0)


def broken_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(false_alarm_budget, "_RATE_CEILING", 0.005)


def broken_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(false_alarm_budget, "bet_on_none", np.ones_like)  # a healthy round costs nothing


@pytest.mark.parametrize("break_it", [broken_spending, broken_rates, broken_memory])
def test_a_detector_that_overspends_is_caught(break_it: object, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it(monkeypatch)  # type: ignore[operator]
    assert false_share_bounds(1, 40)[0] > BUDGET


def test_a_detector_that_never_reports_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(false_alarm_budget, "bet_on_one", lambda rate: np.full_like(rate, 0.5))
    assert share_found(2) == 0.0

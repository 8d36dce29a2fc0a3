"""The false-alarm bound, measured."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import beta

from laggard.detectors import SlowGPUAnalysis

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
    return np.where(hit, seconds * rng.uniform(1.1, 3, seconds.shape), seconds)[..., None]


def restarted(seconds: NDArray[np.float64]) -> bool:
    analysis = SlowGPUAnalysis(false_alarm_budget=BUDGET)
    return any(v.action == "restart" for one_round in seconds for v in analysis.update_arrays(NAMES, one_round))


def largest_false_share(seed: int, jobs: int) -> float:
    """Return an exact (Clopper and Pearson) 99 % bound of the share of jobs with a false restart verdict."""
    count = sum(map(restarted, correlated_jobs(seed, jobs)))
    return float(beta.ppf(0.99, count + 1, jobs - count)) if count < jobs else 1.0


def share_found(seed: int) -> float:
    seconds = correlated_jobs(seed, 20)
    seconds[:, 30:, 3] *= 1.3
    return float(np.mean([restarted(job) for job in seconds]))


@pytest.mark.timeout(900)
def test_the_share_of_healthy_jobs_with_a_false_restart_is_surely_within_the_budget() -> None:
    assert largest_false_share(1, 400) <= BUDGET


def test_the_same_detector_finds_what_is_slow() -> None:
    assert share_found(2) == 1.0

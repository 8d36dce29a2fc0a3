"""The best that a test can do in independent normal noise of a known size: how soon a slow device can be found.

Two derivations. A CUSUM of the log likelihood ratio that knows the noise, each device's past and the size of the
slowdown, calibrated so that a healthy job has an alarm with a chance of the budget (Siegmund's approximation of how
often it exceeds its bar). And a Bayes factor that must learn the past as well: a flat prior on it, all onsets and
devices as likely, and Ville's bound.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["bayes_factor", "cusum"]

Rounds = NDArray[np.float64]
_OVERSHOOT = 0.583  # Siegmund, "Sequential Analysis", 1985: the mean excess over a bar, in standard deviations


def cusum(slow: Rounds, onset: int, size: float, noise: float, devices: int, rounds: int, budget: float) -> Rounds:
    """Return after how many rounds each job's slow device is found, given its residuals ``(n_jobs, n_rounds)``."""
    drift = (size / noise) ** 2 / 2
    rate = drift * np.exp(-2 * _OVERSHOOT * size / noise)
    bar = np.log(devices * rounds * rate / budget)
    total, found = np.zeros(len(slow)), np.full(len(slow), np.inf)
    for number, residuals in enumerate(slow.T):
        total = np.maximum(0, total + size * (residuals - size / 2) / noise**2)
        found = np.where((total >= bar) & np.isinf(found) & (number >= onset), number - onset + 1, found)
    return found


def bayes_factor(
    slow: Rounds, onset: int, size: float, noise: float, devices: int, rounds: int, budget: float
) -> Rounds:
    """Return the same for a test that must learn the past."""
    sums = np.cumsum(slow, axis=1)
    found = np.full(len(slow), np.inf)
    for now in range(onset, slow.shape[1]):
        before = np.arange(1, now + 1)  # rounds until the change
        after = now + 1 - before
        shift = (sums[:, [now]] - sums[:, :now]) / after - sums[:, :now] / before
        weight = before * after / (before + after) / noise**2
        odds = size * weight * shift - size**2 / 2 * weight
        total = np.logaddexp.reduce(odds, axis=1) - np.log(rounds * devices)
        found = np.where((total >= -np.log(budget)) & np.isinf(found), now - onset + 1.0, found)
    return found

"""Baseline: what a device usually reads and how much that varies, from its first eight rounds. Pure functions."""

from __future__ import annotations

import numpy as np

from laggard.detectors.statistics.estimates import Floats, median_and_deviation

_STEPS = (3, 4, 5)  # rounds before a step that a median of eight does not see, or takes for noise
_RANGES = 2.0  # a step must exceed so many times the range of the rounds before and after it
# Expected range of so many standard normal samples.
_RANGE_TO_NOISE = {3: 1.693, 4: 2.059, 5: 2.326}


def usual_and_noise(window: Floats) -> tuple[Floats, Floats]:
    """Return the median of each device's first eight rounds, and the standard deviation from round to round."""
    # If a device became slower or faster for good in the middle of them, both would be wrong: the median would lie
    # between what it read before and after, and the step would be taken for noise, so that no later reading could ever
    # exceed a limit. So the noise is that of the faster rounds, and if these are half of all, the median is theirs too.
    usual, noise = median_and_deviation(window)
    for before in _STEPS:
        _correct(before, window, usual, noise)
    return usual, noise


def _correct(before: int, rounds: Floats, usual: Floats, noise: Floats) -> None:
    """Correct the median and the noise of the devices that have a clear step after so many rounds."""
    # The step must exceed twice the range of either part. The slowest round of the slower part does not count: it may
    # be disturbed as well.
    parts = np.sort(rounds[:before], axis=0), np.sort(rounds[before:], axis=0)
    for faster, slower in (parts, parts[::-1]):
        spread = faster[-1] - faster[0]
        stepped = slower[0] - faster[-1] > _RANGES * np.maximum(spread, slower[-2] - slower[0])
        noise[stepped] = spread[stepped] / np.float32(_RANGE_TO_NOISE[len(faster)])
        if len(faster) == len(slower):
            usual[stepped] = (faster[1:-1, stepped]).mean(axis=0)

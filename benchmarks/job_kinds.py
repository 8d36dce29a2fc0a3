"""Healthy jobs of many kinds, simulated side by side: what a device reads when nothing is wrong with it.

Rounds are 3 s apart. Each kind yields one round after another, log seconds of shape ``(n_jobs, n_devices)``, without
end. Chips differ by 1.7 %, at most 4.5 % (one that is slower still would rightly be accused); a reading's own noise is
0.2 % unless the kind says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

__all__ = ["DEPENDENT", "INTERMITTENT", "PHASES", "Job", "LogSeconds", "noisy", "quiet", "unsteady"]

LogSeconds = NDArray[np.float64]
Slower = Callable[[int, np.random.Generator, int], float | LogSeconds]
Job = Callable[[np.random.Generator, int, int], Iterator[LogSeconds]]

_CHIPS, _WORST_CHIP, _NOISE = 0.017, 0.045, 0.002
_HIT = (0.1, 0.4)  # a hit's or slow run's size in log seconds: 1.1 to 1.5 times as slow
_BEGINS = 0.005  # how often a slow run begins, per device and round


def _chips(rng: np.random.Generator, jobs: int, size: int) -> LogSeconds:
    return np.clip(rng.normal(0, _CHIPS, (jobs, size)), -_WORST_CHIP, _WORST_CHIP)


def quiet(rng: np.random.Generator, jobs: int, size: int) -> Iterator[LogSeconds]:
    """Independent noise of 0.2 %."""
    chips = _chips(rng, jobs, size)
    while True:
        yield chips + _NOISE * rng.standard_normal((jobs, size))


def _wandering(rng: np.random.Generator, jobs: int, size: int, *, correlation: float) -> Iterator[LogSeconds]:
    """AR(1) noise of 2 %."""
    chips, noise = _chips(rng, jobs, size), rng.standard_normal((jobs, size))
    while True:
        noise = correlation * noise + (1 - correlation**2) ** 0.5 * rng.standard_normal((jobs, size))
        yield chips + 0.02 * noise


def _runs(rng: np.random.Generator, jobs: int, size: int, *, mean: float) -> Iterator[LogSeconds]:
    """Each device is at times slower for several rounds on end, of geometric length."""
    slower = np.zeros((jobs, size))
    for readings in quiet(rng, jobs, size):
        slower[rng.random(slower.shape) < 1 / mean] = 0
        begins = (slower == 0) & (rng.random(slower.shape) < _BEGINS)
        slower[begins] = rng.uniform(*_HIT, np.count_nonzero(begins))
        yield readings + slower


def _late_noise(rng: np.random.Generator, jobs: int, size: int) -> Iterator[LogSeconds]:
    """One device's noise becomes 10 % after 300 quiet rounds."""
    for number, readings in enumerate(quiet(rng, jobs, size)):
        if number >= 300:
            readings[:, 0] += 0.1 * rng.standard_normal(jobs)
        yield readings


def _hits(rng: np.random.Generator, jobs: int, size: int, *, share: float) -> Iterator[LogSeconds]:
    """One device is hit in this share of all rounds."""
    for readings in quiet(rng, jobs, size):
        readings[:, 0] += (rng.random(jobs) < share) * rng.uniform(*_HIT, jobs)
        yield readings


def _all_hit(rng: np.random.Generator, jobs: int, size: int, *, share: float) -> Iterator[LogSeconds]:
    """Each device is hit in this share of all rounds."""
    for readings in quiet(rng, jobs, size):
        yield readings + (rng.random(readings.shape) < share) * rng.uniform(*_HIT, readings.shape)


def _bimodal(rng: np.random.Generator, jobs: int, size: int, *, changes: float) -> Iterator[LogSeconds]:
    """Each device reads one of two values, 8 % apart, and changes with this probability from round to round."""
    slower = rng.random((jobs, size)) < 0.5
    for readings in quiet(rng, jobs, size):
        slower ^= rng.random(slower.shape) < changes
        yield readings + 0.08 * slower


DEPENDENT: dict[str, Job] = {
    "independent noise of 0.2 %": quiet,
    "AR(1) noise of 2 %, correlation 0.9": partial(_wandering, correlation=0.9),
    "AR(1) noise of 2 %, correlation 0.98": partial(_wandering, correlation=0.98),
    "slow runs of 2 rounds on average": partial(_runs, mean=2),
    "slow runs of 3 rounds on average": partial(_runs, mean=3),
    "slow runs of 10 rounds on average": partial(_runs, mean=10),
    "one device with 10 % noise from round 300 on": _late_noise,
    "each device hit in 20 % of all rounds": partial(_all_hit, share=0.2),
    "each device hit in 40 % of all rounds": partial(_all_hit, share=0.4),
    "one device hit in 20 % of all rounds": partial(_hits, share=0.2),
    "one device hit in 40 % of all rounds": partial(_hits, share=0.4),
    "two values 8 % apart, each round anew": partial(_bimodal, changes=0.5),
    "two values 8 % apart, 10 rounds on end": partial(_bimodal, changes=0.1),
}


def noisy(
    rng: np.random.Generator, jobs: int, size: int, *, draw: Callable[[tuple[int, int]], LogSeconds]
) -> Iterator[LogSeconds]:
    """Independent readings with the noise that ``draw`` returns for a shape."""
    chips = _chips(rng, jobs, size)
    while True:
        yield chips + draw((jobs, size))


def _pattern(
    rng: np.random.Generator,
    jobs: int,
    size: int,
    *,
    slower: Slower,
    devices: slice = slice(1),
) -> Iterator[LogSeconds]:
    """Slow some devices down by what ``slower`` returns for a round's number, in log seconds."""
    for number, readings in enumerate(quiet(rng, jobs, size)):
        readings[:, devices] += np.reshape(slower(number, rng, jobs), (-1, 1))
        yield readings


def _at_random(share: float, ratio: float) -> Slower:
    return lambda number, rng, jobs: np.log(ratio) * (rng.random(jobs) < share * (number >= 16))


def _every(rounds: int, lasts: int, ratio: float) -> Slower:
    return lambda number, *_: float(np.log(ratio)) * (number >= 16 and number % rounds < lasts)


def _once(begins: int, lasts: int, ratio: float) -> Slower:
    return lambda number, *_: float(np.log(ratio)) * (begins <= number < begins + lasts)


INTERMITTENT: dict[str, Job] = {
    "20 % slower in a fifth of the rounds, at random": partial(_pattern, slower=_at_random(0.2, 1.2)),
    "50 % slower in 3 of 20 rounds, at random": partial(_pattern, slower=_at_random(0.15, 1.5)),
    "50 % slower in 3 rounds on end of every 20": partial(_pattern, slower=_every(20, 3, 1.5)),
    "50 % slower in every sixth round": partial(_pattern, slower=_every(6, 1, 1.5)),
}


def unsteady(
    rng: np.random.Generator, jobs: int, size: int, *, shares: LogSeconds, ratio: float, onset: int
) -> Iterator[LogSeconds]:
    """Slow the last device down in a share of its rounds, from a round on: each job has its share.

    A third of the jobs is slow at random, a third in runs of three rounds on average, a third in a rhythm of ten.
    """
    kinds, phases = np.arange(jobs) % 3, rng.integers(10, size=jobs)
    goes_on = np.where(kinds == 0, shares, np.where(shares < 1, 2 / 3, 1))
    begins = np.where(kinds == 0, shares, np.minimum(1, shares / (3 * np.maximum(1 - shares, 1e-9))))
    slow = rng.random(jobs) < shares
    for number, readings in enumerate(quiet(rng, jobs, size)):
        if number >= onset:
            in_rhythm = (number + phases) % 10 < np.round(10 * shares)
            readings[:, -1] += np.log(ratio) * np.where(kinds == 2, in_rhythm, slow)
            slow = rng.random(jobs) < np.where(slow, goes_on, begins)
        yield readings


_NODE = slice(4)
PHASES: dict[str, Job] = {
    "a checkpoint of 20 s every 10 minutes, one node 8 % slower": partial(
        _pattern, slower=_every(200, 7, 1.08), devices=_NODE
    ),
    "a checkpoint of 20 s every 10 minutes, one node 20 % slower": partial(
        _pattern, slower=_every(200, 7, 1.2), devices=_NODE
    ),
    "an evaluation of 30 s every 10 minutes, one device 15 % slower": partial(_pattern, slower=_every(200, 10, 1.15)),
    "one blip of 15 s, one device 10 % slower": partial(_pattern, slower=_once(100, 5, 1.1)),
    "one node 6 % faster in the first eight rounds (idle)": partial(
        _pattern, slower=lambda number, *_: -0.06 * (number < 8), devices=_NODE
    ),
    "one node warms up by 6 % in its first 100 rounds": partial(
        _pattern, slower=lambda number, *_: 0.06 * float(np.minimum(number / 100, 1)), devices=_NODE
    ),
}

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

__all__ = [
    "DEPENDENT",
    "DISTURBED",
    "INDEPENDENT",
    "INTERMITTENT",
    "WORST_CHIP",
    "Job",
    "LogSeconds",
    "day",
    "noisy",
    "quiet",
]

LogSeconds = NDArray[np.float64]
Slower = Callable[[int, np.random.Generator, int], float | LogSeconds]
Job = Callable[[np.random.Generator, int, int], Iterator[LogSeconds]]

_CHIPS, WORST_CHIP, _NOISE = 0.017, 0.045, 0.002
_HIT = (0.1, 0.4)  # a hit's or slow run's size in log seconds: 1.1 to 1.5 times as slow
_TENTH = (float(np.log(1.1)), float(np.log(1.1)))
_BEGINS = 0.005  # how often a slow run begins, per device and round


def _chips(rng: np.random.Generator, jobs: int, size: int) -> LogSeconds:
    return np.clip(rng.normal(0, _CHIPS, (jobs, size)), -WORST_CHIP, WORST_CHIP)


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


def _runs(
    rng: np.random.Generator, jobs: int, size: int, *, mean: float, slow: tuple[float, float]
) -> Iterator[LogSeconds]:
    """Each device is at times slower, by log seconds in a range, for several rounds on end, of geometric length."""
    slower = np.zeros((jobs, size))
    for readings in quiet(rng, jobs, size):
        slower[rng.random(slower.shape) < 1 / mean] = 0
        begins = (slower == 0) & (rng.random(slower.shape) < _BEGINS)
        slower[begins] = rng.uniform(*slow, np.count_nonzero(begins))
        yield readings + slower


def _hits(rng: np.random.Generator, jobs: int, size: int, *, share: float) -> Iterator[LogSeconds]:
    """One device is hit in this share of all rounds."""
    for readings in quiet(rng, jobs, size):
        readings[:, 0] += (rng.random(jobs) < share) * rng.uniform(*_HIT, jobs)
        yield readings


def _all_hit(rng: np.random.Generator, jobs: int, size: int, *, share: float) -> Iterator[LogSeconds]:
    """Each device is hit in this share of all rounds."""
    for readings in quiet(rng, jobs, size):
        yield readings + (rng.random(readings.shape) < share) * rng.uniform(*_HIT, readings.shape)


def _normal(rng: np.random.Generator, jobs: int, size: int, *, noise: float) -> Iterator[LogSeconds]:
    return noisy(rng, jobs, size, draw=lambda shape: rng.normal(0, noise, shape))


def _student(rng: np.random.Generator, jobs: int, size: int, *, noise: float) -> Iterator[LogSeconds]:
    return noisy(rng, jobs, size, draw=lambda shape: noise * rng.standard_t(3, shape) / 3**0.5)


def _quarter(rng: np.random.Generator, jobs: int, size: int) -> Iterator[LogSeconds]:
    """Noise of 1 %, and of 3 % for a quarter of the devices."""
    return noisy(
        rng, jobs, size, draw=lambda shape: np.where(np.arange(size) < size // 4, 0.03, 0.01) * rng.normal(0, 1, shape)
    )


def _walk(rng: np.random.Generator, jobs: int, size: int) -> Iterator[LogSeconds]:
    """Each device wanders off, by 2 % in 200 rounds."""
    walk = np.zeros((jobs, size))
    for readings in quiet(rng, jobs, size):
        walk += 0.02 / 200**0.5 * rng.standard_normal(walk.shape)
        yield readings + walk


def _jump(rng: np.random.Generator, jobs: int, size: int) -> Iterator[LogSeconds]:
    """Noise of all devices that jumps from 0.5 to 3 % in round 100."""
    for number, readings in enumerate(quiet(rng, jobs, size)):
        yield readings + (0.005 if number < 100 else 0.03) * rng.standard_normal(readings.shape)


INDEPENDENT: dict[str, Job] = {
    "normal, 0.5 %": partial(_normal, noise=0.005),
    "normal, 5 %": partial(_normal, noise=0.05),
    "normal, 8 %": partial(_normal, noise=0.08),
    "normal, 10 %": partial(_normal, noise=0.1),
    "heavy tails, 8 %": partial(_student, noise=0.08),
}
DEPENDENT: dict[str, Job] = {
    "a quarter of the devices three times as noisy": _quarter,
    "AR(1) of 2 %, correlation 0.56": partial(_wandering, correlation=0.56),
    "AR(1) of 2 %, correlation 0.9": partial(_wandering, correlation=0.9),
    "AR(1) of 2 %, correlation 0.98": partial(_wandering, correlation=0.98),
    "a random walk of 2 % in 200 rounds": _walk,
    "noise that jumps from 0.5 to 3 %": _jump,
    "runs of 2 rounds on average, 10 % slow": partial(_runs, mean=2, slow=_TENTH),
    "runs of 3 rounds on average, 10 % slow": partial(_runs, mean=3, slow=_TENTH),
    "runs of 10 rounds on average, 10 % slow": partial(_runs, mean=10, slow=_TENTH),
    "runs of 3 rounds on average, 10 to 50 % slow": partial(_runs, mean=3, slow=_HIT),
    "runs of 10 rounds on average, 10 to 50 % slow": partial(_runs, mean=10, slow=_HIT),
    "each device hit in 20 % of all rounds": partial(_all_hit, share=0.2),
    "one device hit in 40 % of all rounds": partial(_hits, share=0.4),
}


def day(
    rng: np.random.Generator,
    jobs: int,
    size: int,
    *,
    phases: bool = True,
    together: bool = False,
    bursts: bool = True,
    correlation: float = 0.0,
    noise: float = 0.004,
) -> Iterator[LogSeconds]:
    """Undeclared phases, bursts of a neighbour, 1 % outliers, perhaps noise that lasts.

    A checkpoint of 21 s every 10 min makes a node 20 % slower, an evaluation of 90 s every 30 min one device 15 %, or
    all devices if they have their phases together.
    A burst begins once in 2,000 rounds of a device, lasts three rounds on average, and is 10 to 50 % slow.
    """
    chips, lasting, burst = _chips(rng, jobs, size), rng.standard_normal((jobs, size)), np.zeros((jobs, size))
    checkpoint, evaluation = rng.integers(200, size=jobs), rng.integers(600, size=jobs)
    number = 0
    while True:
        lasting = correlation * lasting + (1 - correlation**2) ** 0.5 * rng.standard_normal((jobs, size))
        readings = chips + noise * lasting
        if phases:
            node, device = (slice(None), slice(None)) if together else (slice(4), slice(4, 5))
            readings[:, node] += (np.log(1.2) * ((number + checkpoint) % 200 < 7))[:, None]
            readings[:, device] += (np.log(1.15) * ((number + evaluation) % 600 < 30))[:, None]
        if bursts:
            burst[rng.random(burst.shape) < 1 / 3] = 0
            begins = (burst == 0) & (rng.random(burst.shape) < 1 / 2000)
            burst[begins] = rng.uniform(*_HIT, np.count_nonzero(begins))
            outlier = rng.random(burst.shape) < 0.01
            readings += burst + outlier * rng.uniform(0.1, 1.5, burst.shape)
        yield readings
        number += 1


DISTURBED: dict[str, Job] = {
    "phases": partial(day, bursts=False),
    "bursts and outliers": partial(day, phases=False),
    "phases, bursts and outliers": day,
    "the same, and AR(1) of 1 %, correlation 0.9": partial(day, correlation=0.9, noise=0.01),
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


INTERMITTENT: dict[str, Job] = {
    "20 % slower in a fifth of the rounds, at random": partial(_pattern, slower=_at_random(0.2, 1.2)),
    "50 % slower in 3 of 20 rounds, at random": partial(_pattern, slower=_at_random(0.15, 1.5)),
    "50 % slower in 3 rounds on end of every 20": partial(_pattern, slower=_every(20, 3, 1.5)),
    "50 % slower in every sixth round": partial(_pattern, slower=_every(6, 1, 1.5)),
    "40 % slower in 70 % of the rounds, at random": partial(_pattern, slower=_at_random(0.7, 1.4)),
}

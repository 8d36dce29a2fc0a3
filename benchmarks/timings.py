"""Real GPU timings, and jobs drawn from them.

The data is public: V100s of the Longhorn cluster, measured for "Not All GPUs Are Created Equal" (SC'22), in the PAL
artifact (GitHub hal-uw/blox-pal, commit da726cab, ``aggregated_data/sim``).
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from laggard.collectors.device import DeviceId

__all__ = ["Seconds", "device_names", "healthy_series", "long_run", "series_job", "windows"]

Seconds = NDArray[np.float64]

_SWING = 0.05  # a GPU whose own runs differ by more is not healthy
_BLOCK = 8


def healthy_series(path: Path, column: str, shortest: int, swing: float = _SWING) -> list[Seconds]:
    """Read each GPU's seconds in time order; exclude short series and GPUs whose runs differ by more than ``swing``."""
    series: dict[str, list[tuple[int, float]]] = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            series[row["uuid"]].append((int(row["ts_s"]), float(row[column]) / 1000))
    ordered = [np.array([seconds for _, seconds in sorted(runs)]) for runs in series.values()]
    return [runs for runs in ordered if len(runs) >= shortest and np.ptp(np.log(runs)) < swing]


def device_names(devices: int, per_node: int = 4) -> tuple[DeviceId, ...]:
    """Name devices, ``per_node`` on each node."""
    return tuple((f"node{number // per_node}", str(number % per_node)) for number in range(devices))


def windows(rng: np.random.Generator, pool: list[Seconds], devices: int, samples: int) -> Seconds:
    """Draw devices with this number of consecutive real samples each, ``(n_devices, n_samples)``."""
    found = np.empty((devices, samples))
    for row, number in enumerate(rng.choice(len(pool), devices, replace=devices > len(pool))):
        start = rng.integers(len(pool[number]) - samples + 1)
        found[row] = pool[number][start : start + samples]
    return found


def series_job(rng: np.random.Generator, pool: list[Seconds], devices: int, rounds: int) -> Seconds:
    """Draw a job from consecutive real samples, ``(n_rounds, n_devices, 1 repeat)``."""
    return windows(rng, pool, devices, rounds).T[:, :, None]


def long_run(
    rng: np.random.Generator, pool: list[Seconds], devices: int, rounds: int, repeats: int, spikes: float
) -> Seconds:
    """Draw a long job: chips that differ as much as real ones, real residuals in blocks of eight, spikes of 1.1 to 3x.

    Consecutive readings stay together, so that the noise keeps its correlation. The repeats of a round share its
    residual, but each has its own spikes. Shape ``(n_rounds, n_devices, n_repeats)``.
    """
    chips = np.log([np.median(series) for series in pool])
    residuals = [np.log(series / np.median(series)) for series in pool if len(series) >= _BLOCK]
    logs = np.empty((rounds + _BLOCK, devices))
    for device in range(devices):
        for start in range(0, rounds, _BLOCK):
            own = residuals[rng.integers(len(residuals))]
            first = rng.integers(len(own) - _BLOCK + 1)
            logs[start : start + _BLOCK, device] = own[first : first + _BLOCK]
    seconds: Seconds = np.exp(logs[:rounds] + rng.choice(chips, devices))[:, :, None]
    shape = (rounds, devices, repeats)
    return np.where(rng.random(shape) < spikes, rng.uniform(1.1, 3, shape), 1) * seconds

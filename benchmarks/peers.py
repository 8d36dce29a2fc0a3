"""Other tools' rules for slow GPUs, reimplemented from their public sources as functions of a window of readings.

A rule takes seconds of shape ``(n_devices, n_samples)`` and returns a mask of flagged devices, ``(n_devices,)``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["RULES", "Rule"]

Seconds = NDArray[np.float64]
Rule = Callable[[Seconds], NDArray[np.bool_]]


def dragon(seconds: Seconds) -> NDArray[np.bool_]:
    """Flag devices whose mean lies 2.5 standard deviations of the pooled window above its mean (Dragon)."""
    spread = seconds.std()
    if spread < 1e-9:
        return np.zeros(len(seconds), np.bool_)
    return np.asarray((seconds.mean(axis=1) - seconds.mean()) / spread > 2.5)


def nvrx(seconds: Seconds) -> NDArray[np.bool_]:
    """Flag devices whose score relative to the fastest rank is under 0.75 (NVIDIA resiliency extension)."""
    medians = np.median(seconds, axis=1)
    return np.asarray(medians.min() / medians < 0.75)


def dlrover(seconds: Seconds) -> NDArray[np.bool_]:
    """Flag devices whose fastest round takes over twice the median (DLRover node check)."""
    fastest = seconds.min(axis=1)
    return np.asarray(fastest > 2 * np.median(fastest))


def megatron(seconds: Seconds) -> NDArray[np.bool_]:
    """Flag devices whose mean exceeds the median by one MAD and by 10 % (Megatron-LM sniff test, slow side only)."""
    means = seconds.mean(axis=1)
    median = np.median(means)
    mad = np.median(np.abs(means - median))
    return np.asarray(means - median > max(mad, 0.1 * median))


def superbench(seconds: Seconds) -> NDArray[np.bool_]:
    """Flag devices that are 5 % above the mean of the unflagged ones (SuperBench's baseline rule)."""
    means = seconds.mean(axis=1)
    flagged = np.zeros(len(means), np.bool_)
    for _ in range(len(means)):
        now = means > 1.05 * means[~flagged].mean()
        if (now == flagged).all() or now.all():
            break
        flagged = now
    return flagged


def greyhound(seconds: Seconds) -> NDArray[np.bool_]:
    """Flag devices that are 10 % above the median (Greyhound's localisation)."""
    means = seconds.mean(axis=1)
    return np.asarray(means > 1.1 * np.median(means))


def mad_score(seconds: Seconds) -> NDArray[np.bool_]:
    """Flag devices whose modified z-score is over 3.5 (Iglewicz and Hoaglin 1993)."""
    means = seconds.mean(axis=1)
    offsets = means - np.median(means)
    return np.asarray(0.6745 * offsets > 3.5 * np.median(np.abs(offsets)))


RULES: dict[str, Rule] = {
    "Dragon z > 2.5": dragon,
    "NVRx score < 0.75": nvrx,
    "DLRover 2 x median": dlrover,
    "Megatron max(MAD, 10 %)": megatron,
    "SuperBench 5 %": superbench,
    "Greyhound 1.1 x median": greyhound,
    "MAD z > 3.5": mad_score,
}

"""What the detector remembers of each device: a few arrays with one row a device, saved and restored as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.statistics import Floats

__all__ = ["PEER", "REPORT", "RESTART", "SELF", "WARM_UP", "History"]

WARM_UP = 8  # rounds that make a device's own reference; also how many residuals are kept
SELF, PEER = 0, 1  # the two tests: against a device's own past, against its peers
REPORT, RESTART = 0, 1  # the two levels of effect that each test looks for


# Name: type, fill, one column a probe?, further axes.
_LAYOUT: dict[str, tuple[type[np.generic], float, bool, tuple[int, ...]]] = {
    "baseline": (np.float32, np.nan, True, ()),
    "common": (np.float32, 0, True, ()),
    "noise": (np.float32, np.nan, True, ()),
    "recent": (np.float32, np.nan, True, (WARM_UP,)),
    "evidence": (np.float32, 0, True, (2, 2)),
    "run": (np.uint8, 0, True, (2, 2)),
    "runs": (np.uint16, 0, True, (2, 2)),
    "seen": (np.uint16, 0, True, ()),
    "since_s": (np.float64, np.nan, False, ()),
    "rounds": (np.uint32, 0, False, ()),
    "told": (np.uint8, 0, False, ()),
    "bad_readings": (np.uint32, 0, False, ()),
}


@dataclass
class History:
    """One row a device, one column a probe; further axes last.

    Attributes
    ----------
    baseline
        Log of a device's usual time over its group's, ``NaN`` until learned.
    common
        The group's common mode while the baseline was learned, in log seconds.
    noise
        Standard deviation of log time from round to round.
    recent
        Ring of the last eight residuals (while learning: of the eight that make the baseline).
    evidence
        Weighted evidence, last axes ``(test, level)``.
    run
        Rounds of the present run of exceedances, last axes ``(test, level)``.
    runs
        Runs of exceedances that ended by themselves, last axes ``(test, level)``: this device's own noise.
    seen
        Good rounds so far (saturates).
    since_s, rounds
        When the present episode began, and how many rounds ago.
    told
        Rank of the worst verdict already given in this episode.
    bad_readings
        Readings that were zero, negative or infinite.
    """

    baseline: Floats
    common: Floats
    noise: Floats
    recent: Floats
    evidence: Floats
    run: NDArray[np.uint8]
    runs: NDArray[np.uint16]
    seen: NDArray[np.uint16]
    since_s: NDArray[np.float64]
    rounds: NDArray[np.uint32]
    told: NDArray[np.uint8]
    bad_readings: NDArray[np.uint32]

    @classmethod
    def empty(cls, devices: int, probes: int) -> History:
        """Return the history of devices of which nothing is known."""
        arrays = {
            name: np.full((devices, probes, *more) if per_probe else (devices,), fill, dtype)
            for name, (dtype, fill, per_probe, more) in _LAYOUT.items()
        }
        return cls(**arrays)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays().values())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        return {name: getattr(self, name) for name in _LAYOUT}

    def take(self, rows: NDArray[np.intp]) -> History:
        """Return a copy with these rows, in this order."""
        return History(**{name: array[rows] for name, array in self.arrays().items()})

    def extended(self, devices: int, probes: int) -> History:
        """Return a copy with room for more devices and probes, of which nothing is known yet."""
        bigger = History.empty(devices, probes)
        for name, array in self.arrays().items():
            getattr(bigger, name)[tuple(slice(size) for size in array.shape[:2])] = array
        return bigger

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> History:
        """Read back what :meth:`arrays` gave, from arrays or nested lists."""
        return cls(**{name: np.array(arrays[name], layout[0]) for name, layout in _LAYOUT.items()})

    def forget_run(self) -> None:
        """Drop the evidence and verdicts of a run, keep what is known of the devices."""
        blank = History.empty(len(self.told), self.baseline.shape[1])
        for name in ("evidence", "run", "runs", "since_s", "rounds", "told", "bad_readings"):
            setattr(self, name, getattr(blank, name))

"""What the detector remembers of each device: a few arrays, saved and restored as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.statistics import Floats, median_and_deviation

__all__ = ["PEER", "REPORT", "RESTART", "SELF", "WARM_UP", "History"]

WARM_UP = 8  # rounds that make a device's own reference; also how many residuals are kept
SELF, PEER = 0, 1  # the two tests: against a device's own past, against its peers
REPORT, RESTART = 0, 1  # the two levels of effect that each test looks for

# Name: type, fill, one row a probe?, leading axes.
_LAYOUT: dict[str, tuple[type[np.generic], float, bool, tuple[int, ...]]] = {
    "baseline": (np.float32, np.nan, True, ()),
    "common": (np.float32, 0, True, ()),
    "noise": (np.float32, np.nan, True, ()),
    "recent": (np.float32, 0, True, (WARM_UP,)),
    "evidence": (np.float32, 0, True, (2, 2)),
    "run": (np.uint8, 0, True, (2, 2)),
    "runs": (np.uint16, 0, True, (2, 2)),
    "seen": (np.uint16, 0, True, ()),
    "since_s": (np.float64, np.nan, False, ()),
    "rounds": (np.uint32, 0, False, ()),
    "told": (np.uint8, 0, False, ()),
    "bad_readings": (np.uint32, 0, False, ()),
}
_OF_ONE_RUN = ("evidence", "run", "since_s", "rounds", "told", "bad_readings")


@dataclass
class History:
    """Arrays whose last axis is the device and whose axis before, if any, the probe.

    Attributes
    ----------
    baseline
        Log of a device's usual time over its group's, ``NaN`` until learned.
    common
        The group's common mode while the baseline was learned, in log seconds.
    noise
        Standard deviation of log time from round to round.
    recent
        Ring of the last eight residuals (while learning: of the eight that make the baseline), first axis the place.
    evidence
        Weighted evidence, first axes ``(test, level)``.
    run
        Rounds of the present run of exceedances (saturates), first axes ``(test, level)``.
    runs
        Runs of exceedances that ended by themselves, this device's own noise, first axes ``(test, level)``.
    seen
        Good rounds so far; halved, with ``runs``, when they are 65,535.
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
        return cls(
            **{
                name: _filled((*lead, probes, devices) if per_probe else (devices,), fill, dtype)
                for name, (dtype, fill, per_probe, lead) in _LAYOUT.items()
            }
        )

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> History:
        """Read back what :meth:`arrays` gave, from arrays or nested lists."""
        return cls(**{name: np.array(arrays[name], layout[0]) for name, layout in _LAYOUT.items()})

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays().values())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        return {name: getattr(self, name) for name in _LAYOUT}

    def take(self, rows: NDArray[np.intp]) -> History:
        """Return a copy with these devices, in this order."""
        return History(**{name: np.take(array, rows, axis=-1) for name, array in self.arrays().items()})

    def extended(self, devices: int, probes: int) -> History:
        """Return a copy with room for more devices and probes, of which nothing is known yet."""
        bigger = History.empty(devices, probes)
        for name, array in self.arrays().items():
            room = getattr(bigger, name)
            room[(..., *(slice(size) for size in array.shape[-2:]))] = array
        return bigger

    def forget_run(self) -> None:
        """Drop the evidence and verdicts of a run, keep what is known of the devices."""
        blank = History.empty(len(self.told), len(self.baseline))
        for name in _OF_ONE_RUN:
            setattr(self, name, getattr(blank, name))

    def remember(self, residual: Floats, level: Floats) -> NDArray[np.bool_]:
        """Keep one round's residuals (``NaN``: none); return which baselines were learned in it.

        Parameters
        ----------
        residual, level
            Log time over the expected, and the group's common mode, each ``(n_probes, n_devices)``.
        """
        valid = ~np.isnan(residual)
        for number, here in self._places(self.seen):
            np.copyto(self.recent[number], residual, where=valid & here)
        learning = valid & np.isnan(self.baseline)
        self.seen += valid
        self._forget_half_of_a_long_past()
        if not learning.any():
            return learning
        self.common += np.where(learning, level / WARM_UP, 0)
        ready = learning & (self.seen >= WARM_UP)
        if ready.any():
            which = slice(None) if ready.all() else ready  # without copies where all began together
            usual, self.noise[which] = median_and_deviation(self.recent[:, which])
            self.baseline[which] = usual
            self.recent[:, which] -= usual
        return ready

    def _forget_half_of_a_long_past(self) -> None:
        """Halve counts before they overflow; rates of exceedances stay the same, and so does the place in the ring."""
        long = self.seen == np.iinfo(np.uint16).max
        if long.any():
            self.seen[long] -= 2**15  # whole turns of the ring
            self.runs[..., long] //= 2

    def note_episodes(self, slow: NDArray[np.bool_], present: NDArray[np.bool_], now_s: float) -> None:
        """Begin or go on with the episodes of devices that exceed on some probe, end those of others."""
        open_before = self.rounds > 0
        if not (slow.any() or open_before.any()):
            return
        over = present & ~slow & (self.evidence.sum(axis=(0, 2)).max(axis=0) < 1)
        self.since_s[slow & ~open_before] = now_s
        self.rounds += present & (slow | open_before)
        self.since_s[over], self.rounds[over], self.told[over] = np.nan, 0, 0

    def last(self) -> Floats:
        """Return each device's residual of the last round in which it had one, ``NaN`` before the first."""
        found = np.full(self.baseline.shape, np.nan, np.float32)
        for number, here in self._places(self.seen + np.uint16(WARM_UP - 1)):
            np.copyto(found, self.recent[number], where=here & (self.seen > 0))
        return found

    def _places(self, turns: NDArray[np.uint16]) -> Iterator[tuple[int, NDArray[np.bool_]]]:
        """Yield each place of the ring that is some device's turn, and whose turn it is: as a rule one for all."""
        place = turns % WARM_UP
        for number in range(int(place.min()), int(place.max()) + 1) if place.size else ():
            yield number, place == number

    def last_residuals(self, row: int, probe: int) -> Floats:
        """Return the residuals of a device's present episode, eight at most."""
        count = min(int(self.rounds[row]), int(self.seen[probe, row]), WARM_UP)
        places = (int(self.seen[probe, row]) - 1 - np.arange(count)) % WARM_UP
        return np.asarray(self.recent[places, probe, row])


def _filled(shape: tuple[int, ...], fill: float, dtype: type[np.generic]) -> NDArray[Any]:
    """Return an array full of one value; zeros take no memory before they are written."""
    return np.full(shape, fill, dtype) if fill else np.zeros(shape, dtype)

"""What the detector remembers of each device: a few arrays, saved as they are and looked up by the devices' names."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laggard.collectors.device import DeviceId
from laggard.detectors.statistics.baseline import usual_and_noise
from laggard.detectors.statistics.estimates import Floats

_MEMORY = 64  # rounds after which the counts of a device's own noise are halved
_MOST = 1000.0  # of such a count, which half precision still holds
_LARGEST_STEP = 0.1  # log seconds: a device that is at times much slower must not move its past by that
_OWN_PRIOR = 20.0  # pseudo-count of exceedances before a repeated one
WARM_UP = 8  # rounds that make up a device's baseline; also how many residuals are kept
SELF, PEER = 0, 1  # the two tests: against a device's own past, against its peers
REPORT, RESTART = 0, 1  # the two levels of effect that each test looks for

# By name: type, fill value, leading axes.
_LAYOUT: dict[str, tuple[type[np.generic], float, tuple[int, ...]]] = {
    "baseline": (np.float32, np.nan, ()),
    "common": (np.float32, 0, ()),
    "noise": (np.float32, np.nan, ()),
    "recent": (np.float32, 0, (WARM_UP,)),
    "evidence": (np.float32, 0, (2, 2)),
    "intermittent": (np.float32, 0, ()),
    "run": (np.uint8, 0, (2, 2)),
    "runs": (np.float16, 0, (2, 2)),
    "exceedances": (np.float16, 0, (2, 2)),
    "seen": (np.uint16, 0, ()),
    "state": (np.uint8, 0, ()),
    "before": (np.float16, np.nan, ()),
    "since_s": (np.float64, np.nan, ()),
    "rounds": (np.uint32, 0, ()),
    "reported": (np.uint8, 0, ()),
}
_OF_ONE_RUN = ("evidence", "intermittent", "run", "since_s", "rounds", "reported")
_OF_ONE_STATE = ("baseline", "common", "noise", "recent", "seen", "intermittent")


@dataclass
class History:
    """Arrays whose last axis is the device."""

    # Log of a device's usual time relative to its group's, `NaN` until learned; refined until the 64th round
    baseline: Floats
    common: Floats  # the group's mean common mode while the baseline was learned, in log seconds
    noise: Floats  # standard deviation of the log time from round to round
    # Ring buffer of the last eight residuals (while learning: those of the baseline), first axis the position
    recent: Floats
    evidence: Floats  # weighted evidence, first axes `(test, level)`
    # Weighted evidence that the device is slow again and again; negative for some time after a verdict that says so
    intermittent: Floats
    run: NDArray[np.uint8]  # length of the current run of exceedances in rounds (saturates), first axes `(test, level)`
    # Number of runs of exceedances that ended, and of rounds in them, which are this device's noise; halved every 64
    # rounds, first axes `(test, level)`
    runs: NDArray[np.float16]
    exceedances: NDArray[np.float16]
    seen: NDArray[np.uint16]  # rounds with a good reading so far; less 32,768 on reaching 65,535
    state: NDArray[np.uint8]  # the highest DeviceState so far: that of the baseline
    # How far the device was from its typical peer in another state, in log seconds; `NaN`: there was none
    before: NDArray[np.float16]
    since_s: NDArray[np.float64]  # when the current slow episode began, and how many rounds ago
    rounds: NDArray[np.uint32]
    reported: NDArray[np.uint8]  # rank of the worst verdict given in this episode

    @classmethod
    def empty(cls, devices: int) -> History:
        """Return the history of devices about which nothing is known."""
        return cls(**{name: np.full((*lead, devices), fill, dtype) for name, (dtype, fill, lead) in _LAYOUT.items()})

    @classmethod
    def from_state(cls, arrays: Mapping[str, Any]) -> History:
        """Return the history that :meth:`to_state` returned."""
        return cls(**{name: _unpacked(arrays[name], kind) for name, (kind, *_) in _LAYOUT.items()})

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        return {name: getattr(self, name) for name in _LAYOUT}

    def to_state(self) -> dict[str, Any]:
        """Return the arrays by name, as values of JSON."""
        return {name: _packed(array) for name, array in self.arrays().items()}

    def take(self, rows: NDArray[np.intp]) -> History:
        """Return a copy with these rows, in this order."""
        return History(**{name: np.take(array, rows, axis=-1) for name, array in self.arrays().items()})

    def extended(self, devices: int) -> History:
        """Return a copy with room for more devices, about which nothing is known yet."""
        bigger = History.empty(devices)
        for name, array in self.arrays().items():
            getattr(bigger, name)[..., : array.shape[-1]] = array
        return bigger

    def forget_run(self) -> None:
        """Drop the evidence and verdicts of a run; keep what is known of the devices."""
        blank = History.empty(len(self.reported))
        for name in _OF_ONE_RUN:
            setattr(self, name, getattr(blank, name))

    def enter_states(self, rows: NDArray[np.intp], states: NDArray[np.uint8], typical: Floats) -> NDArray[np.bool_]:
        """Let devices that gained a state learn their past anew; return which devices are in a lower one than that.

        A past that was learned idle says nothing of a busy device, but one that was learned busy holds for an idle one
        as well: it reads less. So states are only ever gained, and one past for each device is enough.

        Parameters
        ----------
        rows, states
            Which devices are in which state.
        typical
            Where each of these devices' typical peer is, relative to its group's common mode.
        """
        is_new = (states & ~self.state[rows]) != 0
        new = rows[is_new]
        self.before[new] = np.fmin(self.before[new], self.baseline[new] - typical[is_new])
        self.state[new] |= states[is_new]
        blank = History.empty(len(new))
        for name in _OF_ONE_STATE:
            getattr(self, name)[..., new] = getattr(blank, name)
        for name in ("evidence", "run", "runs", "exceedances"):
            getattr(self, name)[SELF][..., new] = 0
        found = np.zeros(len(self.state), np.bool_)
        found[rows] = (self.state[rows] & ~states) != 0
        return found

    def remember(self, residual: Floats, level: Floats) -> NDArray[np.bool_]:
        """Store one round's residuals (``NaN``: none); return which baselines this round completed."""
        valid = ~np.isnan(residual)
        for position, here in self._positions(self.seen):
            np.copyto(self.recent[position], residual, where=valid & here)
        learning = valid & np.isnan(self.baseline)
        self.seen += valid
        self._forget_old_noise(valid)
        self._refine(residual, valid & ~learning & (self.seen <= _MEMORY))
        if not learning.any():
            return learning
        self.common += np.where(learning, level / WARM_UP, 0)
        ready = learning & (self.seen >= WARM_UP)
        if ready.any():
            which = slice(None) if ready.all() else ready  # avoids copies if all devices started together
            usual, self.noise[which] = usual_and_noise(self.recent[:, which])
            self.baseline[which] = usual
            self.recent[:, which] -= usual
        return ready

    def density(self) -> Floats:
        """Return the share of the last 64 to 128 rounds in which each device exceeded its past, in runs that ended."""
        exceedances = self.exceedances[SELF, RESTART].astype(np.float32)
        return np.asarray(exceedances / (self._remembered() + WARM_UP), np.float32)

    def _remembered(self) -> Floats:
        """Return how many rounds the counts of a device's own noise stand for."""
        halved, latest = np.divmod(self.seen, _MEMORY)
        return np.asarray(_MEMORY * (1 - np.exp2(-halved.astype(np.float32))) + latest, np.float32)

    def _refine(self, residual: Floats, young: NDArray[np.bool_]) -> None:
        """Move young baselines towards the mean of all their rounds, by no more than their noise."""
        # The median of eight rounds is off by 0.4 of their noise, which matters where the noise is large.
        if young.any():
            most = np.minimum(self.noise, np.float32(_LARGEST_STEP))
            step = np.clip(residual, -most, most) / np.maximum(self.seen, 1)
            np.add(self.baseline, step, out=self.baseline, where=young, casting="same_kind")

    def _forget_old_noise(self, valid: NDArray[np.bool_]) -> None:
        """Halve the counts of devices that have now seen another 64 rounds: noise from long ago excuses nothing."""
        old = valid & (self.seen % _MEMORY == 0)
        if old.any():
            self.runs[..., old] /= 2
            self.exceedances[..., old] /= 2
        self.seen[self.seen == np.iinfo(np.uint16).max] -= 2**15  # a multiple of the ring buffer's length and of 64

    def note_ended(self, test: int, level: int, rows: NDArray[np.intp], lengths: NDArray[np.uint8]) -> None:
        """Count runs of exceedances that ended, given their devices' rows and lengths."""
        for counts, more in ((self.runs[test, level], 1), (self.exceedances[test, level], lengths)):
            counts[rows] = np.minimum(counts[rows] + more, _MOST)

    def own_rates(self, test: int, level: int) -> Floats:
        """Return how often each device began to exceed in the last 64 to 128 rounds: an upper estimate."""
        runs = self.runs[test, level].astype(np.float32)
        good_rounds = np.maximum(self._remembered() - self.exceedances[test, level].astype(np.float32), 0)
        return np.asarray((np.sqrt(runs) + runs) / (good_rounds + WARM_UP), np.float32)

    def own_repeats(self, test: int, level: int, rows: NDArray[np.intp]) -> Floats:
        """Return how often devices exceeded once more, given their rows: upper estimates."""
        exceedances = self.exceedances[test, level][rows].astype(np.float32)
        repeats = exceedances - self.runs[test, level][rows]
        return np.asarray((repeats + np.sqrt(repeats)) / (exceedances + _OWN_PRIOR), np.float32)

    def note_episodes(self, slow: NDArray[np.bool_], present: NDArray[np.bool_], now_s: float) -> None:
        """Start or continue the episodes of devices that exceed; end those of devices that recovered."""
        open_before = self.rounds > 0
        if not (slow.any() or open_before.any()):
            return
        over = present & ~slow & (self.evidence.sum(axis=0).max(axis=0) < 1)
        self.since_s[slow & ~open_before] = now_s
        self.rounds += present & (slow | open_before)
        self.since_s[over], self.rounds[over], self.reported[over] = np.nan, 0, 0

    def last(self) -> Floats:
        """Return each device's latest residual, ``NaN`` before the first."""
        found = np.full(self.baseline.shape, np.nan, np.float32)
        for position, here in self._positions(self.seen + np.uint16(WARM_UP - 1)):
            np.copyto(found, self.recent[position], where=here & (self.seen > 0))
        return found

    def _positions(self, rounds: NDArray[np.uint16]) -> Iterator[tuple[int, NDArray[np.bool_]]]:
        """Yield each position of the ring buffer that is in use in these rounds, and where: usually one for all."""
        positions = rounds % WARM_UP
        for position in range(int(positions.min()), int(positions.max()) + 1) if positions.size else ():
            yield position, positions == position

    def last_residuals(self, row: int) -> Floats:
        """Return the residuals of a device's current episode, eight at most."""
        seen = int(self.seen[row])
        count = min(int(self.rounds[row]), seen, WARM_UP)
        return np.asarray(self.recent[(seen - 1 - np.arange(count)) % WARM_UP, row])


def _packed(array: NDArray[Any]) -> dict[str, Any]:
    """Return an array as values of JSON, which has no NaN and takes three times as long for lists of numbers."""
    little_endian = array.astype(array.dtype.newbyteorder("<"))
    return {"shape": list(array.shape), "base64": base64.b64encode(little_endian.tobytes()).decode()}


def _unpacked(saved: Mapping[str, Any], dtype: type[np.generic]) -> NDArray[Any]:
    """Return the array that :func:`_packed` took."""
    stored = np.dtype(dtype).newbyteorder("<")
    return np.frombuffer(base64.b64decode(saved["base64"]), stored).reshape(saved["shape"]).astype(dtype)


def present_places(
    saved: Iterable[DeviceId], names: Sequence[str], identity: Mapping[DeviceId, str]
) -> list[DeviceId | None]:
    """Return where each saved device is now: where its name is, else where it was; ``None`` if another is there now."""
    device_of = {name: device for device, name in identity.items()}
    moved_in = {device_of[name] for name in names if name in device_of}
    return [
        device_of.get(name, None if device in moved_in or (name and device in identity) else device)
        for device, name in zip(saved, names, strict=True)
    ]

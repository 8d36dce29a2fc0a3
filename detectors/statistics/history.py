"""What the detector remembers of each device: a few arrays, saved as they are and looked up by the devices' names."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laggard.collectors.device import DeviceId
from laggard.detectors.statistics.estimates import Floats

WARM_UP = 8  # rounds before a past is used
WHOLE = 64  # rounds that make up a whole past, and over which noise is a mean
CLOCKS = 4  # three sizes of slowdown, and slow at times
AT_TIMES = 3  # the last of them

# By name: type, fill value, leading axes.
_LAYOUT: dict[str, tuple[type[np.generic], float, tuple[int, ...]]] = {
    "base": (np.float32, np.nan, ()),
    "rounds": (np.float32, 0, ()),
    "typical": (np.float32, np.nan, ()),
    "first": (np.float32, np.nan, (WARM_UP,)),
    "last": (np.float32, np.nan, ()),
    "change": (np.float32, 0, ()),
    "distance": (np.float32, 0, ()),
    "held": (np.float32, 0, (2,)),
    "n_held": (np.float32, 0, ()),
    "state": (np.uint8, 0, ()),
    "before": (np.float16, np.nan, ()),
    "evidence": (np.float32, 0, (CLOCKS,)),
    "of_noise": (np.float32, 0, (CLOCKS,)),
    "lasts": (np.float32, 0, (CLOCKS,)),
    "peak": (np.float32, 0, (CLOCKS,)),
    "number": (np.uint32, 0, (CLOCKS,)),
    "odds": (np.float32, 0, (CLOCKS,)),
    "found": (np.bool_, 0, (CLOCKS,)),
    "slower": (np.float32, 0, (2, CLOCKS)),
    "with_past": (np.float32, 0, (CLOCKS,)),
    "hits": (np.float32, 0, ()),
    "run": (np.uint8, 0, ()),
    "often": (np.float32, 0, ()),
    "since_s": (np.float64, np.nan, ()),
    "reported": (np.uint8, 0, ()),
}
_PAST = ("base", "rounds", "typical", "first", "last", "change", "distance", "held", "n_held", "often")
_OF_ONE_RUN = ("evidence", "of_noise", "lasts", "peak", "number", "odds", "found", "slower", "with_past", "hits", "run")
_OF_ONE_INCIDENT = ("since_s", "reported")


@dataclass
class History:
    """Arrays whose last axis is the device; the axis before it is the clock: a size of slowdown, or slow at times."""

    base: Floats  # log of a device's usual time relative to its group's, `NaN` until learned
    rounds: Floats  # of which its past is made
    typical: Floats  # where its typical peer was then; `NaN`: not known
    first: Floats  # log times of the warm-up, relative to the group's, first axis the round
    last: Floats  # latest residual
    change: Floats  # its noise as a variance: by the change from round to round, and by the distance from its past
    distance: Floats
    # What is learned once the evidence has gone: sum of residuals, and of their squares; and of how many rounds
    held: Floats
    n_held: Floats
    state: NDArray[np.uint8]  # the highest DeviceState so far: that of the past
    # How far the device was from its typical peer in another state, in log seconds; `NaN`: there was none
    before: NDArray[np.float16]
    evidence: Floats  # in nats, by the share of outliers; positive while an excursion lasts
    of_noise: Floats  # the same by noise alone
    lasts: Floats  # rounds of the excursion
    peak: Floats  # the most evidence in it
    number: NDArray[np.uint32]  # which of its group's excursions it is; 0: it is too small to be counted
    odds: Floats  # nats above what chance may do once in a job
    found: NDArray[np.bool_]
    # Sums over the excursion of how much slower than before and than its typical peer it was, in logs, at most so
    # much as to be seen (at times: over its slow rounds)
    slower: Floats
    with_past: Floats  # rounds of the excursion in which the first of these was known
    hits: Floats  # slow rounds of the excursion at times
    run: NDArray[np.uint8]  # slow rounds on end
    often: Floats  # share of the last rounds that were slow
    since_s: NDArray[np.float64]  # when the current excursion began
    reported: NDArray[np.uint8]  # rank of the worst verdict given in it

    @classmethod
    def empty(cls, devices: int) -> History:
        """Return the history of devices about which nothing is known."""
        return cls(**{name: np.full((*lead, devices), fill, dtype) for name, (dtype, fill, lead) in _LAYOUT.items()})

    @classmethod
    def from_state(cls, arrays: Mapping[str, Any]) -> History:
        """Return the history that :meth:`to_state` returned."""
        return cls(**{name: unpacked(arrays[name], kind, *lead) for name, (kind, _, lead) in _LAYOUT.items()})

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        return {name: getattr(self, name) for name in _LAYOUT}

    def to_state(self) -> dict[str, Any]:
        """Return the arrays by name, as values of JSON."""
        return {name: packed(array) for name, array in self.arrays().items()}

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
        self._clear((*_OF_ONE_RUN, *_OF_ONE_INCIDENT), np.ones(len(self.reported), np.bool_))

    def learn_again(self, which: NDArray[np.bool_]) -> None:
        """Drop the past of some devices, and the evidence that rests on it."""
        self._clear((*_PAST, *_OF_ONE_RUN), which)

    def _clear(self, names: Sequence[str], which: NDArray[np.bool_]) -> None:
        for name in names:
            getattr(self, name)[..., which] = _LAYOUT[name][1]

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
        new, found = rows[is_new], np.zeros(len(self.state), np.bool_)
        if len(new):
            self.before[new] = np.fmin(self.before[new], self.base[new] - typical[is_new])
            self.state[new] |= states[is_new]
            found[new] = True
            self.learn_again(found)
            found[new] = False
        found[rows] = (self.state[rows] & ~states) != 0
        return found

    def note_incidents(self, now_s: float) -> None:
        """Note when excursions of the smallest size begin, and end."""
        goes_on = (self.evidence[0] > 0) | self.found.any(axis=0)
        self.since_s[goes_on & np.isnan(self.since_s)] = now_s
        self._clear(_OF_ONE_INCIDENT, ~goes_on)


def packed(array: NDArray[Any]) -> str:
    """Return an array as text: JSON has no NaN, and lists of numbers take three times as long."""
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode()


def unpacked(saved: str, dtype: type[np.generic], *lead: int) -> NDArray[Any]:
    """Return the array that :func:`packed` took, given its axes but for the last."""
    stored = np.dtype(dtype).newbyteorder("<")
    return np.frombuffer(base64.b64decode(saved), stored).reshape(*lead, -1).astype(dtype)


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

"""What the detector remembers of each device: a few arrays, saved as they are and looked up by the devices' names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laggard.collectors.device import DeviceId
from laggard.detectors.statistics.arrays import Arrays, of
from laggard.detectors.statistics.estimates import Floats

WARM_UP = 8  # rounds before a past is used
WHOLE = 64  # rounds that make up a whole past, and over which noise is a mean
CLOCKS = 4  # three sizes of slowdown, and slow at times
AT_TIMES = 3  # the last of them

_PAST = ("base", "rounds", "typical", "first", "last", "change", "distance", "held", "n_held", "often")
_OF_ONE_EXCURSION = ("evidence", "of_noise", "lasts", "peak", "number", "odds", "found", "usual")
_OF_ONE_RUN = (*_OF_ONE_EXCURSION, "slower", "with_past", "hits", "run")
_OF_ONE_INCIDENT = ("since_s", "reported")


@dataclass
class History(Arrays):
    """Arrays whose last axis is the device; the axis before it is the clock: a size of slowdown, or slow at times."""

    base: Floats = of(np.nan)  # log of a device's usual time relative to its group's, `NaN` until learned
    rounds: Floats = of()  # of which its past is made
    typical: Floats = of(np.nan)  # where its typical peer was then; `NaN`: not known
    first: Floats = of(np.nan, WARM_UP)  # log times of the warm-up, relative to the group's, first axis the round
    last: Floats = of(np.nan)  # latest residual
    # Its noise as a variance: by the change from round to round, and by the distance from its past
    change: Floats = of()
    distance: Floats = of()
    # What is learned once the evidence has gone: sum of residuals, and of their squares; and of how many rounds
    held: Floats = of(0, 2)
    n_held: Floats = of()
    state: NDArray[np.uint8] = of(dtype=np.uint8)  # the highest DeviceState so far: that of the past
    # How far the device was from its typical peer in another state, in log seconds; `NaN`: there was none
    before: NDArray[np.float16] = of(np.nan, dtype=np.float16)
    evidence: Floats = of(0, CLOCKS)  # in nats, by the share of outliers; positive while an excursion lasts
    of_noise: Floats = of(0, CLOCKS)  # the same by noise alone
    lasts: Floats = of(0, CLOCKS)  # rounds of the excursion
    peak: Floats = of(0, CLOCKS)  # the most evidence in it
    # Which of its group's excursions it is; 0: it is too small to be counted
    number: NDArray[np.uint32] = of(0, CLOCKS, dtype=np.uint32)
    odds: Floats = of(0, CLOCKS)  # nats above what chance may do once in a job
    found: NDArray[np.bool_] = of(0, CLOCKS, dtype=np.bool_)
    usual: NDArray[np.bool_] = of(0, CLOCKS, dtype=np.bool_)  # no larger than those that ended let expect
    # Sums over the excursion of how much slower than before and than its typical peer it was, in logs, at most so
    # much as to be seen (at times: over its slow rounds)
    slower: Floats = of(0, 2, CLOCKS)
    with_past: Floats = of(0, CLOCKS)  # rounds of the excursion in which the first of these was known
    hits: Floats = of()  # slow rounds of the excursion at times
    run: NDArray[np.uint8] = of(dtype=np.uint8)  # slow rounds on end
    often: Floats = of()  # share of the last rounds that were slow
    since_s: NDArray[np.float64] = of(np.nan, dtype=np.float64)  # when the current excursion began
    reported: NDArray[np.uint8] = of(dtype=np.uint8)  # rank of the worst verdict given in it

    def forget_run(self) -> None:
        """Drop the evidence and verdicts of a run; keep what is known of the devices."""
        self.clear((*_OF_ONE_RUN, *_OF_ONE_INCIDENT), np.ones(len(self.reported), np.bool_))

    def learn_again(self, which: NDArray[np.bool_]) -> None:
        """Drop the past of some devices, and the evidence that rests on it."""
        self.clear((*_PAST, *_OF_ONE_RUN), which)

    def enter_states(self, rows: NDArray[np.intp], states: NDArray[np.uint8], typical: Floats) -> NDArray[np.bool_]:
        """Let devices that gained a state learn their past anew; return which devices are in a lower one than that.

        A past that was learned idle says nothing of a busy device, but one that was learned busy holds for an idle one
        as well: it reads less. So states are only ever gained, and one past for each device is enough. ``typical``:
        where each device's typical peer is, relative to its group's common mode.
        """
        new = rows[(states & ~self.state[rows]) != 0]
        self.before[new] = np.fmin(self.before[new], self.base[new] - typical[new])
        now = self.state.copy()
        now[rows] = states
        self.state |= now
        if len(new):
            self.learn_again(np.isin(np.arange(len(now)), new))
        return np.asarray((self.state & ~now) != 0)

    def end(self, which: NDArray[np.bool_]) -> None:
        """End excursions, by clock and device."""
        for name in _OF_ONE_EXCURSION:
            getattr(self, name)[which] = 0

    def note_incidents(self, now_s: float) -> None:
        """Note when excursions of the smallest size begin, and end."""
        goes_on = (self.evidence[0] > 0) | self.found.any(axis=0)
        self.since_s[goes_on & np.isnan(self.since_s)] = now_s
        self.clear(_OF_ONE_INCIDENT, ~goes_on)


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

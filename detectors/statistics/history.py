"""What the detector remembers of each device: a few arrays, saved as they are and looked up by the devices' names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laggard.detectors.statistics.arrays import Arrays, of
from laggard.detectors.statistics.readings import DEVIATION_PER_DISTANCE, Flags, Floats

WARM_UP = 8  # rounds before a past is used
WHOLE = 64  # rounds that make up a whole past, and over which noise is a mean
CLOCKS = 4  # three sizes of slowdown, and slow at times
AT_TIMES = 3  # the last of them

_SEEN, _LEFT = np.float32(4.0), np.float32(0.7738)  # a residual counts as two noises at most; what that leaves
_STEP_NOISES = 3.0  # of a step within the first rounds

PAST, RUN, EXCURSION, INCIDENT = "past", "run", "excursion", "incident"  # what arrays are cleared with


def _seen(square: Floats, variance: Floats) -> Floats:
    """Return the squares of residuals as they count in a device's noise."""
    return np.asarray(np.minimum(square, _SEEN * variance) / _LEFT)


@dataclass(frozen=True, slots=True)
class Compared:
    """How a round compares, in log seconds; by device but for the pace."""

    pace: Floats  # each group's common mode
    relative: Floats  # slower than that
    typical: Floats  # where its group's typical device is now, relative to that
    own: Floats  # slower than the device's own past
    by_peers: Floats  # slower than its typical peer


@dataclass
class History(Arrays):
    """Arrays whose last axis is the device; the axis before it is the clock: a size of slowdown, or slow at times."""

    base: Floats = of(np.nan, until=PAST)  # log of its usual time relative to its group's, `NaN` until learned
    rounds: Floats = of(until=PAST)  # of which its past is made
    typical: Floats = of(np.nan, until=PAST)  # where its typical peer was then; `NaN`: not known
    first: Floats = of(np.nan, WARM_UP, until=PAST)  # log times of the warm-up, relative to the group's, by round
    last: Floats = of(np.nan, until=PAST)  # latest residual
    # Its noise as a variance: by the change from round to round, and by the distance from its past
    change: Floats = of(until=PAST)
    distance: Floats = of(until=PAST)
    # What is learned once the evidence has gone: sum of residuals, and of their squares; and of how many rounds
    held: Floats = of(0, 2, until=PAST)
    n_held: Floats = of(until=PAST)
    often: Floats = of(until=PAST)  # share of the last rounds that were slow
    state: NDArray[np.uint8] = of(dtype=np.uint8)  # the highest DeviceState so far: that of the past
    # How far the device was from its typical peer in another state, in log seconds; `NaN`: there was none
    before: NDArray[np.float16] = of(np.nan, dtype=np.float16)
    evidence: Floats = of(0, CLOCKS, until=EXCURSION)  # in nats, by the share of outliers; positive while it lasts
    of_noise: Floats = of(0, CLOCKS, until=EXCURSION)  # the same by noise alone
    lasts: Floats = of(0, CLOCKS, until=EXCURSION)  # rounds of the excursion
    peak: Floats = of(0, CLOCKS, until=EXCURSION)  # the most evidence in it
    # Which of its group's excursions it is; 0: it is too small to be counted
    number: NDArray[np.uint32] = of(0, CLOCKS, dtype=np.uint32, until=EXCURSION)
    odds: Floats = of(0, CLOCKS, until=EXCURSION)  # nats above what chance may do once in a job
    found: Flags = of(0, CLOCKS, dtype=np.bool_, until=EXCURSION)
    # Whether it is no larger than those that ended let expect
    usual: Flags = of(0, CLOCKS, dtype=np.bool_, until=EXCURSION)
    # Sums over the excursion of how much slower than before and than its typical peer it was, in logs, at most so
    # much as to be seen (at times: over its slow rounds)
    slower: Floats = of(0, 2, CLOCKS, until=EXCURSION)
    counted: Floats = of(0, 2, CLOCKS, until=EXCURSION)  # in how many rounds each of these was known
    run: NDArray[np.uint8] = of(dtype=np.uint8, until=RUN)  # slow rounds on end
    since_s: NDArray[np.float64] = of(np.nan, dtype=np.float64, until=INCIDENT)  # when the current excursion began
    reported: NDArray[np.uint8] = of(dtype=np.uint8, until=INCIDENT)  # rank of the worst verdict given in it

    def note_incidents(self, now_s: float) -> None:
        """Note when excursions of the smallest size begin, and end."""
        goes_on = (self.evidence[0] > 0) | self.found.any(axis=0)
        self.since_s[goes_on & np.isnan(self.since_s)] = now_s
        self.clear(~goes_on, INCIDENT)

    def enter_states(self, rows: NDArray[np.intp], states: NDArray[np.uint8], typical: Floats) -> Flags:
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
            self.clear(np.isin(np.arange(len(now)), new), PAST, EXCURSION, RUN)
        return np.asarray((self.state & ~now) != 0)

    def learn(self, now: Compared, variance: Floats, least: np.float32, smallest: float, in_state: Flags) -> None:
        """Learn a device's noise from a round at once, its past once there is no evidence, its first one ``in_state``.

        ``variance``: of each device, which is ``least`` at least; ``smallest``: the smallest slowdown that matters.
        """
        own = now.own
        known, change, limit = ~np.isnan(own), own - self.last, np.sqrt(_SEEN * variance)
        seen = _seen(np.square(change) / np.float32(2), np.maximum(self.change, least))
        more = (seen - self.change) / np.minimum(self.rounds + 1, WHOLE)
        self.change += np.where(np.isnan(change), 0, more)
        self.last = np.where(known, own, self.last)
        self.held[0] += np.where(known, np.clip(own, -limit, limit), 0)
        self.held[1] += np.where(known, _seen(own * own, variance), 0)
        self.n_held += known
        calm = (self.evidence[0] <= 0) & (self.n_held > 0)
        total, n_held = self.rounds + self.n_held, np.maximum(self.n_held, 1)
        self.base += np.where(calm & (self.rounds < WHOLE), self.held[0] / np.maximum(total, 1), 0)
        weight = n_held / np.maximum(np.minimum(total, WHOLE), n_held)
        self.distance += np.where(calm, (self.held[1] / n_held - self.distance) * weight, 0)
        self.rounds += np.where(calm, self.n_held, 0)
        self.held *= ~calm
        self.n_held *= ~calm
        new = np.flatnonzero(np.isnan(self.base) & in_state & ~np.isnan(now.relative))
        if len(new):
            self.first[self.rounds[new].astype(np.intp), new] = self.last[new] = now.relative[new]
            self.rounds[new] += 1
            ready = new[self.rounds[new] == WARM_UP]
            self._begin_past(ready, variance[ready], smallest)
            self.typical[ready] = now.typical[ready]

    def _begin_past(self, rows: NDArray[np.intp], variance: Floats, smallest: float) -> None:
        """Make a past of the first rounds: their median, but of a device that became slow in them their faster part."""
        first = self.first[:, rows]
        ordered, changes = np.sort(first, axis=0), np.diff(first, axis=0)
        base, faster = ordered[WARM_UP // 2 - 1 : WARM_UP // 2 + 1].mean(axis=0), ordered[1:3].mean(axis=0)
        noise = np.maximum(np.sqrt(variance), DEVIATION_PER_DISTANCE * np.median(np.abs(changes), axis=0) / np.sqrt(2))
        base = np.where(base - faster > np.maximum(smallest / 2, _STEP_NOISES * noise), faster, base)
        self.base[rows], self.last[rows] = base, first[-1] - base
        self.change[rows] = _seen((np.square(changes) / 2).astype(np.float32), variance).mean(axis=0)
        self.distance[rows] = _seen((first - base) ** 2, variance).mean(axis=0) * WARM_UP / (WARM_UP - 1)

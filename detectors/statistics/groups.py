"""What is known of whole groups: their pace, their noise, the excursions of their devices, and what is told of it.

Times are in log seconds, noise is a variance of them; ``NaN``: not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from laggard.detectors.notices import Group, GroupNotice, GroupSlower, Noisy
from laggard.detectors.statistics.arrays import Arrays, of
from laggard.detectors.statistics.common_mode import CommonMode
from laggard.detectors.statistics.devices import Devices, Grouping
from laggard.detectors.statistics.excursions import ERRORS, NOISES, Tails
from laggard.detectors.statistics.history import WARM_UP, WHOLE, Compared, History
from laggard.detectors.statistics.readings import DEVIATION_PER_DISTANCE, Flags, Floats
from laggard.detectors.statistics.thresholds import MAJORITY, RESTART, against_peers

_QUIETEST = 16.0  # of the smallest slowdown that matters, one part: what looks less noisy is so by chance
_AS_ROUNDS = np.float32(WHOLE / 2)  # of its own is what the group's noise is worth in a device's
_ROUND = np.float32(9.0)  # in the noise, a round counts as three of its group at most


@dataclass
class Pace(Arrays):
    """Where the groups' common mode and their typical devices are, as learned so far."""

    usual: Floats = of(np.nan)
    typical: Floats = of(np.nan)
    spread: Floats = of(np.nan)
    rounds: Floats = of()

    def compare(self, log_seconds: Floats, history: History, grouping: Grouping) -> Compared:
        """Compare a round's log times ``(n_devices,)``."""
        middle, spread = grouping.center_and_spread(log_seconds)
        common = grouping.low_median(log_seconds - history.base)
        pace = np.where(np.isnan(common), middle, common)
        self.rounds += ~np.isnan(pace)
        self._learn(self.typical, middle - pace, WARM_UP)
        self._learn(self.spread, spread, WARM_UP)
        relative = log_seconds - grouping.per_device(pace)
        # Who was like its peers when its past was learned is not slow because faster ones have come since.
        typical = grouping.per_device(self.typical)
        by_peers = relative - np.fmax(history.typical, typical)
        return Compared(pace, relative, typical, relative - history.base, by_peers)

    def residual(
        self, compared: Compared, last: Floats, size: Floats, smallest: float, grouping: Grouping
    ) -> tuple[Floats, Floats, Flags]:
        """Return the residuals, against the past or the peers, whichever is more, and which groups are half slow.

        Between them, what each was before, given the last ones against the past: the same if the peers decide.
        """
        own, out = compared.own, grouping.per_device
        count = grouping.count(~np.isnan(compared.by_peers))
        # If many of a group look slow at once, others may have become faster: only who is slower in seconds, too, is.
        crowded = grouping.count(own > size / 2) >= MAJORITY * count
        if crowded.any():
            own = np.where(out(crowded), np.minimum(own, own + out(compared.pace - self.usual)), own)
        self._learn(self.usual, compared.pace, WHOLE, ~crowded)
        by_peers = compared.by_peers - out(against_peers(smallest, self.spread, count)[RESTART])
        tied = (grouping.count(by_peers > 0) >= MAJORITY * count) & (count != 2) | (count < 2)
        by_peers = np.where(out(tied), np.float32(np.nan), by_peers + np.float32(smallest / 2))
        found = np.fmax(own, by_peers)
        return found, np.where((found == own) & ~np.isnan(last), last, found), crowded

    def _learn(self, mean: Floats, now: Floats, rounds: int, where: Flags | bool = True) -> None:
        """Add a round to a mean of at most so many rounds; the first one is the mean."""
        more = mean + (now - mean) * (1 / np.clip(self.rounds, 1, rounds))
        np.copyto(mean, np.where(np.isnan(mean), now, more), where=where & ~np.isnan(now))


@dataclass
class Noise(Arrays):
    """The noise of each group: a mean over 64 rounds; before there is a past, over all of them."""

    size: Floats = of(np.nan)  # by the distance from the past, which includes what the past is wrong by
    change: Floats = of(np.nan)  # by the change between rounds
    n_early: Floats = of()  # rounds before there was a past of which it is the mean
    rounds: Floats = of()  # the same since then
    told: Flags = of(dtype=np.bool_)  # that it hides slowdowns that matter
    least: np.float32 = np.float32(0)  # no variance is taken to be less

    def set_least(self, smallest: float) -> None:
        """Set the least noise, given the smallest slowdown that matters."""
        self.least = np.float32((smallest / _QUIETEST) ** 2)

    def add_early(self, repeat_noise: Floats, changes: Floats, grouping: Grouping) -> None:
        """Add a round before there is a past: the noise of its repeats, else the change since the round before."""
        by_repeats = grouping.high_median(repeat_noise) ** 2
        most_have = 2 * grouping.count(~np.isnan(repeat_noise)) >= grouping.sizes  # those of a few are not the group's
        now = np.asarray(np.where(most_have, by_repeats, _typical(changes, grouping) / 2), np.float32)
        known = ~np.isnan(now) & (self.rounds == 0)
        self.n_early += known
        self._add(now, now, known, self.n_early)

    def add(self, residual: Floats, last: Floats, grouping: Grouping, crowded: Flags) -> None:
        """Add a round's residuals against the past; those of groups that are half slow are no noise."""
        distance, change = _typical(residual, grouping), _typical(residual - last, grouping) / np.float32(2)
        known = ~(np.isnan(distance) | np.isnan(change) | crowded)
        distance = np.where(grouping.sizes == 2, change, distance)  # of two devices, the distance is the fault itself
        first = known & (self.rounds == 0)
        self.rounds = np.where(first, np.float32(WARM_UP // 2), np.minimum(self.rounds + known, WHOLE))
        self._add(distance, change, known, self.rounds)

    def _add(self, distance: Floats, change: Floats, known: Flags, rounds: Floats) -> None:
        for mean, now in ((self.size, distance), (self.change, change)):
            np.copyto(mean, now, where=known & np.isnan(mean))
            now = np.minimum(now, _ROUND * np.maximum(mean, self.least))
            mean += np.where(known, (now - mean) / np.maximum(rounds, 1), 0)

    def variance(self) -> Floats:
        """Return the noise that a device has at least; ``NaN`` before anything is known."""
        return np.maximum(self.size, self.least)

    def lasts(self) -> Floats:
        """Return how many rounds one independent reading is worth: of AR(1) noise (1 + r) / (1 - r), exactly."""
        rounds = 2 * self._size_over_change() - 1
        return np.where(rounds < NOISES, np.float32(1), rounds)

    def of_devices(self, history: History, grouping: Grouping) -> Floats:
        """Return each device's noise: its own, and its group's if that is more; at first mostly the group's."""
        of_group = grouping.per_device(self.variance())
        lasting = grouping.per_device(np.maximum(1, self._size_over_change()))
        own = np.maximum(history.change * lasting, history.distance)
        mixed = (own * history.rounds + of_group * _AS_ROUNDS) / (history.rounds + _AS_ROUNDS)
        return np.where(np.isnan(history.base), of_group, np.maximum(of_group, mixed))

    def _size_over_change(self) -> Floats:
        return np.asarray(np.fmax(self.size, self.least) / np.fmax(self.change, self.least))


def _typical(distances: Floats, grouping: Grouping) -> Floats:
    """Return each group's variance by the typical distance of its devices."""
    return np.asarray((DEVIATION_PER_DISTANCE * grouping.high_median(np.abs(distances))) ** 2)


class Groups:
    """What was learned of the groups, and notices about them: each thing once, and no device is to blame for it."""

    def __init__(self, n_groups: int) -> None:
        self.pace, self.noise, self.tails = Pace.empty(n_groups), Noise.empty(n_groups), Tails.empty(n_groups)
        self.notices: list[GroupNotice] = []
        self._common_modes = [CommonMode() for _ in range(n_groups)]

    def taken(self, groups: NDArray[np.intp]) -> Self:
        """Return what is known of groups given as those that they were; -1: they are new."""
        new = type(self)(len(groups))
        new.pace, new.noise, new.tails = self.pace.take(groups), self.noise.take(groups), self.tails.take(groups)
        new.notices = self.notices
        new._common_modes = [self._common_modes[group] if group >= 0 else CommonMode() for group in groups.tolist()]
        return new

    def note(self, compared: Compared, now_s: float, smallest: float, devices: Devices) -> None:
        """Note what is new: a slower pace, noise that hides what matters."""

        def named(number: int) -> Group:
            first = int(np.argmax(devices.codes == number))
            return Group(devices.names[first], devices.size_at(first), len(devices.names))

        has_past = devices.count(~np.isnan(compared.own)) > 0
        for group in np.flatnonzero((devices.sizes > 1) & ~np.isnan(compared.pace)).tolist():
            if not (has_past[group] or np.isnan(self._common_modes[group].past)):
                self._common_modes[group] = CommonMode()  # all of it has become busy, and learns its past anew
            if shift := self._common_modes[group].add(float(compared.pace[group]), now_s, smallest):
                self.notices.append(GroupSlower(named(group), shift))
        deviation, lasts = np.sqrt(self.noise.variance()), self.noise.lasts()
        allowed = deviation * np.maximum(NOISES, ERRORS * np.sqrt(np.minimum(1, lasts / WHOLE)))
        new = (self.noise.rounds >= WHOLE) & (allowed > smallest) & ~self.noise.told
        self.noise.told |= new
        for group in np.flatnonzero(new).tolist():
            least, does_last = float(np.exp(allowed[group])), bool(lasts[group] > 1)
            self.notices.append(Noisy(named(group), float(deviation[group]), least, does_last))

    def to_state(self) -> dict[str, Any]:
        """Return what was learned, as values of JSON."""
        return {"noise": self.noise.to_state(), "tails": self.tails.to_state()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, same_run: bool) -> Self:
        """Return what :meth:`to_state` returned; a new run counts excursions anew."""
        noise, tails = Noise.from_state(state["noise"]), Tails.from_state(state["tails"])
        tails.counted *= same_run
        noise.told &= same_run
        known = cls(len(noise.rounds))
        known.noise, known.tails = noise, tails
        if tails.counted.shape[1] != len(noise.rounds):
            raise ValueError("its groups' noise and tails are not of as many groups")
        return known

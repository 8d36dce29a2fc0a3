"""What is known of whole groups: their pace, their noise, the excursions of their devices, and what is told of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from laggard.collectors.device import DeviceId
from laggard.detectors.notices import Group, GroupNotice, GroupSlower, Noisy
from laggard.detectors.statistics import noise
from laggard.detectors.statistics.common_mode import CommonMode
from laggard.detectors.statistics.comparison import Compared, Pace
from laggard.detectors.statistics.excursions import ERRORS
from laggard.detectors.statistics.grouping import Grouping
from laggard.detectors.statistics.history import WHOLE
from laggard.detectors.statistics.tails import Tails


class GroupKnowledge:
    """What was learned of the groups, and notices about them: each thing once, and no device is to blame for it."""

    def __init__(self, n_groups: int) -> None:
        self.pace, self.noise, self.tails = Pace.empty(n_groups), noise.Noise.empty(n_groups), Tails.empty(n_groups)
        self.notices: list[GroupNotice] = []
        self._common_modes = [CommonMode() for _ in range(n_groups)]

    def taken(self, groups: NDArray[np.intp]) -> Self:
        """Return what is known of groups given as those that they were; -1: they are new."""
        if np.array_equal(groups, np.arange(len(self.pace.rounds))):
            return self
        new = type(self)(len(groups))
        new.pace, new.noise, new.tails = self.pace.take(groups), self.noise.take(groups), self.tails.take(groups)
        new.notices = self.notices
        new._common_modes = [self._common_modes[group] if group >= 0 else CommonMode() for group in groups.tolist()]
        return new

    def note(
        self, compared: Compared, now_s: float, smallest: float, grouping: Grouping, devices: Sequence[DeviceId]
    ) -> None:
        """Note what is new: a slower pace, noise that hides what matters."""
        has_past = grouping.count(~np.isnan(compared.own)) > 0
        for group in np.flatnonzero((grouping.sizes > 1) & ~np.isnan(compared.pace)).tolist():
            mode = self._common_modes[group]
            if mode.is_learned and not has_past[group]:  # all of it has become busy, and learns its past anew
                mode = self._common_modes[group] = CommonMode()
            if shift := mode.add(float(compared.pace[group]), now_s, smallest):
                self.notices.append(GroupSlower(_group(group, grouping, devices), shift))
        deviation, lasts = np.sqrt(self.noise.variance()), self.noise.lasts()
        allowed = deviation * np.maximum(noise.NOISES, ERRORS * np.sqrt(np.minimum(1, lasts / WHOLE)))
        new = (self.noise.rounds >= WHOLE) & (allowed > smallest) & ~self.noise.told
        self.noise.told |= new
        for group in np.flatnonzero(new).tolist():
            least, does_last = float(np.exp(allowed[group])), bool(lasts[group] > 1)
            self.notices.append(Noisy(_group(group, grouping, devices), float(deviation[group]), least, does_last))

    def to_state(self) -> dict[str, Any]:
        """Return what was learned, as values of JSON."""
        return {"noise": self.noise.to_state(), "tails": self.tails.to_state()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, same_run: bool) -> Self:
        """Return what :meth:`to_state` returned; a new run counts excursions anew."""
        tails = Tails.from_state(state["tails"])
        tails.counted *= same_run
        known = cls(tails.counted.shape[1])
        known.tails, known.noise = tails, noise.Noise.from_state(state["noise"])
        known.noise.told &= same_run
        if known.noise.size.shape != known.pace.rounds.shape:
            raise ValueError("its groups' noise and tails are not of as many groups")
        return known


def groups_before(grouping: Grouping, before: NDArray[np.int32]) -> NDArray[np.intp] | None:
    """Return which group each one was, -1 if it is new; ``None`` if groups were split or joined."""
    # `before`: the former groups of the first devices; the others are new.
    pairs = np.unique(np.stack([grouping.codes[: len(before)], before]), axis=1)
    if any(len(np.unique(side)) < pairs.shape[1] for side in pairs):
        return None
    groups = np.full(len(grouping), -1)
    groups[pairs[0]] = pairs[1]
    return groups


def _group(number: int, grouping: Grouping, devices: Sequence[DeviceId]) -> Group:
    rows = np.flatnonzero(grouping.codes == number)
    return Group(devices[rows[0]], len(rows), len(devices))

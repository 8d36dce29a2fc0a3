"""SlowGPUAnalysis: finds slow devices in rounds of probe readings, within a false-alarm budget. Reads no clock."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from laggard.collectors.device import DeviceId
from laggard.detectors.analysis.cross_section import judged, of_another_kind
from laggard.detectors.analysis.episodes import Slowness, episode_at, note_slowness, slowness_at
from laggard.detectors.analysis.findings import merged_by_node
from laggard.detectors.analysis.group_knowledge import GroupKnowledge, groups_before
from laggard.detectors.analysis.new_verdicts import NewVerdicts
from laggard.detectors.economics.episode import Episode
from laggard.detectors.errors import StateVersionError
from laggard.detectors.notices import GroupNotice
from laggard.detectors.statistics.comparison import learn
from laggard.detectors.statistics.device_index import (
    DeviceIndex,
    Readings,
    ReadingsByProbe,
    as_array,
    check_names,
    codes_of,
)
from laggard.detectors.statistics.estimates import Floats, log_fastest, repeat_noise, repeats_of
from laggard.detectors.statistics.excursions import Scale, advance, find, height, is_usual, scale_of, settle
from laggard.detectors.statistics.grouping import Grouping, clear_classes, labelled
from laggard.detectors.statistics.history import History, present_places
from laggard.detectors.statistics.thresholds import SILICON_SLOW, Thresholds, checked_budget
from laggard.detectors.verdict import Verdict
from laggard.settings import number

_VERSION = 7  # of what is kept
_CLASS_ROUNDS = (1, 2, 4, 8)  # with the same devices, after which to look for clear classes; then the classes are fixed
_PAIR_ROUNDS = 2  # two devices may be disturbed alike in a round, but hardly in each of several


class SlowGPUAnalysis:
    """Streaming detector of slow devices.

    In each round, a device's fastest reading is compared with its own past (after removing what its group has in
    common) and with its peers.  How much more likely it is if the device is slow, by one of three sizes, than if it is
    healthy, is added up from the round on in which it begins to look slow: that is an excursion (a CUSUM [1]_).  A
    device is slow if its excursion is larger than those of healthy devices ever are, which is learned from those that
    ended by themselves.

    **Guarantee.** Assume that a healthy device's excursion goes on for one more step no more often than it is assumed
    to, given everything before. Then the probability of any verdict against a healthy device, over the whole run, is at
    most ``false_alarm_budget``: excursion number j of its size and group gets the share 1 / (j (j + 1)) of the budget,
    and the shares sum to it, whatever the length of the run and the dependence between devices.  ``docs/detection.md``
    says for which noise the assumption holds, and by how much it fails elsewhere.  :meth:`check` judges one
    cross-section and is outside this guarantee: its error rate is measured (``docs/benchmarks``).

    **Few devices.** One device: no claim.  Two: with history, the one that became slower than its own past while the
    other did not; without history, the slower one, but only if it is slower by a factor of two (or ``min_slowdown``
    squared).  Three and more: also by comparison with the peers, whose median is the less certain the fewer they are.
    If 45 % or more of a group look slow at once, the peers cannot tell which devices are slow: then only a device that
    became slower than its own past is accused, and none that was slow from the start.

    Parameters
    ----------
    false_alarm_budget
        Bound on the probability of any false verdict over the whole run, however long.
    min_slowdown
        The smallest slowdown that matters, as a ratio of times; no smaller one yields a restart verdict.
    groups
        Label of each device (model, stage, ...); only devices with the same label are compared.  ``None``: one group,
        in which clear classes are recognised; if the slower class is the smaller one, each of its devices is reported
        once, as a suspect that looks like another model.
    peer_slowdown
        How much slower than its peers a healthy device may be, as a ratio of times: of chips of one model, 7 %.

    References
    ----------
    .. [1] Page, "Continuous inspection schemes", Biometrika 41, 1954.

    Examples
    --------
    >>> analysis = SlowGPUAnalysis()
    >>> slow = {("node0", "0"): [1.0], ("node0", "1"): [1.0], ("node1", "0"): [1.0], ("node1", "1"): [1.6]}
    >>> [verdict.gpu for _ in range(6) for verdict in analysis.update(slow)]
    ['1']
    """

    def __init__(
        self,
        *,
        false_alarm_budget: float = 1e-4,
        min_slowdown: float = 1.05,
        groups: Mapping[DeviceId, Hashable] | None = None,
        peer_slowdown: float = SILICON_SLOW,
    ) -> None:
        self.false_alarm_budget = checked_budget(false_alarm_budget)
        self.thresholds = Thresholds(min_slowdown, peer_slowdown)
        check_names(groups or ())
        self._labels = groups
        self._index = DeviceIndex()
        self._history = History.empty(0)
        self._residual, self._scale = np.zeros(0, np.float32), Scale.empty()  # of the last round
        self._new_verdicts = NewVerdicts()
        self._reported_kinds: set[tuple[str, str | None]] = set()
        self._grouping = Grouping(np.zeros(0, np.int32))
        self._known = GroupKnowledge(1)

    # -- readings ------------------------------------------------------------------------------------------------------

    def update(
        self, readings: Readings, now_s: float | None = None, states: Mapping[DeviceId, int] | None = None
    ) -> list[Verdict]:
        """Take one round of readings and return the verdicts that are new.

        Parameters
        ----------
        readings
            Seconds by device, one or more repeats.  A device may be missing or new; readings that are not between a
            millionth of a millionth and a million million are ignored.
        now_s
            Unix time of the round, for "since" (in UTC).
        states
            What each device is doing beside the probes (:class:`DeviceState`), as far as that is known: when a device
            becomes busy, or as warm as its peers, for the first time, its past is learned anew from readings in that
            state, and meanwhile it is only compared with its peers.

        Raises
        ------
        DeviceNameError
            If a key is not a host name and the name of a GPU on it.
        """
        devices, seconds = tuple(readings), as_array(readings.values())
        known = None if states is None else np.fromiter((states.get(each, 0) for each in devices), np.uint8)
        return self.update_arrays(devices, seconds, now_s=now_s, states=known)

    def update_arrays(
        self,
        devices: tuple[DeviceId, ...],
        seconds: NDArray[np.floating],
        *,
        now_s: float | None = None,
        states: NDArray[np.uint8] | None = None,
    ) -> list[Verdict]:
        """Take one round as an array.

        Parameters
        ----------
        seconds
            Shape ``(n_devices, n_repeats)``, ``NaN`` where there is no reading.
        states
            As for :meth:`update`, ``(n_devices,)``.
        """
        rows = self._rows_of(devices)
        if not len(self._index):
            return []
        in_state = np.ones(len(self._index), np.bool_)
        if states is not None:
            typical = np.broadcast_to(self._grouping.per_device(self._known.pace.typical), in_state.shape)
            in_state = ~self._history.enter_states(rows, states, typical[rows])
        repeats = repeats_of(seconds)
        log_seconds = self._in_rows(log_fastest(repeats), rows)
        now_s = number(now_s)
        kinds = self._recognise(log_seconds) if self._labels is None else []
        is_early = bool((self._known.noise.rounds == 0).any())
        early_noise = self._in_rows(repeat_noise(repeats), rows) if is_early else None
        self._judge(log_seconds, early_noise, in_state, now_s)
        new = self._new_verdicts.of_round(
            self._history,
            self._index,
            self._grouping,
            now_s,
            budget=self.false_alarm_budget,
            min_slowdown=self.thresholds.min_slowdown,
            slowness_at=self._slowness_at,
        )
        return [*new, *kinds]

    def check(self, readings: ReadingsByProbe) -> list[Verdict]:
        """Judge one cross-section without history: which devices, and which nodes, are slower than their peers.

        ``readings`` are as for :meth:`update`; with several probes, a mapping of probe to seconds by device. A device
        is judged by the fastest of its samples and by the usual one; a node, if there are three or more with several
        devices each, also by its devices together.
        """
        return judged(readings, self._labels, self.thresholds)

    # -- devices -------------------------------------------------------------------------------------------------------

    @property
    def devices(self) -> tuple[DeviceId, ...]:
        """The devices that are expected."""
        return self._index.devices

    @property
    def learned(self) -> int:
        """How many devices have a baseline to be compared with."""
        return int(np.count_nonzero(~np.isnan(self._history.base)))

    def suspects(self, device: DeviceId) -> bool | None:
        """Return whether a device's latest readings are slow, certain or not; ``None`` if it has given none."""
        row = self._index.row_of(device)
        if row is None or not (self._history.rounds[row] or self._history.lasts[:, row].any()):
            return None
        return bool((self._history.number[:, row] > 0).any())

    def undecided(self) -> list[DeviceId]:
        """Return the devices that are suspected and not found to be slow yet, those with the most evidence first."""
        history = self._history
        some = np.flatnonzero((history.number > 0).any(axis=0) & ~history.found.any(axis=0))
        most = np.where(history.number > 0, history.odds, -np.inf).max(axis=0)[some]
        return [self._index.devices[row] for row in some[np.argsort(-most, kind="stable")]]

    def became_slow(self, device: DeviceId) -> bool:
        """Return whether it is certain that a device has become slower than it was, by enough for a restart."""
        row = self._index.row_of(device)
        slow = None if row is None else self._slowness_at(row)
        return slow is not None and slow.own_past and slow.slowdown >= self.thresholds.min_slowdown

    def slow_in_this_state(self, device: DeviceId) -> bool:
        """Return whether a slow device was less than half as slow in another state, in logs."""
        row = self._index.row_of(device)
        slow = None if row is None else self._slowness_at(row)
        return slow is not None and bool(self._history.before[row] < np.log(slow.slowdown) / 2)

    def episode(self, device: DeviceId) -> Episode | None:
        """Return the slow episode that a device is in; ``None`` if it is not slow, or not known."""
        row = self._index.row_of(device)
        if row is None or row >= len(self._residual):
            return None
        slow, known = self._slowness_at(row), (self._history, self._scale, self._known.tails, self._grouping)
        if slow is None:
            return None
        usual = is_usual(row, slow.clock, *known, self.false_alarm_budget)
        is_now = bool(self._residual[row] > self._scale.size[0, row] / 2)
        return episode_at(row, self._history, slow, is_now=is_now, is_usual=usual)

    def _slowness_at(self, row: int, which: NDArray[np.bool_] | None = None) -> Slowness | None:
        lasts = float(self._known.noise.lasts()[self._grouping.codes[row]])
        return slowness_at(row, self._history, self._scale, lasts, self.thresholds.smallest, which)

    def take_notices(self) -> list[GroupNotice]:
        """Return what is new about the readings of whole groups: each thing once, and no device is to blame for it."""
        new, self._known.notices = self._known.notices, []
        return new

    def expect(self, devices: Iterable[DeviceId]) -> None:
        """Make room for devices before the first round; those already known keep their history."""
        index = self._index.extended(devices)
        if index is not self._index:
            codes, rows = self._grouping.codes, np.arange(len(index))
            self._index = index
            self._history = self._history.take(np.where(rows < len(codes), rows, -1))
            self._regroup(labelled(index.devices, self._labels), codes)

    def forget(self, hosts: Iterable[str]) -> None:
        """Drop the devices of hosts that left; the others keep their history."""
        left = set(hosts)
        kept = self._index.rows_outside(left)
        self._history = self._history.take(kept)
        self._index = DeviceIndex(self._index.devices[row] for row in kept)
        for host in left:
            self._new_verdicts.reported_hosts.pop(host, None)
        self._regroup(labelled(self._index.devices, self._labels), self._grouping.codes[kept])

    def set_thresholds(self, *, min_slowdown: float) -> None:
        """Change the smallest slowdown that matters while the job runs; the devices' history stays."""
        self.thresholds = replace(self.thresholds, min_slowdown=min_slowdown)

    def set_groups(self, groups: Mapping[DeviceId, Hashable] | None) -> None:
        """Change the devices' labels while the job runs; the devices' history stays."""
        check_names(groups or ())
        self._labels = groups
        self._regroup(labelled(self._index.devices, self._labels), self._grouping.codes)

    def _rows_of(self, devices: tuple[DeviceId, ...]) -> NDArray[np.intp]:
        """Make room for new devices; return the devices' rows."""
        try:
            return self._index.rows_of(devices)
        except KeyError:
            self.expect(devices)
            return self._index.rows_of(devices)

    def _in_rows(self, values: Floats, rows: NDArray[np.intp]) -> Floats:
        """Put a round's values in the rows of their devices, with ``NaN`` where there is none."""
        whole = np.full(len(self._index), np.nan, np.float32)
        whole[rows] = values
        return whole

    # -- groups --------------------------------------------------------------------------------------------------------

    def _regroup(self, grouping: Grouping, before: NDArray[np.int32]) -> None:
        """Regroup the devices after some came or left; ``before``: the groups of those that stay, the first ones."""
        self._grouping = grouping
        self._rounds_together = 0
        self._fastest = np.full(1, np.nan, np.float32)  # log seconds of each device since then
        self._residual, self._scale = self._residual[:0], Scale.empty()
        groups = groups_before(grouping, before)
        if groups is None:  # who is compared with others has other peers, and another common mode
            self._known = GroupKnowledge(len(grouping))
            self._history.typical[:] = np.nan
        else:
            self._known = self._known.taken(groups)

    def _recognise(self, log_seconds: Floats) -> list[Verdict]:
        """Look for clear classes; if they changed, a device that is still learning its past starts again."""
        self._rounds_together += 1
        if self._rounds_together <= _CLASS_ROUNDS[-1]:
            self._fastest = np.fmin(self._fastest, log_seconds)
        if self._rounds_together not in _CLASS_ROUNDS:
            return []
        codes = clear_classes(self._fastest, self._index, pairs_too=self._rounds_together >= _PAIR_ROUNDS)
        if not np.array_equal(codes, self._grouping.codes):
            self._grouping, self._known = Grouping(codes), GroupKnowledge(int(codes.max()) + 1)
            self._history.learn_again(np.isnan(self._history.base))
            self._history.typical[:] = np.nan
        if self._rounds_together < _CLASS_ROUNDS[-1]:
            return []
        kinds = of_another_kind([log_seconds], self._grouping, self._index, self._reported_kinds)
        if not kinds:
            return []
        self._reported_kinds |= {(found.host, found.gpu) for found in kinds}
        return merged_by_node(kinds, self._index.devices_of, self.thresholds.min_slowdown)

    # -- one round -----------------------------------------------------------------------------------------------------

    def _judge(
        self, log_seconds: Floats, early_noise: Floats | None, in_state: NDArray[np.bool_], now_s: float
    ) -> None:
        history, grouping, known, smallest = self._history, self._grouping, self._known, self.thresholds.smallest
        known.noise.set_least(smallest)
        compared = known.pace.compare(log_seconds, history, grouping, self.thresholds)
        if early_noise is not None:
            known.noise.add_early(early_noise, compared.relative - history.last, grouping)
        variance = np.broadcast_to(known.noise.of_devices(history, grouping), log_seconds.shape)
        lasts = np.broadcast_to(grouping.per_device(known.noise.lasts()), log_seconds.shape)
        usual = grouping.per_device(grouping.high_median(history.often))
        scale = scale_of(history, variance, lasts, usual, smallest)
        residual, before, crowded = known.pace.residual(compared, history.last, scale.size[0], smallest, grouping)
        known.noise.add(compared.own, history.last, grouping, crowded)
        over = advance(history, residual, before, lasts, scale, self.false_alarm_budget)
        settle(history, over, height(history), scale, known.tails, grouping)
        find(history, self.false_alarm_budget)
        note_slowness(history, compared.own, compared.by_peers, scale)
        history.note_incidents(now_s)
        typical = grouping.per_device(known.pace.typical)
        learn(history, compared, typical, variance, known.noise.least, smallest, in_state)
        self._residual, self._scale = residual, scale
        known.note(compared, now_s, smallest, grouping, self._index.devices)

    # -- state ---------------------------------------------------------------------------------------------------------

    def to_state(self, identity: Mapping[DeviceId, str] | None = None) -> dict[str, Any]:
        """Return everything that is remembered, as values that JSON can hold.

        Parameters
        ----------
        identity
            Each device's name that stays with it when it moves (its UUID); without one, a device is its host and gpu.
        """
        names = identity or {}
        return {
            "version": _VERSION,
            "devices": [list(device) for device in self.devices],
            "identities": [names.get(device, "") for device in self.devices],
            "reported_hosts": dict(self._new_verdicts.reported_hosts),
            "codes": self._grouping.codes.tolist(),
            "groups": self._known.to_state(),
            "history": self._history.to_state(),
        }

    @classmethod
    def from_state(
        cls,
        state: Mapping[str, Any],
        *,
        identity: Mapping[DeviceId, str] | None = None,
        same_run: bool = True,
        **parameters: Any,
    ) -> Self:
        """Return an analysis that continues from a saved state.

        Parameters
        ----------
        state
            As :meth:`to_state` returned it, or as JSON gives it back.
        identity
            The devices' current names by host and gpu: a known name keeps its history, wherever the device was.
        same_run
            ``True`` continues the run with its budget (a relaunch); ``False`` starts a new run with a new budget, which
            knows the devices' history.
        parameters
            As for the constructor.

        Raises
        ------
        StateVersionError
            If the state was written by another version of laggard.
        """
        if state["version"] != _VERSION:
            raise StateVersionError(state["version"], _VERSION)
        saved = ((str(host), str(gpu)) for host, gpu in state["devices"])
        present = present_places(saved, state["identities"], identity or {})
        kept = np.array([row for row, device in enumerate(present) if device is not None], np.intp)
        analysis = cls(**parameters)
        analysis._index = DeviceIndex(device for device in present if device is not None)
        analysis._history = History.from_state(state["history"]).take(kept)
        if same_run:
            analysis._new_verdicts.reported_hosts = dict(state["reported_hosts"])
        else:
            analysis._history.forget_run()
        codes = np.asarray(state["codes"], np.int32)[kept]
        analysis._known = GroupKnowledge.from_state(state["groups"], same_run=same_run)
        grouping = labelled(analysis._index.devices, analysis._labels)
        analysis._regroup(Grouping(codes_of(codes.tolist())) if analysis._labels is None else grouping, codes)
        return analysis

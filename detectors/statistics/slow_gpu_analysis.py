"""SlowGPUAnalysis: finds slow devices in rounds of probe readings, within a false-alarm budget. Reads no clock."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from laggard.collectors.device import DeviceId
from laggard.detectors.economics.episode import Episode
from laggard.detectors.errors import StateVersionError
from laggard.detectors.evidence import Slow
from laggard.detectors.notices import DisturbancesLast, Group, GroupNotice, Noisy, PaceChanged
from laggard.detectors.statistics.common_mode import CommonMode
from laggard.detectors.statistics.cross_section import slow_devices, slow_nodes, with_nodes
from laggard.detectors.statistics.device_index import (
    DeviceIndex,
    Readings,
    ReadingsByProbe,
    arrays_by_probe,
    as_array,
    check_names,
    codes_of,
)
from laggard.detectors.statistics.episodes import episode_at
from laggard.detectors.statistics.estimates import Floats, RollingMean, log_fastest, repeat_noise, repeats_of
from laggard.detectors.statistics.exceedance import Scales, compare
from laggard.detectors.statistics.false_alarm_budget import Rates, accumulate
from laggard.detectors.statistics.findings import merged_by_node, verdict_of
from laggard.detectors.statistics.grouping import Grouping, clear_classes, joint_classes, slow_minorities
from laggard.detectors.statistics.history import PEER, REPORT, RESTART, SELF, WARM_UP, History, present_places
from laggard.detectors.statistics.intermittent import accumulate_intermittent
from laggard.detectors.statistics.new_verdicts import NewVerdicts
from laggard.detectors.statistics.thresholds import SELF_NOISES, SILICON_SLOW, Thresholds
from laggard.detectors.verdict import Verdict

_VERSION = 5  # of what is kept
_CLASS_ROUNDS = (1, 2, 4, 8)  # with the same devices, after which to look for clear classes; then the classes are fixed
_PAIR_ROUNDS = 2  # two devices may be disturbed alike in a round, but hardly in each of several


class SlowGPUAnalysis:
    """Streaming detector of slow devices.

    In each round, a device's fastest reading is compared with its own past (after removing what its group has in
    common) and with its peers.  A comparison that exceeds what a healthy device may show multiplies the evidence
    against the device; one that does not divides it.

    **Guarantee.** Assume that, given everything before, no healthy device exceeds its limit in a round with a
    probability above the rate that the detector assumes for it. Then the probability of any restart verdict against
    a healthy device, over the whole run, is at most ``false_alarm_budget``, whatever the length of the run and the
    dependence between devices and rounds. This is because the evidence, summed over healthy devices and both tests,
    with a round's budget divided among them, is a non-negative supermartingale, so Ville's inequality holds [1]_
    [2]_ [3]_. The rate of a first exceedance starts at 2 %, that of a further one at 1 %. Both are learned from
    runs of exceedances that have ended, the second by the run's age, as far as more than one device of the group
    has them; they never fall below 0.5 %, and are at least those of the device's own last hundred rounds, but for
    that at most 10 % or twice its group's. No distribution is assumed. "Healthy" means: not slower than its own
    first rounds by ``min_slowdown``, no further from its peers than ordinary chips (7 %, or 3.5 spreads), and not
    disturbed much more often than they are: a device that exceeds in far more than a tenth of its rounds, while its
    peers do not, is taken for slow.
    The same bound holds separately for suspect verdicts against devices that exceed the smaller report limits only by
    chance, and for those against devices that exceed at times only.  :meth:`check` judges one cross-section and is
    outside this guarantee: its error rate is measured (``docs/benchmarks``).

    **Dependence.** What a disturbance of one device lasts is not known before some have ended.  So in a job in which
    healthy devices are slow for several rounds on end, the first such run breaks the assumption, and with it the bound,
    if a restart is made at once; it does not once the run must also have cost what a restart costs, as long as that is
    more than almost all runs cost (``docs/detection.md`` has the figures).  The same holds for the first twenty rounds
    of readings that wander.  :meth:`take_notices` says when the analysis finds itself in such a job.

    **Few devices.** One device: no claim.  Two: with history, the one that became slower than its own past while the
    other did not; without history, the slower one, but only if it is slower by a factor of two (or ``min_slowdown``
    squared).  Three and more: also by comparison with the peers, with a margin that shrinks with their number (5 % at
    three, 2.2 % at four).  If 45 % or more of a group look slow at once, the peers cannot tell which devices are slow:
    then only a device that became slower than its own past is accused, and none that was slow from the start.

    Parameters
    ----------
    false_alarm_budget
        Bound on the probability of any false restart verdict over the whole run, however long.
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
    .. [1] Ville, "Etude critique de la notion de collectif", 1939.
    .. [2] Shin, Ramdas and Rinaldo, "E-detectors: a nonparametric framework for sequential change detection", 2023.
    .. [3] Howard, Ramdas, McAuliffe, Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence sequences", 2021.

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
        if not 0 < false_alarm_budget < 1:
            raise ValueError(f"false_alarm_budget must be a probability between 0 and 1, got {false_alarm_budget}")
        self.false_alarm_budget = false_alarm_budget
        self.thresholds = Thresholds(min_slowdown, peer_slowdown)
        check_names(groups or ())
        self._labels = groups
        self._index = DeviceIndex()
        self._history = History.empty(0)
        self._rounds_tested = np.zeros(2, np.int64)
        self._new_verdicts = NewVerdicts()
        self._reported_kinds: set[tuple[str, str | None]] = set()
        self._notices: list[GroupNotice] = []
        self._has_begun = False  # to learn about the groups
        self._regroup()

    # -- readings ------------------------------------------------------------------------------------------------------

    def update(
        self, readings: Readings, now_s: float | None = None, states: Mapping[DeviceId, int] | None = None
    ) -> list[Verdict]:
        """Take one round of readings and return the verdicts that are new.

        Parameters
        ----------
        readings
            Seconds by device, one or more repeats.  A device may be missing or new; readings that are not positive and
            finite are ignored.
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
        self._has_begun = True
        typical = self._grouping.per_device(self._typical)
        is_lower = None
        if states is not None:
            is_lower = self._history.enter_states(rows, states, np.broadcast_to(typical, len(self._index))[rows])
        repeats = repeats_of(seconds)
        log_seconds = self._in_rows(log_fastest(repeats), rows)
        learning = np.isnan(self._history.baseline).any()
        noise = self._in_rows(repeat_noise(repeats), rows) if learning else None
        now_s = np.nan if now_s is None else now_s
        kinds = self._recognise(log_seconds) if self._labels is None else []
        self._judge(log_seconds, noise, is_lower, now_s)
        new = self._new_verdicts.of_round(
            self._history,
            self._index,
            self._grouping,
            now_s,
            budget=self.false_alarm_budget,
            min_slowdown=self.thresholds.min_slowdown,
        )
        return [*new, *kinds]

    def check(self, readings: ReadingsByProbe) -> list[Verdict]:
        """Judge one cross-section without history: which devices, and which nodes, are slower than their peers.

        ``readings`` are as for :meth:`update`; with several probes, a mapping of probe to seconds by device. A device
        is judged by the fastest of its samples and by the usual one; a node, if there are three or more with several
        devices each, also by its devices together.
        """
        check_names(readings)
        repeats = [repeats_of(seconds) for seconds in arrays_by_probe(readings) if seconds.size]
        if not repeats:
            return []
        log_seconds, index = list(map(log_fastest, repeats)), DeviceIndex(readings)
        grouping = self._labelled(index.devices)
        if self._labels is None:
            grouping = Grouping(joint_classes(log_seconds, index))
        nodes = slow_nodes(repeats, index, grouping, self.thresholds)
        found = slow_devices(repeats, index, grouping, self.thresholds)
        found += self._of_another_kind(log_seconds, grouping, index, {(each.host, each.gpu) for each in found})
        return with_nodes(merged_by_node(found, index.devices_of, self.thresholds.min_slowdown), nodes)

    # -- devices -------------------------------------------------------------------------------------------------------

    @property
    def devices(self) -> tuple[DeviceId, ...]:
        """The devices that are expected."""
        return self._index.devices

    @property
    def learned(self) -> int:
        """How many devices have a baseline to be compared with."""
        return int(np.count_nonzero(~np.isnan(self._history.baseline)))

    def suspects(self, device: DeviceId) -> bool | None:
        """Return whether a device's latest readings are slow, certain or not; ``None`` if it has given none."""
        row = self._index.row_of(device)
        if row is None or not self._history.seen[row]:
            return None
        return bool(self._history.rounds[row])

    def became_slow(self, device: DeviceId) -> bool:
        """Return whether it is certain that a device has become slower than it was, by enough for a restart."""
        row = self._index.row_of(device)
        if row is None:
            return False
        return bool(self._history.evidence[SELF, RESTART, row] >= 1 / self.false_alarm_budget)

    def slow_in_this_state(self, device: DeviceId) -> bool:
        """Return whether a slow device was less than half as slow in another state, in logs."""
        row, episode = self._index.row_of(device), self.episode(device)
        return row is not None and episode is not None and self._history.before[row] < np.log(episode.slowdown) / 2

    def episode(self, device: DeviceId) -> Episode | None:
        """Return the slow episode that a device is in; ``None`` if it is not slow, or not known."""
        row = self._index.row_of(device)
        return None if row is None else episode_at(row, self._history, self._grouping, self._typical)

    def take_notices(self) -> list[GroupNotice]:
        """Return what is new about the readings of whole groups: each thing once, and no device is to blame for it."""
        new, self._notices = self._notices, []
        return new

    def expect(self, devices: Iterable[DeviceId]) -> None:
        """Make room for devices before the first round; those already known keep their history."""
        index = self._index.extended(devices)
        if index is not self._index:
            self._index = index
            self._history = self._history.extended(len(index))
            self._regroup()

    def forget(self, hosts: Iterable[str]) -> None:
        """Drop the devices of hosts that left; the others keep their history."""
        left = set(hosts)
        kept = self._index.rows_outside(left)
        self._history = self._history.take(kept)
        self._index = DeviceIndex(self._index.devices[row] for row in kept)
        for host in left:
            self._new_verdicts.reported_hosts.pop(host, None)
        self._regroup()

    def set_thresholds(self, *, min_slowdown: float) -> None:
        """Change the smallest slowdown that matters while the job runs; the devices' history stays."""
        self.thresholds = replace(self.thresholds, min_slowdown=min_slowdown)

    def set_groups(self, groups: Mapping[DeviceId, Hashable] | None) -> None:
        """Change the devices' labels while the job runs; the devices' history stays."""
        check_names(groups or ())
        self._labels = groups
        self._regroup()

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

    def _labelled(self, devices: Sequence[DeviceId]) -> Grouping:
        if self._labels is None:
            return Grouping(np.zeros(len(devices), np.int32))
        return Grouping(codes_of([self._labels.get(device) for device in devices]))

    def _regroup(self, codes: NDArray[np.int32] | None = None) -> None:
        """Regroup the devices after some came or left; if the number of groups is the same, what they learned stays."""
        self._grouping = self._labelled(self._index.devices) if codes is None else Grouping(codes)
        self._rounds_together = 0
        self._fastest = np.full(1, np.nan, np.float32)  # log seconds of each device since then
        if self._has_begun and len(self._scales.wander) == len(self._grouping):
            self._scales.learn_noise(self._history, self._grouping)
        else:
            self._begin_learning()

    def _begin_learning(self) -> None:
        self._rates = Rates(self._grouping.sizes)
        self._scales = Scales(self._history, self._grouping)
        self._common_mode = CommonMode(len(self._grouping))
        self._typical_of_rounds = RollingMean(WARM_UP)
        self._typical = np.zeros(len(self._grouping), np.float32)
        self._warned: set[tuple[str, int]] = set()

    def _recognise(self, log_seconds: Floats) -> list[Verdict]:
        """Look for clear classes; if they changed, a device that is still learning its baseline starts again."""
        self._rounds_together += 1
        if self._rounds_together <= _CLASS_ROUNDS[-1]:
            self._fastest = np.fmin(self._fastest, log_seconds)
        if self._rounds_together not in _CLASS_ROUNDS:
            return []
        codes = clear_classes(self._fastest, self._index, pairs_too=self._rounds_together >= _PAIR_ROUNDS)
        if not np.array_equal(codes, self._grouping.codes):
            self._history.seen[np.isnan(self._history.baseline)] = 0
            self._history.evidence[PEER] = 0
            self._grouping = Grouping(codes)
            self._begin_learning()
        if self._rounds_together < _CLASS_ROUNDS[-1]:
            return []
        kinds = self._of_another_kind([log_seconds], self._grouping, self._index, self._reported_kinds)
        if not kinds:
            return []
        self._reported_kinds |= {(found.host, found.gpu) for found in kinds}
        return merged_by_node(kinds, self._index.devices_of, self.thresholds.min_slowdown)

    def _of_another_kind(
        self,
        of_probes: Sequence[Floats],
        grouping: Grouping,
        index: DeviceIndex,
        reported: Container[tuple[str, str | None]],
    ) -> list[Verdict]:
        """Return the devices of a slow class: it may be another model, so they are reported but not accused."""
        if self._labels is not None or len(grouping) == 1:
            return []
        return [
            verdict_of(index.devices[row], Slow(slowdown, "largest class", is_other_kind=True), sure=False)
            for row, slowdown in slow_minorities(of_probes, grouping).items()
            if index.devices[row] not in reported
        ]

    # -- one round -----------------------------------------------------------------------------------------------------

    def _judge(
        self, log_seconds: Floats, noise: Floats | None, is_lower: NDArray[np.bool_] | None, now_s: float
    ) -> None:
        history, grouping = self._history, self._grouping
        found = compare(log_seconds, noise, history, self._scales, grouping, self.thresholds)
        self._typical_of_rounds.add(found.typical)
        self._typical = self._typical_of_rounds.mean()
        self._rounds_tested += [tested.any() for tested in found.tested]
        accumulate_intermittent(
            history,
            found.exceeds[SELF][RESTART],
            found.tested[SELF],
            grouping,
            int(self._rounds_tested[SELF]),
            self.false_alarm_budget,
        )
        accumulate(
            history,
            found.exceeds,
            found.far,
            found.tested,
            self._rates,
            grouping,
            self._rounds_tested,
            self.false_alarm_budget,
        )
        residual = found.residual
        if is_lower is not None:  # a past that was learned in a lower state would not hold in this one
            residual = np.where(is_lower & np.isnan(history.baseline), np.float32(np.nan), residual)
        ready = history.remember(residual, found.level)
        if ready.any():
            self._scales.learn_noise(history, grouping)
            for level, limit in enumerate(self.thresholds.against_self(np.float32(SELF_NOISES) * self._scales.noise)):
                lengths = self._rates.learn_window(history.recent > limit, level, ready, grouping)
                np.copyto(history.run[SELF, level], lengths, where=ready)
        slow = found.exceeds[SELF][REPORT] | found.exceeds[PEER][REPORT]
        history.note_episodes(slow, ~np.isnan(log_seconds), now_s)
        self._note_what_all_share(found.pace, now_s)

    def _note_what_all_share(self, pace: Floats, now_s: float) -> None:
        for shift in self._common_mode.add(pace, now_s):
            if self._grouping.sizes[shift.group] > 1:
                since_s = None if np.isnan(shift.since_s) else shift.since_s
                self._notices.append(PaceChanged(self._group(shift.group), shift.ratio, since_s))
        allowed, lasts = self._scales.blurred(self.thresholds.self_levels[RESTART])
        for group in np.flatnonzero(allowed > 0).tolist():
            if self._is_new_notice("noise", group):
                noise, least = float(self._scales.wander[group]), float(np.exp(allowed[group]))
                self._notices.append(Noisy(self._group(group), noise, least, bool(lasts[group])))
        runs, mean_rounds = self._rates.lasting()
        for group in np.flatnonzero(runs > 0).tolist():
            if self._is_new_notice("disturbances", group):
                counts = int(runs[group]), float(mean_rounds[group])
                self._notices.append(DisturbancesLast(self._group(group), *counts))

    def _is_new_notice(self, about: str, group: int) -> bool:
        is_new = (about, group) not in self._warned
        self._warned.add((about, group))
        return is_new

    def _group(self, number: int) -> Group:
        rows = np.flatnonzero(self._grouping.codes == number)
        return Group(self._index.devices[rows[0]], len(rows), len(self._index))

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
            "rounds_tested": self._rounds_tested.tolist(),
            "reported_hosts": dict(self._new_verdicts.reported_hosts),
            "codes": self._grouping.codes.tolist(),
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
            analysis._rounds_tested = np.array(state["rounds_tested"], np.int64)
            analysis._new_verdicts.reported_hosts = dict(state["reported_hosts"])
        else:
            analysis._history.forget_run()
        analysis._regroup(np.asarray(state["codes"], np.int32)[kept] if analysis._labels is None else None)
        analysis._has_begun = True
        return analysis

"""SlowGPUAnalysis: finds slow devices in rounds of probe readings, within a false-alarm budget. Reads no clock."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from laggard.collectors.device import DeviceId
from laggard.detectors.analysis.cross_section import judged
from laggard.detectors.analysis.episodes import Slowness, episode_at, note_slowness, slowness_at
from laggard.detectors.analysis.findings import TOP_RANK, merged_by_node, rank_of, verdict_of
from laggard.detectors.analysis.group_knowledge import GroupKnowledge, groups_before
from laggard.detectors.economics.episode import Episode
from laggard.detectors.errors import StateVersionError
from laggard.detectors.evidence import Slow
from laggard.detectors.notices import GroupNotice
from laggard.detectors.statistics.common_mode import known_time
from laggard.detectors.statistics.comparison import learn
from laggard.detectors.statistics.device_index import (
    DeviceIndex,
    Readings,
    ReadingsByProbe,
    as_array,
    check_names,
)
from laggard.detectors.statistics.estimates import Floats, log_fastest, repeat_noise, repeats_of
from laggard.detectors.statistics.excursions import Scale, advance, scale_of, settle
from laggard.detectors.statistics.grouping import Grouping, labelled
from laggard.detectors.statistics.history import AT_TIMES, History, present_places
from laggard.detectors.statistics.thresholds import SILICON_SLOW, Thresholds, checked_budget
from laggard.detectors.verdict import Verdict
from laggard.settings import number

_VERSION = 9  # of what is kept
_MOST = math.log(1e12)  # nats: more jobs than that need not be told
_MEASURED = math.log(20)  # nats: so much more often than the budget says, chance does it in independent noise
_NEAR = 0.5  # of the way to the bar: such a device counts towards its node's verdict, but gets none of its own


class SlowGPUAnalysis:
    """Streaming detector of slow devices: ``docs/detection.md`` says how it works and what it guarantees.

    A device's fastest reading is compared with its own past and with its peers, and how much more likely it is if the
    device is slow is summed up (a CUSUM: Page, "Continuous inspection schemes", Biometrika 41, 1954).

    Parameters
    ----------
    false_alarm_budget
        Bound on the probability of any false verdict over the whole run, however long.
    min_slowdown
        The smallest slowdown that matters, as a ratio of times; no smaller one yields a restart verdict.
    groups
        Label of each device (model, stage, ...); only devices with the same label are compared.  ``None``: all are.
    peer_slowdown
        How much slower than its peers a healthy device may be, as a ratio of times: of chips of one model, 7 %.

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
        self._latest: tuple[Floats, Scale] | None = None  # the residuals of the last round, and their scale
        self._grouping = Grouping(np.zeros(0, np.int32))
        self._known = GroupKnowledge(1)

    # -- readings ------------------------------------------------------------------------------------------------------

    def update(
        self, readings: Readings, now_s: float | None = None, states: Mapping[DeviceId, int] | None = None
    ) -> list[Verdict]:
        """Take one round and return the verdicts that are new.

        Parameters
        ----------
        readings
            Seconds by device, one or more repeats.  A device may be missing or new; readings that are not between a
            millionth of a millionth and a million million are ignored.
        now_s
            Unix time of the round, for "since" (in UTC).
        states
            What each device is doing beside the probes (:class:`DeviceState`), as far as that is known: a device that
            gains a state learns its past anew in it, and meanwhile only its peers judge it.

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
        """Take one round as an array ``(n_devices, n_repeats)``, ``NaN`` where there is no reading."""
        rows = self._rows_of(devices)
        if not len(self._index):
            return []
        in_state = np.ones(len(self._index), np.bool_)
        if states is not None:
            in_state = ~self._history.enter_states(rows, states, self._grouping.per_device(self._known.pace.typical))
        repeats = repeats_of(seconds)
        log_seconds = self._in_rows(log_fastest(repeats), rows)
        now_s = number(now_s)
        is_early = bool((self._known.noise.rounds == 0).any())
        early_noise = self._in_rows(repeat_noise(repeats), rows) if is_early else None
        self._judge(log_seconds, early_noise, in_state, now_s)
        return self._new(now_s)

    def check(self, readings: ReadingsByProbe) -> list[Verdict]:
        """Judge one cross-section without history; with several probes, ``readings`` are by device and probe."""
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
        slow = self._slow(self._index.row_of(device))
        return slow is not None and slow.own_past and slow.slowdown >= self.thresholds.min_slowdown

    def slow_in_this_state(self, device: DeviceId) -> bool:
        """Return whether a slow device was less than half as slow in another state, in logs."""
        row = self._index.row_of(device)
        slow = self._slow(row)
        return slow is not None and bool(self._history.before[row] < np.log(slow.slowdown) / 2)

    def episode(self, device: DeviceId) -> Episode | None:
        """Return the slow episode that a device is in; ``None`` if it is not slow, or not known."""
        row = self._index.row_of(device)
        slow = self._slow(row)
        if row is None or slow is None or self._latest is None:
            return None
        residual, scale = self._latest
        return episode_at(row, self._history, slow, is_now=bool(residual[row] > scale.size[0, row] / 2))

    def _slow(self, row: int | None, which: NDArray[np.bool_] | None = None) -> Slowness | None:
        if row is None or self._latest is None:
            return None
        which = self._history.found[:, row] if which is None else which
        lasts = float(self._known.noise.lasts()[self._grouping.codes[row]])
        return slowness_at(row, self._history, self._latest[1], lasts, self.thresholds.smallest, which)

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
        kept = self._index.rows_outside(set(hosts))
        self._history = self._history.take(kept)
        self._index = DeviceIndex(self._index.devices[row] for row in kept)
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
        self._latest = None
        groups = groups_before(grouping, before)
        if groups is None:  # who is compared with others has other peers, and another common mode
            self._known = GroupKnowledge(len(grouping))
            self._history.typical[:] = np.nan
        else:
            self._known = self._known.taken(groups)

    # -- one round -----------------------------------------------------------------------------------------------------

    def _judge(
        self, log_seconds: Floats, early_noise: Floats | None, in_state: NDArray[np.bool_], now_s: float
    ) -> None:
        history, grouping, known, smallest = self._history, self._grouping, self._known, self.thresholds.smallest
        known.noise.set_least(smallest)
        compared = known.pace.compare(log_seconds, history, grouping, self.thresholds)
        if early_noise is not None:
            known.noise.add_early(early_noise, compared.relative - history.last, grouping)
        variance, lasts = known.noise.of_devices(history, grouping), grouping.per_device(known.noise.lasts())
        usual = grouping.per_device(grouping.high_median(history.often))
        scale = scale_of(history, variance, lasts, usual, smallest)
        residual, before, crowded = known.pace.residual(compared, history.last, scale.size[0], smallest, grouping)
        known.noise.add(compared.own, history.last, grouping, crowded)
        over = advance(history, residual, before, lasts, scale, self.false_alarm_budget)
        settle(history, over, scale, known.tails, grouping, self.false_alarm_budget)
        note_slowness(history, compared.own, compared.by_peers, scale)
        history.note_incidents(now_s)
        typical = grouping.per_device(known.pace.typical)
        learn(history, compared, typical, variance, known.noise.least, smallest, in_state)
        self._latest = residual, scale
        known.note(compared, now_s, smallest, grouping, self._index.devices)

    def _new(self, now_s: float) -> list[Verdict]:
        """Return what is worth a new verdict, and note it as reported."""
        history, hosts, bar = self._history, self._index.hosts, -np.log(self.false_alarm_budget)
        found = np.any(history.found, axis=0)
        news = found & (history.reported < TOP_RANK)
        if not news.any():
            return []
        large = (history.number > 0) & (history.odds >= _NEAR * bar) | history.found
        by_host: dict[int, dict[int, Verdict]] = defaultdict(dict)
        for row in np.flatnonzero(large.any(axis=0) & np.isin(hosts, hosts[news])).tolist():
            slow = self._slow(row, history.found[:, row] if found[row] else large[:, row])
            if slow is not None:
                by_host[int(hosts[row])][row] = self._verdict(row, slow, now_s)
        return [verdict for verdicts in by_host.values() for verdict in self._new_of_host(verdicts, news)]

    def _new_of_host(self, verdicts: dict[int, Verdict], news: NDArray[np.bool_]) -> list[Verdict]:
        reported = self._history.reported
        merged = merged_by_node(verdicts.values(), self._index.devices_of, self.thresholds.min_slowdown)
        if merged[0].gpu is not None:
            new = {row: found for row, found in verdicts.items() if news[row] and rank_of(found) > reported[row]}
            for row, found in new.items():
                reported[row] = rank_of(found)
            return list(new.values())
        [node] = merged
        rows, rank = list(verdicts), rank_of(node)
        is_new = rank > np.median(reported[rows])  # one device that was well in between is no news
        reported[rows] = np.maximum(reported[rows], rank)
        return [node] if is_new else []

    def _verdict(self, row: int, slow: Slowness, now_s: float) -> Verdict:
        history, at_times = self._history, slow.clock == AT_TIMES
        found = Slow(
            slow.shown,
            "own past" if slow.own_past else "peers",
            self._grouping.size_at(row) - 1,
            rounds=int(history.lasts[AT_TIMES if at_times else 0, row]),
            jobs=math.exp(min(float(history.odds[slow.clock, row]), _MOST) - _MEASURED),
            since_s=known_time(float(history.since_s[row])),
            now_s=known_time(now_s),
            share=slow.share if at_times else None,
        )
        is_sure = not at_times and slow.slowdown >= self.thresholds.min_slowdown
        return verdict_of(self._index.devices[row], found, sure=is_sure, own_past=slow.own_past)

    # -- state ---------------------------------------------------------------------------------------------------------

    def to_state(self, identity: Mapping[DeviceId, str] | None = None) -> dict[str, Any]:
        """Return everything that is remembered, as values that JSON can hold.

        ``identity``: each device's name that stays with it when it moves (its UUID), if it has one.
        """
        names = identity or {}
        return {
            "version": _VERSION,
            "devices": [list(device) for device in self.devices],
            "identities": [names.get(device, "") for device in self.devices],
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
        """Return an analysis that continues from what :meth:`to_state` returned.

        Parameters
        ----------
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
        if not same_run:
            analysis._history.forget_run()
        codes = np.asarray(state["codes"], np.int32)[kept]
        analysis._known = GroupKnowledge.from_state(state["groups"], same_run=same_run)
        analysis._regroup(labelled(analysis._index.devices, analysis._labels), codes)
        return analysis

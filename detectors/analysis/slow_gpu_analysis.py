"""SlowGPUAnalysis: finds slow devices in rounds of probe readings, within a false-alarm budget. Reads no clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from laggard.collectors.device import DeviceId
from laggard.detectors.analysis.cross_section import judged
from laggard.detectors.analysis.findings import new_verdicts, verdict_of
from laggard.detectors.economics.episode import Episode
from laggard.detectors.economics.restart_cost import share_lost
from laggard.detectors.errors import StateVersionError
from laggard.detectors.evidence import Slow
from laggard.detectors.notices import GroupNotice
from laggard.detectors.statistics import readings as of_round
from laggard.detectors.statistics.common_mode import known_time
from laggard.detectors.statistics.devices import Devices, Labels, check_names, present_places
from laggard.detectors.statistics.excursions import Scale, Slowness, advance, note_slowness, settle, slowness_at
from laggard.detectors.statistics.groups import Groups
from laggard.detectors.statistics.history import AT_TIMES, EXCURSION, INCIDENT, RUN, History
from laggard.detectors.statistics.readings import Flags, Floats, Readings, ReadingsByProbe
from laggard.detectors.statistics.thresholds import checked_budget, checked_slowdown
from laggard.detectors.verdict import Verdict
from laggard.settings import number

_VERSION = 11  # of what is kept
_MOST = math.log(1e12)  # nats: more jobs than that need not be told
_MEASURED = math.log(20)  # nats: so much more often than the budget says, chance does it in independent noise


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

    Examples
    --------
    >>> analysis = SlowGPUAnalysis()
    >>> slow = {("node0", "0"): [1.0], ("node0", "1"): [1.0], ("node1", "0"): [1.0], ("node1", "1"): [1.6]}
    >>> [verdict.gpu for _ in range(6) for verdict in analysis.update(slow)]
    ['1']
    """

    def __init__(
        self, *, false_alarm_budget: float = 1e-4, min_slowdown: float = 1.05, groups: Labels | None = None
    ) -> None:
        self.false_alarm_budget = checked_budget(false_alarm_budget)
        self.min_slowdown = checked_slowdown(min_slowdown)  # may be changed while the job runs
        check_names(groups or ())
        self._labels = groups
        self._history = History.empty(0)
        self._groups = Groups(1)
        self._group((), np.zeros(0, np.int32))

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
        devices, seconds = tuple(readings), of_round.as_array(readings.values())
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
        try:
            rows = self._devices.rows_of(devices)
        except KeyError:
            self.expect(devices)
            rows = self._devices.rows_of(devices)
        if not self.devices:
            return []
        repeats = np.full((seconds.shape[1], len(self.devices)), np.inf, np.float32)
        repeats[:, rows] = of_round.repeats_of(seconds)
        in_state = np.ones(len(self.devices), np.bool_)
        if states is not None:
            typical = self._devices.per_device(self._groups.pace.typical)
            in_state = ~self._history.enter_states(rows, states, typical)
        now_s, limits = number(now_s), (self.min_slowdown, self.false_alarm_budget)
        self._judge(repeats, in_state, now_s)
        return new_verdicts(self._history, self._devices, partial(self._verdict, now_s), *limits)

    def _judge(self, repeats: Floats, in_state: Flags, now_s: float) -> None:
        """Judge a round's repeats ``(n_repeats, n_devices)``, infinite where there is none."""
        history, devices, pace, noise = self._history, self._devices, self._groups.pace, self._groups.noise
        budget, smallest = self.false_alarm_budget, float(np.log(self.min_slowdown))
        noise.set_least(smallest)
        compared = pace.compare(of_round.log_fastest(repeats), history, devices)
        if (noise.rounds == 0).any():
            noise.add_early(of_round.repeat_noise(repeats), compared.relative - history.last, devices)
        variance, lasts = noise.of_devices(history, devices), devices.per_device(noise.lasts())
        often = devices.per_device(devices.high_median(history.often))
        scale = Scale.of(history, variance, lasts, often, smallest)
        residual, before, crowded = pace.residual(compared, history.last, scale.size[0], smallest, devices)
        noise.add(compared.own, history.last, devices, crowded)
        over = advance(history, residual, before, scale, budget)
        settle(history, over, scale, self._groups.tails, devices, budget)
        note_slowness(history, compared.own, compared.by_peers, scale)
        history.note_incidents(now_s)
        history.learn(compared, variance, noise.least, smallest, in_state)
        self._variance, self._slow_now = variance, residual > scale.size[0] / 2
        self._groups.note(compared, now_s, smallest, devices)

    def check(self, readings: ReadingsByProbe) -> list[Verdict]:
        """Judge one cross-section without history; with several probes, ``readings`` are by device and probe."""
        return judged(readings, self._labels, self.min_slowdown)

    def take_notices(self) -> list[GroupNotice]:
        """Return what is new about the readings of whole groups: each thing once, and no device is to blame for it."""
        new, self._groups.notices = self._groups.notices, []
        return new

    # -- what is known of a device -------------------------------------------------------------------------------------

    @property
    def learned(self) -> int:
        """How many devices have a baseline to be compared with."""
        return int(np.count_nonzero(~np.isnan(self._history.base)))

    def suspects(self, device: DeviceId) -> bool | None:
        """Return whether a device's latest readings are slow, certain or not; ``None`` if it has given none."""
        history, row = self._history, self._devices.row_of.get(device)
        if row is None or not (history.rounds[row] or history.lasts[:, row].any()):
            return None
        return bool(history.number[:, row].any())

    def undecided(self) -> list[DeviceId]:
        """Return the devices that are suspected and not found to be slow yet, those with the most evidence first."""
        history = self._history
        some = np.flatnonzero(history.number.any(axis=0) & ~history.found.any(axis=0))
        most = np.where(history.number > 0, history.odds, -np.inf).max(axis=0)[some]
        return [self.devices[row] for row in some[np.argsort(-most, kind="stable")]]

    def became_slow(self, device: DeviceId) -> bool:
        """Return whether it is certain that a device has become slower than it was, by enough for a restart."""
        _, slow = self._found(device)
        return slow is not None and slow.own_past and slow.slowdown >= self.min_slowdown

    def slow_in_this_state(self, device: DeviceId) -> bool:
        """Return whether a slow device was less than half as slow in another state, in logs."""
        row, slow = self._found(device)
        return slow is not None and bool(self._history.before[row] < np.log(slow.slowdown) / 2)

    def episode(self, device: DeviceId) -> Episode | None:
        """Return the slow episode that a device is in; ``None`` if it is not slow, or not known."""
        history, (row, slow) = self._history, self._found(device)
        if slow is None:
            return None
        is_now, at_times = bool(self._slow_now[row]), slow.clock == AT_TIMES
        if at_times and not is_now:
            return None
        least, whole = max(1.0, slow.least), max(1.0, float(history.lasts[0, row]))
        costly = slow.share if at_times else min(1.0, slow.rounds / whole)
        is_usual = bool(history.usual[slow.clock, row])
        return Episode(float(history.since_s[row]), least if is_now else 1.0, share_lost(least), is_usual, costly)

    def _found(self, device: DeviceId) -> tuple[int, Slowness | None]:
        """Return the row of a device, and how slow it is as far as that is certain."""
        row = self._devices.row_of.get(device, -1)
        is_found = row >= 0 and self._variance.size and self._history.found[:, row].any()
        return row, self._slowness(row, self._history.found[:, row]) if is_found else None

    def _slowness(self, row: int, which: Flags) -> Slowness:
        """Return how slow a device is by some of its excursions in the last round."""
        lasts = float(self._groups.noise.lasts()[self._devices.codes[row]])
        return slowness_at(row, self._history, self._variance[row], lasts, float(np.log(self.min_slowdown)), which)

    def _verdict(self, now_s: float, row: int, which: Flags) -> Verdict:
        """Return the verdict on a device by some of its excursions."""
        slow, history = self._slowness(row, which), self._history
        at_times = slow.clock == AT_TIMES
        found = Slow(
            slow.shown,
            "own past" if slow.own_past else "peers",
            self._devices.size_at(row) - 1,
            rounds=int(history.lasts[AT_TIMES if at_times else 0, row]),
            jobs=math.exp(min(float(history.odds[slow.clock, row]), _MOST) - _MEASURED),
            since_s=known_time(float(history.since_s[row])),
            now_s=known_time(now_s),
            share=slow.share if at_times else None,
        )
        is_sure = not at_times and slow.slowdown >= self.min_slowdown
        return verdict_of(self._devices.names[row], found, sure=is_sure, own_past=slow.own_past)

    # -- devices and settings ------------------------------------------------------------------------------------------

    @property
    def devices(self) -> tuple[DeviceId, ...]:
        """The devices that are expected."""
        return self._devices.names

    def expect(self, devices: Iterable[DeviceId]) -> None:
        """Make room for devices before the first round; those already known keep their history."""
        new = [device for device in dict.fromkeys(devices) if device not in self._devices.row_of]
        check_names(new)
        if new:
            self._take((*self.devices, *new), np.append(np.arange(len(self.devices)), np.full(len(new), -1)))

    def forget(self, hosts: Iterable[str]) -> None:
        """Drop the devices of hosts that left; the others keep their history."""
        left = set(hosts)
        rows = [row for row, (host, _) in enumerate(self.devices) if host not in left]
        self._take(tuple(self.devices[row] for row in rows), np.array(rows, np.intp))

    def set_groups(self, groups: Labels | None) -> None:
        """Change the devices' labels while the job runs; the devices' history stays."""
        check_names(groups or ())
        self._labels = groups
        self._group(self.devices, self._devices.codes)

    def _take(self, devices: tuple[DeviceId, ...], rows: NDArray[np.intp]) -> None:
        """Go on with other devices, given their rows so far; -1: those that are new, which come last."""
        before = self._devices.codes[rows[rows >= 0]]
        self._history = self._history.take(rows)
        self._group(devices, before)

    def _group(self, devices: tuple[DeviceId, ...], before: NDArray[np.int32]) -> None:
        """Group the devices by their labels; ``before``: the former groups of the first ones, the others are new."""
        self._devices = Devices(devices, self._labels)
        # Of the last round: each device's noise, and whether it was slow; empty since devices came or left
        self._variance, self._slow_now = np.zeros(0, np.float32), np.zeros(0, np.bool_)
        groups = self._devices.since(before)
        if groups is None:  # who is compared with others has other peers, and another common mode
            self._groups = Groups(self._devices.n_groups)
            self._history.typical[:] = np.nan
        else:
            self._groups = self._groups.taken(groups)

    def to_state(self, identity: Mapping[DeviceId, str] | None = None) -> dict[str, Any]:
        """Return everything that is remembered, as values that JSON can hold.

        ``identity``: each device's name that stays with it when it moves (its UUID), if it has one.
        """
        return {
            "version": _VERSION,
            "devices": [list(device) for device in self.devices],
            "identities": [(identity or {}).get(device, "") for device in self.devices],
            "codes": self._devices.codes.tolist(),
            "groups": self._groups.to_state(),
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
        saved = [(str(host), str(gpu)) for host, gpu in state["devices"]]
        present = dict(enumerate(present_places(saved, state["identities"], identity or {})))
        rows = [row for row, device in present.items() if device is not None]
        analysis = cls(**parameters)
        analysis._history = History.from_state(state["history"]).take(np.array(rows, np.intp))
        if not same_run:
            analysis._history.clear(np.ones(len(rows), np.bool_), EXCURSION, RUN, INCIDENT)
        analysis._groups = Groups.from_state(state["groups"], same_run=same_run)
        devices = tuple(device for device in present.values() if device is not None)
        analysis._group(devices, np.asarray(state["codes"], np.int32)[rows])
        return analysis

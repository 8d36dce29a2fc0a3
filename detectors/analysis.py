"""Finds slow devices in rounds of probe readings, with a stated false-alarm budget; pure: it reads no clock."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from detectors.classes import joint_classes, slow_minorities
from detectors.cost import RestartCost
from detectors.cross_section import born_slow
from detectors.evidence import Rates, accumulate
from detectors.exceedance import Scales, compare
from detectors.findings import Finding, Terms, merged_by_node, verdict_of
from detectors.grouping import Grouping, codes_of
from detectors.history import PEER, REPORT, RESTART, SELF, History
from detectors.news import News
from detectors.readings import ONLY_PROBE, Device, Readings, as_array
from detectors.roster import Roster
from detectors.saved import Saved
from detectors.statistics import Floats, log_fastest, repeat_noise, repeats_of
from detectors.thresholds import Thresholds
from detectors.verdict import Verdict

__all__ = ["SlowGPUAnalysis"]

_CLASS_ROUNDS = (1, 2, 4, 8)  # of the same devices together, when to look for clear classes; then they stay
_OTHER_KIND = (
    "which looks like another model or pipeline stage, so it is compared with its like only: "
    "say with groups={device: label} which devices are peers"
)


class SlowGPUAnalysis:
    """Streaming detector of slow devices.

    Each round, a device's fastest reading is compared with its own past (after what its group has in common is taken
    out) and with its peers; each comparison that exceeds what a healthy device may show multiplies the evidence against
    it, each that does not divides it.

    **Guarantee.** If, given everything before, no healthy device exceeds in a round with a chance above the rate that
    the detector holds against it, then over the whole run, whatever its length, and whatever the dependence between
    devices, probes and rounds, the chance of any restart verdict against a healthy device is at most
    ``false_alarm_budget``.  For then its evidence, summed over healthy devices, probes and both tests, with the budget
    of a round spread over them, is a non-negative supermartingale, and Ville's inequality holds [1]_ [2]_ [3]_.  The
    rate starts at 2 % (1 % for one more exceedance), is learned from the exceedances that ended by themselves, and
    never falls below 0.5 %; no distribution is assumed.  "Healthy" means: no slower than its own first eight rounds by
    ``min_slowdown``, and no further from its peers than ordinary silicon (7 %, or 3.5 spreads).  The same bound holds
    apart for suspect verdicts against devices that exceed the smaller, report limits by chance only.  :meth:`check`
    judges one cross-section and is outside this guarantee: its error rate is measured (``docs/benchmarks``).

    **Few devices.** One device: no claim.  Two: by history, the one that rose against its own past while the other did
    not; without history, only a difference by a factor of two (or ``min_slowdown`` squared) accuses the slower one.
    Three and more: also by peers, with a margin that shrinks with their number (5 % at three, 2.2 % at four).  When
    45 % or more of a group look slow at once the peers cannot say who is right: then only a device that rose against
    its own past is accused, and of devices born so nobody.

    Parameters
    ----------
    false_alarm_budget
        Bound on the chance of any false restart verdict over the whole run, however long.
    min_slowdown
        The smallest slowdown that matters, as a ratio of times; no smaller one yields a restart verdict.
    groups
        Label of each device (model, stage, ...); devices are compared within their label.  ``None``: one group,
        in which clear classes are recognised; of a slower class that is the smaller one, each device is reported once
        as a suspect that looks like another model.
    restart_cost
        When a restart is worth it; ``None``: always.  May be set while the job runs.
    very_slow
        Slowdown from which a verdict is ``very slow``.

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
        groups: Mapping[Device, Hashable] | None = None,
        restart_cost: RestartCost | None = None,
        very_slow: float = 1.33,
    ) -> None:
        if not 0 < false_alarm_budget < 1:
            raise ValueError(f"false_alarm_budget must be a probability between 0 and 1, got {false_alarm_budget}")
        self.false_alarm_budget = false_alarm_budget
        self.restart_cost = restart_cost
        self.thresholds = Thresholds(min_slowdown, very_slow)
        self._labels = groups
        self._roster = Roster()
        self._probes: list[str] = []
        self._history = History.empty(0, 0)
        self._rounds_tested = np.zeros(2, np.int64)
        self._news = News()
        self._told_kinds: set[tuple[str, str | None]] = set()
        self._rates, self._scales = Rates(0, 0), Scales(self._history, Grouping(np.zeros(0, np.int32)))
        self._regroup()

    # -- readings in ---------------------------------------------------------------------------------------------------

    def update(self, readings: Readings, now_s: float | None = None) -> list[Verdict]:
        """Take one round of readings and return the verdicts that are new.

        Parameters
        ----------
        readings
            Seconds by device, one or more repeats; with several probes, a mapping of probe to seconds by device.  A
            device may be missing or new; readings that are no positive finite number are counted and ignored.
        now_s
            Unix time of the round, for "since" (told in UTC) and for the cost of waiting.
        """
        devices, probes, seconds = as_array(readings)
        return self.update_arrays(devices, seconds, probes=probes, now_s=now_s)

    def update_arrays(
        self,
        devices: tuple[Device, ...],
        seconds: NDArray[np.floating],
        *,
        probes: Sequence[str] = (ONLY_PROBE,),
        now_s: float | None = None,
    ) -> list[Verdict]:
        """Take one round as an array; the same devices as last time need no looking up.

        Parameters
        ----------
        seconds
            Shape ``(n_devices, n_probes, n_repeats)``, ``NaN`` where there is no reading.
        """
        rows = self._place(devices, probes)
        repeats, bad = repeats_of(seconds)
        self._history.bad_readings[rows] += bad
        log_seconds = self._placed(log_fastest(repeats), rows, probes)
        learning = np.isnan(self._history.baseline).any()
        noise = self._placed(repeat_noise(repeats), rows, probes) if learning else None
        if not log_seconds.size:
            return []
        now_s = np.nan if now_s is None else now_s
        kinds = self._recognise(log_seconds) if self._labels is None else []
        self._judge(log_seconds, noise, now_s)
        news = self._news.of_round(self._history, self._roster, self._grouping, self._terms, now_s)
        return [verdict_of(found) for found in [*news, *kinds]]

    def check(self, readings: Readings) -> list[Verdict]:
        """Judge one cross-section without history: which devices are born slow.

        ``readings`` as for :meth:`update`; of a device's samples the fastest counts.
        """
        devices, _, seconds = as_array(readings)
        if not seconds.size:
            return []
        repeats, _ = repeats_of(seconds)
        log_seconds, roster = log_fastest(repeats), Roster(devices)
        grouping = self._labelled(devices)
        if self._labels is None:
            grouping = Grouping(joint_classes(log_seconds, roster))
        slowdown, level = born_slow(log_seconds, repeat_noise(repeats), grouping.groups, self.thresholds)
        findings = [
            self._terms.finding(
                devices[row],
                float(slowdown[row]),
                sure=bool(level[row] == RESTART),
                reference=f"its {grouping.size_at(row) - 1} peers",
            )
            for row in map(int, np.flatnonzero(level >= REPORT))
        ]
        kinds = self._of_another_kind(log_seconds, grouping, roster, {(found.host, found.gpu) for found in findings})
        return [verdict_of(found) for found in merged_by_node([*findings, *kinds], roster.devices_of)]

    # -- who is there --------------------------------------------------------------------------------------------------

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that are expected."""
        return self._roster.devices

    @property
    def bad_readings(self) -> dict[Device, int]:
        """How many readings of a device were zero, negative or infinite; devices without any are left out."""
        counts = self._history.bad_readings
        return {self._roster.devices[row]: int(counts[row]) for row in np.flatnonzero(counts)}

    @property
    def learned(self) -> int:
        """How many devices have a past of their own to be compared with."""
        return int(np.count_nonzero(~np.isnan(self._history.baseline).any(axis=0)))

    def expect(self, devices: Iterable[Device], probes: Iterable[str] = ()) -> None:
        """Make room for devices and probes before the first round; those already known keep their history."""
        self._make_room(devices, probes)
        self._roster = self._roster.numbered()

    def _make_room(self, devices: Iterable[Device], probes: Iterable[str]) -> None:
        new_probes = [probe for probe in probes if probe not in self._probes]
        roster = self._roster.extended(devices)
        if new_probes or roster is not self._roster:
            self._probes += new_probes
            self._roster = roster
            self._history = self._history.extended(len(self._roster), len(self._probes))
            self._regroup()

    def forget(self, hosts: Iterable[str]) -> None:
        """Drop the devices of hosts that left; the others keep their history."""
        gone = set(hosts)
        kept = self._roster.rows_but_of(gone)
        self._history = self._history.take(kept)
        self._roster = Roster(self._roster.devices[row] for row in kept)
        for host in gone:
            self._news.told_hosts.pop(host, None)
        self._regroup()

    def set_thresholds(self, *, min_slowdown: float | None = None, very_slow: float | None = None) -> None:
        """Change the thresholds while the job runs; what is known of the devices stays."""
        now = self.thresholds
        self.thresholds = Thresholds(min_slowdown or now.min_slowdown, very_slow or now.very_slow)

    def set_groups(self, groups: Mapping[Device, Hashable] | None) -> None:
        """Change the devices' labels while the job runs; what is known of the devices stays."""
        self._labels = groups
        self._regroup()

    def _place(self, devices: tuple[Device, ...], probes: Sequence[str]) -> NDArray[np.intp]:
        """Make room for what is new; return the devices' rows."""
        try:
            rows = self._roster.rows_of(devices)
        except KeyError:
            self._make_room(devices, probes)
            return self._roster.rows_of(devices)
        self._make_room((), probes)
        return rows

    def _placed(self, values: Floats, rows: NDArray[np.intp], probes: Sequence[str]) -> Floats:
        """Put a round's values where their devices and probes are, ``NaN`` where nothing came."""
        columns = [self._probes.index(probe) for probe in probes]
        shape = (len(self._probes), len(self._roster))
        if values.shape == shape and columns == list(range(shape[0])) and np.array_equal(rows, np.arange(shape[1])):
            return values
        whole = np.full(shape, np.nan, np.float32)
        whole[np.array(columns, np.intp)[:, None], rows] = values
        return whole

    # -- who is compared with whom -------------------------------------------------------------------------------------

    def _labelled(self, devices: Sequence[Device]) -> Grouping:
        if self._labels is None:
            return Grouping(np.zeros(len(devices), np.int32))
        return Grouping(codes_of([self._labels.get(device) for device in devices]))

    def _regroup(self, codes: NDArray[np.int32] | None = None) -> None:
        """Group the devices anew, after some came or left; what the groups learned stays where their number does."""
        self._grouping = self._labelled(self._roster.devices) if codes is None else Grouping(codes)
        self._rounds_together = 0
        shape = (len(self._probes), len(self._grouping))
        if self._rates.rounds.shape[2:] == shape:
            self._scales.learn_noise(self._history, self._grouping)
        else:
            self._begin_learning()

    def _begin_learning(self) -> None:
        self._rates = Rates(len(self._probes), len(self._grouping))
        self._scales = Scales(self._history, self._grouping)

    def _recognise(self, log_seconds: Floats) -> list[Finding]:
        """Look for clear classes; where they changed, a device that is still learning its baseline begins again."""
        self._rounds_together += 1
        if self._rounds_together not in _CLASS_ROUNDS:
            return []
        codes = joint_classes(log_seconds, self._roster)
        if not np.array_equal(codes, self._grouping.codes):
            self._history.seen[np.isnan(self._history.baseline)] = 0
            self._history.evidence[PEER] = 0
            self._grouping = Grouping(codes)
            self._begin_learning()
        if self._rounds_together < _CLASS_ROUNDS[-1]:
            return []
        kinds = self._of_another_kind(log_seconds, self._grouping, self._roster, self._told_kinds)
        if not kinds:
            return []
        self._told_kinds |= {(found.host, found.gpu) for found in kinds}
        return merged_by_node(kinds, self._roster.devices_of)

    def _of_another_kind(
        self, log_seconds: Floats, grouping: Grouping, roster: Roster, told: Container[tuple[str, str | None]]
    ) -> list[Finding]:
        """Return who is slow as a class is: it may be another model, so it is told of and not accused."""
        if self._labels is not None or len(grouping) == 1:
            return []
        return [
            self._terms.finding(
                roster.devices[row], slowdown, sure=False, reference="the largest class of devices", note=_OTHER_KIND
            )
            for row, slowdown in slow_minorities(log_seconds, grouping).items()
            if roster.devices[row] not in told
        ]

    # -- one round -----------------------------------------------------------------------------------------------------

    @property
    def _terms(self) -> Terms:
        return Terms(self.false_alarm_budget, self.thresholds, self.restart_cost)

    def _judge(self, log_seconds: Floats, noise: Floats | None, now_s: float) -> None:
        history, grouping = self._history, self._grouping
        found = compare(log_seconds, noise, history, self._scales, grouping, self.thresholds)
        self._rounds_tested += [tested.any() for tested in found.tested]
        accumulate(
            history, found.exceeds, found.tested, self._rates, grouping, self._rounds_tested, self.false_alarm_budget
        )
        ready = history.remember(found.residual, found.level)
        if ready.any():
            self._scales.learn_noise(history, grouping)
            for level, limit in enumerate(self.thresholds.against_self(self._scales.noise)):
                self._rates.learn_window(history.recent > limit, level, ready, grouping)
        slow = _any_probe(found.exceeds[SELF][REPORT] | found.exceeds[PEER][REPORT])
        present = _any_probe(~np.isnan(log_seconds))
        history.note_episodes(slow, present, now_s)

    # -- state ---------------------------------------------------------------------------------------------------------

    def to_state(self, identity: Mapping[Device, str] | None = None) -> dict[str, Any]:
        """Return all that is remembered, as plain values and arrays.

        Parameters
        ----------
        identity
            A name that stays with the device when it moves (its UUID); without one a device is its host and gpu.
        """
        saved = Saved(
            list(self._roster.devices),
            self._probes,
            self._history,
            self._rounds_tested,
            self._news.told_hosts,
            self._grouping.codes,
        )
        return saved.to_state(identity or {})

    @classmethod
    def from_state(
        cls,
        state: Mapping[str, Any],
        *,
        identity: Mapping[Device, str] | None = None,
        same_run: bool = True,
        **parameters: Any,
    ) -> Self:
        """Return an analysis that remembers.

        Parameters
        ----------
        state
            From :meth:`to_state`; arrays may have become lists.
        identity
            The devices' present names by host and gpu: a known name brings its past along, wherever it sat.
        same_run
            The budget is one run's: ``True`` goes on with it (a relaunch), ``False`` begins a new job, which knows the
            devices' past.
        parameters
            As for the constructor.

        Raises
        ------
        ValueError
            If the state was written by a program of another version.
        """
        saved = Saved.from_state(state, identity or {}, same_run=same_run)
        analysis = cls(**parameters)
        analysis._roster, analysis._probes, analysis._history = Roster(saved.devices), saved.probes, saved.history
        analysis._rounds_tested, analysis._news.told_hosts = saved.rounds_tested, saved.told_hosts
        analysis._regroup(saved.codes if analysis._labels is None else None)
        return analysis


def _any_probe(flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.asarray(flags.any(axis=0))

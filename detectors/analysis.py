"""Finds slow devices in rounds of probe readings, with a stated false-alarm budget; pure: it reads no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from detectors.cost import RestartCost
from detectors.cross_section import born_slow
from detectors.evidence import Rates, accumulate
from detectors.exceedance import Scales, compare
from detectors.findings import Finding, merged_by_node, verdict_of
from detectors.grouping import Grouping, codes_of, joint_classes
from detectors.history import PEER, REPORT, RESTART, SELF, History
from detectors.readings import ONLY_PROBE, Device, Readings, as_array
from detectors.statistics import Floats, log_fastest, repeat_noise
from detectors.thresholds import Thresholds
from detectors.verdict import Action, Severity, Verdict

__all__ = ["SlowGPUAnalysis"]

_CLASS_ROUNDS = (1, 2, 4, 8)  # of the same devices together, when to look for clear classes; then they stay
_TOP_RANK = 6
_STATE_VERSION = 1


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
        in which clear classes are recognised.
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
        self._round = 0
        self._devices: list[Device] = []
        self._rows: dict[Device, int] = {}
        self._probes: list[str] = []
        self._history = History.empty(0, 0)
        self._told_hosts: dict[str, int] = {}
        self._last: tuple[Device, ...] = ()
        self._last_rows = np.zeros(0, np.intp)
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
        return self.update_arrays(self._last if devices == self._last else devices, seconds, probes=probes, now_s=now_s)

    def update_arrays(
        self,
        devices: tuple[Device, ...],
        seconds: NDArray[np.floating],
        *,
        probes: Sequence[str] = (ONLY_PROBE,),
        now_s: float | None = None,
    ) -> list[Verdict]:
        """Take one round as an array; passing the same tuple of devices again saves looking them up.

        Parameters
        ----------
        seconds
            Shape ``(n_devices, n_probes, n_repeats)``, ``NaN`` where there is no reading.
        """
        self._place(devices, probes)
        columns = [self._probes.index(probe) for probe in probes]
        log_seconds, bad = log_fastest(seconds)
        noise = repeat_noise(seconds) if np.isnan(self._history.baseline).any() else None
        if len(devices) < len(self._devices) or not np.array_equal(self._last_rows, np.arange(len(devices))):
            log_seconds, noise = (
                self._placed(log_seconds, columns),
                None if noise is None else self._placed(noise, columns),
            )
        np.add.at(self._history.bad_readings, self._last_rows, bad)
        self._round += 1
        self._rounds_together += 1
        if self._labels is None and self._rounds_together in _CLASS_ROUNDS and log_seconds.size:
            self._recognise(log_seconds)
        return self._judge(log_seconds, noise, np.nan if now_s is None else now_s)

    def check(self, readings: Readings) -> list[Verdict]:
        """Judge one cross-section without history: which devices are born slow.

        ``readings`` as for :meth:`update`; of a device's samples the fastest counts.
        """
        devices, _, seconds = as_array(readings)
        if not seconds.size:
            return []
        log_seconds, noise = log_fastest(seconds)[0], repeat_noise(seconds)
        if self._labels is None:
            grouping = Grouping(joint_classes(log_seconds, *_places(devices)))
        else:
            grouping = Grouping(codes_of([self._labels.get(device) for device in devices]))
        slowdown, level = born_slow(log_seconds, noise, grouping.groups, self.thresholds)
        findings = [
            self._finding(
                devices[row],
                float(slowdown[row]),
                sure=bool(level[row] == RESTART),
                reference=f"its {grouping.size_at(row) - 1} peers",
            )
            for row in map(int, np.flatnonzero(level >= REPORT))
        ]
        return [verdict_of(found) for found in merged_by_node(findings, Counter(host for host, _ in devices))]

    # -- who is there --------------------------------------------------------------------------------------------------

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that are expected."""
        return tuple(self._devices)

    @property
    def bad_readings(self) -> dict[Device, int]:
        """How many readings of a device were zero, negative or infinite; devices without any are left out."""
        return {
            self._devices[row]: int(self._history.bad_readings[row])
            for row in np.flatnonzero(self._history.bad_readings)
        }

    def expect(self, devices: Iterable[Device]) -> None:
        """Make room for devices; those already known keep their history."""
        fresh = [device for device in dict.fromkeys(devices) if device not in self._rows]
        if fresh:
            self._devices += fresh
            self._rows = {device: row for row, device in enumerate(self._devices)}
            self._history = self._history.extended(len(self._devices), len(self._probes))
            self._regroup()

    def forget(self, hosts: Iterable[str]) -> None:
        """Drop the devices of hosts that left; the others keep their history."""
        gone = set(hosts)
        kept = [row for row, (host, _) in enumerate(self._devices) if host not in gone]
        self._devices = [self._devices[row] for row in kept]
        self._rows = {device: row for row, device in enumerate(self._devices)}
        self._history = self._history.take(np.array(kept, np.intp))
        self._told_hosts = {host: rank for host, rank in self._told_hosts.items() if host not in gone}
        self._last = ()
        self._regroup()

    def set_thresholds(self, *, min_slowdown: float | None = None, very_slow: float | None = None) -> None:
        """Change the thresholds while the job runs; what is known of the devices stays."""
        now = self.thresholds
        self.thresholds = Thresholds(min_slowdown or now.min_slowdown, very_slow or now.very_slow)

    def _place(self, devices: tuple[Device, ...], probes: Sequence[str]) -> None:
        if devices is not self._last:
            self.expect(devices)
            self._last = devices
            self._last_rows = np.fromiter((self._rows[device] for device in devices), np.intp, len(devices))
        new_probes = [probe for probe in probes if probe not in self._probes]
        if new_probes:
            self._probes += new_probes
            self._history = self._history.extended(len(self._devices), len(self._probes))
            self._regroup()

    def _placed(self, values: Floats, columns: list[int]) -> Floats:
        """Put a round's values where their devices and probes are, ``NaN`` where nothing came."""
        whole = np.full((len(self._probes), len(self._devices)), np.nan, np.float32)
        whole[np.array(columns)[:, None], self._last_rows] = values
        return whole

    def _regroup(self, codes: NDArray[np.int32] | None = None, *, learned: bool = True) -> None:
        """Group the devices anew, after some came or left or classes were found; what the groups learned may stay."""
        if codes is None:
            labels = [self._labels.get(device) for device in self._devices] if self._labels is not None else []
            codes = codes_of(labels) if labels else np.zeros(len(self._devices), np.int32)
            self._rounds_together = 0
        self._grouping = Grouping(codes)
        self._hosts = codes_of([host for host, _ in self._devices])
        self._devices_of = Counter(host for host, _ in self._devices)
        shape = (len(self._probes), len(self._grouping))
        if learned and self._rates.rounds.shape[2:] == shape:
            self._scales.learn_noise(self._history, self._grouping)
        else:
            self._rates, self._scales = Rates(*shape), Scales(self._history, self._grouping)

    def _recognise(self, log_seconds: Floats) -> None:
        """Look for clear classes; where they changed, a device that is still learning its baseline begins again."""
        codes = joint_classes(log_seconds, *_places(self._devices))
        if not np.array_equal(codes, self._grouping.codes):
            self._history.seen[np.isnan(self._history.baseline)] = 0
            self._history.evidence[PEER] = 0
            self._regroup(codes, learned=False)

    # -- one round -----------------------------------------------------------------------------------------------------

    def _judge(self, log_seconds: Floats, noise: Floats | None, now_s: float) -> list[Verdict]:
        if not log_seconds.size:
            return []
        history = self._history
        found = compare(log_seconds, noise, history, self._scales, self._grouping, self.thresholds)
        accumulate(
            history, found.exceeds, found.tested, self._rates, self._grouping, self._round, self.false_alarm_budget
        )
        ready = history.remember(found.residual, found.level)
        if ready.any():
            self._scales.learn_noise(history, self._grouping)
            for level, limit in enumerate(self.thresholds.against_self(self._scales.noise)):
                self._rates.learn_window(history.recent > limit, level, ready, self._grouping)
        slow = _any_probe(found.exceeds[SELF][REPORT] | found.exceeds[PEER][REPORT])
        self._note_episodes(slow, _any_probe(~np.isnan(log_seconds)), now_s)
        return self._new_verdicts(now_s)

    def _note_episodes(self, slow: NDArray[np.bool_], present: NDArray[np.bool_], now_s: float) -> None:
        history = self._history
        over = present & ~slow & (history.evidence.sum(axis=(0, 2)).max(axis=0) < 1)
        history.since_s[slow & (history.rounds == 0)] = now_s
        history.rounds += present & (slow | (history.rounds > 0))
        history.since_s[over], history.rounds[over], history.told[over] = np.nan, 0, 0

    # -- verdicts out --------------------------------------------------------------------------------------------------

    def _new_verdicts(self, now_s: float) -> list[Verdict]:
        history, bar = self._history, 1 / self.false_alarm_budget
        by_test = history.evidence.sum(axis=2)
        total = by_test.sum(axis=0)
        sure = total[RESTART] >= bar
        highest = np.where(sure, _TOP_RANK, np.where(by_test[SELF, REPORT] >= bar, 2, 1))
        news = (total.max(axis=0) >= bar) & (history.told < highest)
        verdicts = []
        for host in dict.fromkeys(self._devices[row][0] for row in np.flatnonzero(news)):
            verdicts += self._news_of(host, total, now_s)
        return verdicts

    def _news_of(self, host: str, total: Floats, now_s: float) -> list[Verdict]:
        """Return what is new about a node.  Devices half-way to the bar count for it, not by themselves."""
        bar, told = 1 / self.false_alarm_budget, self._history.told
        rows = np.flatnonzero((self._hosts == self._hosts[self._row_on(host)]) & (total.max(axis=0) >= bar**0.5))
        findings = {int(row): self._finding_at(int(row), now_s) for row in rows}
        certain = {row: found for row, found in findings.items() if total[:, row].max() >= bar}
        merged = merged_by_node(findings.values(), self._devices_of)
        verdicts = []
        if any(found.gpu is None for found in merged):
            [node] = merged
            rank = node.rank
            if rank > self._told_hosts.get(host, 0) and rank > min(told[row] for row in findings):
                verdicts = [verdict_of(node)]
            self._told_hosts[host] = rank
            told[rows] = np.maximum(told[rows], rank)
            return verdicts
        for row, found in certain.items():
            if found.rank > told[row]:
                verdicts.append(verdict_of(found))
                told[row] = found.rank
        return verdicts

    def _row_on(self, host: str) -> int:
        return next(row for row, device in enumerate(self._devices) if device[0] == host)

    def _finding_at(self, row: int, now_s: float) -> Finding:
        history = self._history
        evidence = history.evidence[..., row]  # test, level, probe
        sure = bool(evidence[:, RESTART].sum() >= 1 / self.false_alarm_budget)
        which = RESTART if sure else REPORT
        # The own past says more exactly by how much, where it suffices by itself.
        enough = evidence[SELF, which].sum() >= 1 / self.false_alarm_budget
        test = SELF if enough else int(np.argmax(evidence[:, which].max(axis=1)))
        probe = int(np.argmax(evidence[test, which]))
        size = float(np.median(history.last_residuals(row, probe)))
        if test == PEER and not np.isnan(history.baseline[probe, row]):
            peers = self._grouping.groups[self._grouping.codes[row]]
            size += float(history.baseline[probe, row] - np.nanmedian(history.baseline[probe, peers]))
        others = self._grouping.size_at(row) - 1
        return self._finding(
            self._devices[row],
            float(np.exp(size)),
            sure=sure,
            reference=f"its {others} peers" if test == PEER else f"its own past and {others} peers",
            own_past=test == SELF,
            rounds=int(history.rounds[row]),
            e_value=float(evidence[:, which].sum()),
            since_s=float(history.since_s[row]),
            now_s=now_s,
        )

    def _finding(
        self,
        device: Device,
        slowdown: float,
        *,
        sure: bool,
        reference: str,
        own_past: bool = False,
        rounds: int = 1,
        e_value: float | None = None,
        since_s: float = np.nan,
        now_s: float = np.nan,
    ) -> Finding:
        severity: Severity = "suspect"
        if sure:
            severity = "very slow" if slowdown >= self.thresholds.very_slow else "slow"
        worth_it = self.restart_cost is None or self.restart_cost.worthwhile(slowdown, now_s - since_s)
        action: Action = "restart" if sure and worth_it else "report"
        return Finding(
            *device, slowdown, severity, action, reference, own_past, rounds, e_value, since_s, self.false_alarm_budget
        )

    # -- state ---------------------------------------------------------------------------------------------------------

    def to_state(self, identity: Mapping[Device, str] | None = None) -> dict[str, Any]:
        """Return all that is remembered, as plain values and arrays.

        Parameters
        ----------
        identity
            A name that stays with the device when it moves (its UUID); without one a device is its host and gpu.
        """
        known = identity or {}
        return {
            "version": _STATE_VERSION,
            "round": self._round,
            "devices": [list(device) for device in self._devices],
            "identities": [known.get(device, "") for device in self._devices],
            "probes": list(self._probes),
            "told_hosts": dict(self._told_hosts),
            "codes": self._grouping.codes,
            "history": self._history.arrays(),
        }

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
        """
        if state["version"] != _STATE_VERSION:
            raise ValueError(f"state has version {state['version']}, this program reads version {_STATE_VERSION}")
        analysis = cls(**parameters)
        saved = [(str(host), str(gpu)) for host, gpu in state["devices"]]
        devices = _present_places(saved, state["identities"], identity or {})
        kept = [row for row, device in enumerate(devices) if device is not None]
        analysis._devices = [device for device in devices if device is not None]
        analysis._rows = {device: row for row, device in enumerate(analysis._devices)}
        analysis._probes = list(state["probes"])
        analysis._history = History.from_arrays(state["history"]).take(np.array(kept, np.intp))
        if same_run:
            analysis._round = int(state["round"])
            analysis._told_hosts = dict(state["told_hosts"])
        else:
            analysis._history.forget_run()
        codes = np.asarray(state["codes"], np.int32)[kept]
        analysis._regroup(codes if analysis._labels is None else None)
        return analysis


def _places(devices: Sequence[Device]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    return codes_of([host for host, _ in devices]), codes_of([gpu for _, gpu in devices])


def _any_probe(flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.asarray(flags.any(axis=0))


def _present_places(
    saved: Sequence[Device], names: Sequence[str], identity: Mapping[Device, str]
) -> list[Device | None]:
    """Return where each saved device is now: where its name is, else where it was; ``None`` if another sits there."""
    place = {name: device for device, name in identity.items()}
    return [
        place.get(name, None if name and device in identity else device)
        for device, name in zip(saved, names, strict=True)
    ]

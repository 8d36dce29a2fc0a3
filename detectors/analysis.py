"""Finds slow devices in rounds of probe readings, with a stated false-alarm budget; pure: it reads no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from detectors.cost import RestartCost
from detectors.cross_section import born_slow
from detectors.evidence import Rates, accumulate
from detectors.findings import Finding, merged_by_node, rank_of, verdict_of
from detectors.grouping import codes_of, joint_classes, rows_of
from detectors.history import PEER, REPORT, RESTART, WARM_UP, History
from detectors.statistics import Floats, RollingMean, center_and_spread, log_fastest, log_typical, repeat_noise
from detectors.thresholds import Thresholds
from detectors.verdict import Action, Severity, Verdict

__all__ = ["Device", "Readings", "SlowGPUAnalysis"]

Device = tuple[str, str]
Readings = Mapping[Device, Sequence[float]] | Mapping[Device, Mapping[str, Sequence[float]]]

_PROBE = "probe"  # the name of the only probe where the caller gives none
_MAJORITY = 0.45  # when this share of a group looks slow at once, the peers cannot say who is right
_NOISE_FLOOR = 0.001
_CLASS_ROUNDS = (1, 2, 4, 8)  # when to look for clear classes; then they stay
_STATE_VERSION = 1


class SlowGPUAnalysis:
    """Streaming detector of slow devices; see the module's guide for the statistics.

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
        When a restart is worth it; ``None``: always.
    very_slow
        Slowdown from which a verdict is ``very slow``.
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
        self._last_rows: NDArray[np.intp] = np.zeros(0, np.intp)
        self._regroup()

    # -- readings in ---------------------------------------------------------------------------------------------------

    def update(self, readings: Readings, now_s: float | None = None) -> list[Verdict]:
        """Take one round of readings and return the verdicts that are new."""
        devices, probes, seconds = _as_array(readings)
        return self.update_arrays(self._last if devices == self._last else devices, seconds, probes=probes, now_s=now_s)

    def update_arrays(
        self,
        devices: tuple[Device, ...],
        seconds: NDArray[np.floating],
        *,
        probes: Sequence[str] = (_PROBE,),
        now_s: float | None = None,
    ) -> list[Verdict]:
        """Take one round as an array ``(n_devices, n_probes, n_repeats)``; ``NaN`` where there is no reading."""
        rows, columns = self._place(devices, probes)
        shape = (len(self._devices), len(self._probes), seconds.shape[2])
        if seconds.shape == shape and np.array_equal(rows, np.arange(len(rows))) and columns == list(range(shape[1])):
            whole = seconds
        else:
            whole = np.full(shape, np.nan)
            whole[rows[:, None], np.array(columns)] = seconds
        log_seconds, bad = log_fastest(whole)
        self._history.bad_readings += bad.astype(np.uint32)
        self._round += 1
        if self._labels is None and self._round in _CLASS_ROUNDS:
            self._recognise(log_seconds)
        return self._judge(log_seconds, repeat_noise(whole), np.nan if now_s is None else now_s)

    def _place(self, devices: tuple[Device, ...], probes: Sequence[str]) -> tuple[NDArray[np.intp], list[int]]:
        new_probes = [probe for probe in probes if probe not in self._probes]
        if devices is not self._last:
            fresh = [device for device in devices if device not in self._rows]
            self.expect(fresh)
            self._last = devices
            self._last_rows = np.fromiter((self._rows[device] for device in devices), np.intp, len(devices))
        if new_probes:
            self._probes += new_probes
            self._history = self._history.extended(len(self._devices), len(self._probes))
            self._regroup()
        return self._last_rows, [self._probes.index(probe) for probe in probes]

    def check(self, readings: Readings) -> list[Verdict]:
        """Judge one cross-section without history: which devices are born slow."""
        devices, _, seconds = _as_array(readings)
        if not devices:
            return []
        labels = [self._labels.get(device) for device in devices] if self._labels is not None else [0] * len(devices)
        codes, hosts = codes_of(labels), codes_of([host for host, _ in devices])
        log_seconds, noise = log_typical(seconds)
        if self._labels is None:
            codes = joint_classes(log_seconds, hosts)
        slowdown, level, peers = born_slow(log_seconds, noise, rows_of(codes), self.thresholds)
        findings = []
        for row in np.flatnonzero(level >= REPORT):
            severity: Severity = "suspect"
            if level[row] == RESTART:
                severity = "very slow" if slowdown[row] >= self.thresholds.very_slow else "slow"
            action: Action = "restart" if severity != "suspect" and self._worth_it(slowdown[row], np.nan) else "report"
            host, gpu = devices[row]
            findings.append(
                Finding(
                    host=host,
                    gpu=gpu,
                    slowdown=float(slowdown[row]),
                    severity=severity,
                    action=action,
                    reference=f"its {peers[row] - 1} peers",
                    rounds=1,
                    e_value=None,
                    since_s=np.nan,
                    budget=self.false_alarm_budget,
                )
            )
        merged = merged_by_node(findings, Counter(host for host, _ in devices))
        return [verdict_of(finding) for finding in merged]

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
        present = {name: device for device, name in (identity or {}).items()}
        saved = [tuple(device) for device in state["devices"]]
        moved = [present.get(name, device) for device, name in zip(saved, state["identities"], strict=True)]
        # A place taken over by another device is not the old device's any more.
        taken = {device for device, name in zip(moved, state["identities"], strict=True) if name in present}
        kept = [
            row
            for row, (device, name) in enumerate(zip(moved, state["identities"], strict=True))
            if name in present or (device not in taken and device not in (identity or {}))
        ]
        analysis._devices = [moved[row] for row in kept]
        analysis._rows = {device: row for row, device in enumerate(analysis._devices)}
        analysis._probes = list(state["probes"])
        analysis._history = History.from_arrays(state["history"]).take(np.array(kept, np.intp))
        if same_run:
            analysis._round = int(state["round"])
            analysis._told_hosts = dict(state["told_hosts"])
        else:
            analysis._history.forget_run()
        analysis._regroup()
        return analysis

    # -- who is there --------------------------------------------------------------------------------------------------

    def expect(self, devices: Iterable[Device]) -> None:
        """Make room for devices; those already known keep their history."""
        fresh = [device for device in dict.fromkeys(devices) if device not in self._rows]
        if fresh:
            self._rows.update(zip(fresh, range(len(self._devices), len(self._devices) + len(fresh)), strict=True))
            self._devices += fresh
            self._history = self._history.extended(len(self._devices), len(self._probes))
            self._regroup()

    def forget(self, hosts: Iterable[str]) -> None:
        """Drop the devices of hosts that left; the others keep their history."""
        gone = set(hosts)
        kept = [row for row, device in enumerate(self._devices) if device[0] not in gone]
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

    def _regroup(self, classes: NDArray[np.int32] | None = None) -> None:
        """Group the devices anew, after some came or left or classes were found."""
        labels: Sequence[Hashable] = [0] * len(self._devices)
        if self._labels is not None:
            labels = [self._labels.get(device) for device in self._devices]
        self._codes = codes_of(labels) if classes is None else classes
        self._groups = rows_of(self._codes)
        self._hosts = codes_of([host for host, _ in self._devices])
        self._devices_of = Counter(host for host, _ in self._devices)
        self._rates = Rates(len(self._groups), len(self._probes))
        self._spreads, self._repeat_noises = RollingMean(WARM_UP), RollingMean(WARM_UP)
        self._noise = self._usual_noise()

    def _recognise(self, log_seconds: Floats) -> None:
        classes = joint_classes(log_seconds, self._hosts)
        if not np.array_equal(classes, self._codes):
            learning = np.isnan(self._history.baseline)
            self._history.seen[learning] = 0
            self._history.evidence[:, :, PEER] = 0
            self._regroup(classes)

    def _usual_noise(self) -> Floats:
        """Return each device's noise: its own, or its group's where that is more (eight rounds are few)."""
        own = self._history.noise
        if not len(own):
            return own
        typical = np.stack([_high_median(own[rows]) for rows in self._groups])[self._codes]
        return np.fmax(np.fmax(own, typical), np.float32(_NOISE_FLOOR))

    # -- one round -----------------------------------------------------------------------------------------------------

    def _judge(self, log_seconds: Floats, repeats: Floats, now_s: float) -> list[Verdict]:
        history = self._history
        if not log_seconds.size:
            return []
        middle, spread = center_and_spread(log_seconds, self._groups)
        common, unrest = center_and_spread(log_seconds - history.baseline, self._groups)
        unknown = np.isnan(common)
        common, unrest = np.where(unknown, middle, common), np.where(unknown, 0, unrest)
        learned = ~np.isnan(history.baseline)
        valid = ~np.isnan(log_seconds)
        level = self._spread_out(common)
        residual = log_seconds - level - np.where(learned, history.baseline, 0)

        own_noise = np.fmax(self._noise, self._spread_out(unrest))
        limits = self.thresholds.against_self(own_noise)
        slow = residual[:, :, None] > limits
        slow &= learned[:, :, None]
        alone = (residual + level - history.common)[:, :, None] > limits
        slow &= alone | ~self._crowded(slow, valid)

        peers = self._spread_out(self._count(valid))
        typical_repeats = np.stack([_high_median(repeats[rows]) for rows in self._groups])
        self._spreads.add(spread)
        self._repeat_noises.add(typical_repeats)
        peer_noise = np.where(learned, self._noise, self._spread_out(self._repeat_noises.mean()))
        offset = log_seconds - self._spread_out(middle)
        born = offset[:, :, None] > self.thresholds.against_peers(
            peer_noise, self._spread_out(self._spreads.mean()), peers
        )
        born &= ~self._crowded(born, valid) | (peers == 2)[:, :, None]

        tested = np.stack([valid & learned, valid & (peers > 1)], axis=-1)[..., None]
        exceeds = np.stack([slow, born], axis=2)
        accumulate(history, exceeds, tested, self._rates, self._groups, self._round, self.false_alarm_budget)
        self._remember(residual, level, valid, learned)
        self._note_episodes(np.any(exceeds[..., REPORT], axis=(1, 2)), np.any(valid, axis=1), now_s)
        return self._new_verdicts(now_s)

    def _spread_out(self, by_group: NDArray[Any]) -> NDArray[Any]:
        return by_group if len(by_group) == 1 else by_group[self._codes]

    def _count(self, valid: NDArray[np.bool_]) -> NDArray[np.intp]:
        return np.stack([np.count_nonzero(valid[rows], axis=0) for rows in self._groups])

    def _crowded(self, slow: NDArray[np.bool_], valid: NDArray[np.bool_]) -> NDArray[np.bool_]:
        count = np.stack([np.count_nonzero(slow[rows], axis=0) for rows in self._groups])
        return self._spread_out(count >= _MAJORITY * np.maximum(self._count(valid), 1)[:, :, None])

    def _remember(self, residual: Floats, level: Floats, valid: NDArray[np.bool_], learned: NDArray[np.bool_]) -> None:
        history = self._history
        slot = history.seen % WARM_UP
        kept = np.take_along_axis(history.recent, slot[:, :, None].astype(np.intp), axis=2)[:, :, 0]
        np.put_along_axis(
            history.recent, slot[:, :, None].astype(np.intp), np.where(valid, residual, kept)[:, :, None], axis=2
        )
        learning = valid & ~learned
        history.common += np.where(learning, level / WARM_UP, 0)
        history.seen = np.where(valid, np.where(history.seen == 65_535, 65_528, history.seen + 1), history.seen)
        ready = learning & (history.seen >= WARM_UP)
        if ready.any():
            window = history.recent[ready]
            usual = np.median(window, axis=1)
            history.baseline[ready] = usual
            history.noise[ready] = 1.4826 * np.median(np.abs(window - usual[:, None]), axis=1)
            history.recent[ready] -= usual[:, None]
            self._noise = self._usual_noise()

    def _note_episodes(self, slow: NDArray[np.bool_], present: NDArray[np.bool_], now_s: float) -> None:
        history = self._history
        over = present & (history.evidence.sum(axis=(1, 2)).max(axis=1) < 1) & ~slow
        begun = slow & (history.rounds == 0)
        history.since_s[begun] = now_s
        history.rounds += (present & (slow | (history.rounds > 0))).astype(np.uint32)
        for array, blank in ((history.since_s, np.nan), (history.rounds, 0), (history.told, 0)):
            array[over] = blank

    # -- verdicts out --------------------------------------------------------------------------------------------------

    def _new_verdicts(self, now_s: float) -> list[Verdict]:
        history = self._history
        total = history.evidence.sum(axis=(1, 2))
        bar = 1 / self.false_alarm_budget
        accused = np.flatnonzero(total.max(axis=1) >= bar)
        if not len(accused):
            return []
        findings = {int(row): self._finding(int(row), now_s) for row in accused}
        told = history.told
        if all(rank_of(finding.severity, finding.action) <= told[row] for row, finding in findings.items()):
            return []
        merged = merged_by_node(findings.values(), self._devices_of)
        verdicts = []
        for finding in merged:
            rank = rank_of(finding.severity, finding.action)
            rows = [row for row in findings if self._devices[row][0] == finding.host]
            if finding.gpu is not None:
                rows = [self._rows[finding.host, finding.gpu]]
            if rank > max(told[row] for row in rows) or (
                finding.gpu is None and self._told_hosts.get(finding.host, 0) < rank
            ):
                verdicts.append(verdict_of(finding))
            if finding.gpu is None:
                self._told_hosts[finding.host] = rank
            told[rows] = np.maximum(told[rows], rank)
        return verdicts

    def _finding(self, row: int, now_s: float) -> Finding:
        history = self._history
        evidence = history.evidence[row]
        sure = bool(evidence[..., RESTART].sum() >= 1 / self.false_alarm_budget)
        which = RESTART if sure else REPORT
        probe, test = np.unravel_index(int(np.argmax(evidence[..., which])), evidence.shape[:2])
        rounds = int(history.rounds[row])
        ring = history.recent[row, probe]
        last = (int(history.seen[row, probe]) - 1 - np.arange(min(rounds, WARM_UP))) % WARM_UP
        size = float(np.nanmedian(ring[last]))
        others = self._groups[self._codes[row]]
        if test == PEER and not np.isnan(history.baseline[row, probe]):
            size += float(history.baseline[row, probe] - np.nanmedian(history.baseline[others, probe]))
        slowdown = float(np.exp(size))
        severity: Severity = "suspect"
        if sure:
            severity = "very slow" if slowdown >= self.thresholds.very_slow else "slow"
        peers = len(self._devices) if isinstance(others, slice) else len(others)
        action: Action = "report"
        if severity != "suspect" and self._worth_it(slowdown, now_s - history.since_s[row]):
            action = "restart"
        host, gpu = self._devices[row]
        return Finding(
            host=host,
            gpu=gpu,
            slowdown=slowdown,
            severity=severity,
            action=action,
            reference=f"its {peers - 1} peers" if test == PEER else f"its own past among {peers} devices",
            rounds=rounds,
            e_value=float(evidence[..., which].sum()),
            since_s=float(history.since_s[row]),
            budget=self.false_alarm_budget,
        )

    def _worth_it(self, slowdown: float, slow_for_s: float) -> bool:
        if self.restart_cost is None:
            return True
        return bool(self.restart_cost.worthwhile(np.array([slowdown]), np.array([slow_for_s]))[0])


def _high_median(values: Floats) -> Floats:
    """Return the slower of the two middle values of each column, ``NaN`` for an empty one."""
    ordered = np.sort(values, axis=0)
    counts = np.count_nonzero(~np.isnan(values), axis=0)
    return np.where(counts > 0, ordered[np.minimum(counts // 2, len(values) - 1), np.arange(values.shape[1])], np.nan)


def _as_array(readings: Readings) -> tuple[tuple[Device, ...], tuple[str, ...], NDArray[np.float64]]:
    """Turn a mapping of readings into an array, ``NaN`` where one device has fewer repeats or probes than another."""
    devices = tuple(readings)
    probes: tuple[str, ...] = (_PROBE,)
    cells: list[Sequence[float]] = [cell for cell in readings.values() if not isinstance(cell, Mapping)]
    by_probe = [cell for cell in readings.values() if isinstance(cell, Mapping)]
    if by_probe:
        probes = tuple(dict.fromkeys(chain.from_iterable(by_probe)))
        cells = [cell.get(probe, ()) for cell in by_probe for probe in probes]
    repeats = max(map(len, cells), default=1) or 1
    padded = [[*cell, *(np.nan,) * (repeats - len(cell))] for cell in cells]
    return devices, probes, np.array(padded, np.float64).reshape(len(devices), len(probes), repeats)

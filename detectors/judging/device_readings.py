"""Readings of test kernels: which devices are slow, what their tags say of them, and when more work is the reason."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

from laggard.collectors.causes import UNKNOWN, Cause
from laggard.collectors.device import DeviceId
from laggard.collectors.group import MAX_ERROR
from laggard.collectors.probes import WRONG
from laggard.detectors.analysis.slow_gpu_analysis import SlowGPUAnalysis
from laggard.detectors.economics.episode import Episode
from laggard.detectors.evidence import Reason
from laggard.detectors.judging.device_states import DeviceStates
from laggard.detectors.judging.groups import Groups, label_of
from laggard.detectors.judging.judge import Analysis, Moment
from laggard.detectors.judging.rounds import Round
from laggard.detectors.judging.section_readings import Condition, Probes
from laggard.detectors.notices import Notice
from laggard.detectors.verdict import Verdict, with_cause
from laggard.kvstore.control import LaunchRecord

HISTORY_KEY = "laggard/slow-gpu-history"


class DeviceReadings(Analysis):
    """The readings of the test kernels."""

    holds_up = False  # a device that is slow for lack of work keeps nobody waiting

    def __init__(self, *, min_slowdown: float, false_alarm_budget: float, groups: Groups | None = None) -> None:
        self._groups: Groups = groups or {}
        # Of all devices seen so far; only devices with the same label are compared
        self._labels: dict[DeviceId, Hashable] = {
            key: label for key, label in self._groups.items() if isinstance(key, tuple)
        }
        self._has_new_labels = False
        self._uuids: dict[DeviceId, str] = {}  # of the devices that have one, each of its own
        self._owners: dict[str, DeviceId] = {}
        self._causes: dict[DeviceId, Cause] = {}  # each device's likely cause of a slowdown
        self._wrong: dict[DeviceId, str] = {}  # which results were wrong, for the devices that computed any
        self.compared = SlowGPUAnalysis(
            min_slowdown=min_slowdown, false_alarm_budget=false_alarm_budget, groups=self._labels
        )
        self._states = DeviceStates()
        self._probed_s: dict[DeviceId, float] = {}
        self._n_kept = 0  # devices whose history is in the state
        self._excluded: tuple[str, ...] = ()
        self._reported_faulty: set[DeviceId] = set()

    def begin(self, launch: LaunchRecord) -> None:
        """Note which nodes are out: what was kept of them is forgotten."""
        keeper = () if launch.head_only is None else (launch.head_only.hostname,)
        self._excluded = (*launch.excluded, *keeper)

    @property
    def min_slowdown(self) -> float:
        """The smallest slowdown that matters."""
        return self.compared.min_slowdown

    @property
    def probes(self) -> Probes:
        """What the test kernels say, for those who judge by something else."""
        return Probes(
            self._condition,
            lambda device: str(self._labels.get(device, "")),
            lambda device: self._causes.get(device, UNKNOWN),
        )

    def _condition(self, device: DeviceId, since_s: float) -> Condition:
        suspects = self.compared.suspects(device)
        if suspects is None:
            return "not probed"
        if suspects:
            return "slow"
        return "not known" if self._probed_s.get(device, -math.inf) < since_s else "well"

    def note_device(self, device: DeviceId, tags: Mapping[str, str]) -> None:
        """Record a device's UUID, its likely cause of a slowdown, its wrong results, and its model as a label."""
        if WRONG in tags:
            self._wrong[device] = tags[WRONG][:MAX_ERROR]
        if "uuid" in tags and device not in self._uuids and self._owners.setdefault(tags["uuid"], device) == device:
            self._uuids[device] = tags["uuid"]
        if device not in self._labels:
            label = label_of(self._groups, None, *device)
            self._labels[device] = tags.get("model", "") if label is None else label
            self._has_new_labels = True
        self._causes[device] = Cause.of_tags(tags)
        self._states.note(device, tags)

    def update(self, readings: Round, moment: Moment) -> list[Verdict]:
        """Compare a round, given what the devices are doing."""
        if self._has_new_labels:
            self._has_new_labels = False
            self.compared.set_groups(self._labels)
        states = self._states.of_round(readings.keys(), self._labels, has_progress=moment.has_progress)
        self._probed_s.update(dict.fromkeys(readings, moment.now_s))
        return self.compared.update(readings, moment.now_s, states)

    def episode(self, device: DeviceId) -> Episode | None:
        """Return the slow episode that a device is in."""
        return self.compared.episode(device)

    def identities(self) -> Mapping[DeviceId, str]:
        """Return the devices' UUIDs."""
        return self._uuids

    def certain(self) -> list[Verdict]:
        """Return one verdict for each device that computed wrong results, the first time."""
        new = {device: what for device, what in self._wrong.items() if device not in self._reported_faulty}
        self._reported_faulty.update(new)
        return [Verdict.of_fault(*device, what) for device, what in new.items()]

    def why_not(self, verdict: Verdict) -> Reason | None:
        """Return whether devices that only their peers accuse have more to do than these."""
        devices = [each for each in self._probed_s if each[0] == verdict.host and verdict.gpu in {None, each[1]}]
        return (
            None
            if verdict.evidence.own_past
            else more_to_do(devices, self.compared, self._states, self._labels, self._causes)
        )

    def named(self, verdict: Verdict) -> Verdict:
        """Return a verdict with the likely cause."""
        return with_cause(verdict, self._causes)

    def take_notices(self) -> Sequence[Notice]:
        """Return what all devices share."""
        return self.compared.take_notices()

    # -- what is kept --------------------------------------------------------------------------------------------------

    def has_more_to_keep(self) -> bool:
        """Return whether more devices have a baseline than are kept."""
        return self.compared.learned > self._n_kept

    def to_state(self) -> dict[str, Any]:
        """Return the devices' history."""
        self._n_kept = self.compared.learned
        return self.compared.to_state(self._uuids)

    def restore(self, kept: Mapping[str, Any], *, same_run: bool) -> None:
        """Continue with the devices' history."""
        now = self.compared
        analysis = SlowGPUAnalysis.from_state(
            kept,
            identity=self._uuids,
            same_run=same_run,
            min_slowdown=now.min_slowdown,
            false_alarm_budget=now.false_alarm_budget,
            groups=self._labels,
        )
        analysis.forget(self._excluded)
        self.compared, self._n_kept = analysis, analysis.learned


def more_to_do(
    devices: Collection[DeviceId],
    analysis: SlowGPUAnalysis,
    states: DeviceStates,
    labels: Mapping[DeviceId, Hashable],
    causes: Mapping[DeviceId, Cause],
) -> Reason | None:
    """Return why a restart would not help for devices that only their peers accuse; ``None`` if it may."""
    # A device that was hardly slower than its peers when idle, and is busier than they are, has more to do, unless the
    # driver says what slows it down.

    def shares(device: DeviceId) -> tuple[float, float] | None:
        if not analysis.slow_in_this_state(device) or analysis.became_slow(device):
            return None
        return None if causes.get(device, UNKNOWN).is_known else states.much_busier(device, labels)

    found = list(map(shares, devices))
    first = found[0] if found and None not in found else None
    return None if first is None else Reason("busier", first)

"""What :class:`laggard.detectors.SlowGPUDetector` keeps on the primary: it turns rounds of readings into verdicts."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import replace

from laggard.collectors.causes import UNKNOWN
from laggard.collectors.device import DeviceId
from laggard.collectors.probes import WRONG
from laggard.detectors.economics.restart_cost import RestartCost
from laggard.detectors.economics.restarts import Grounds, Restarts
from laggard.detectors.judging.declared_phases import DeclaredPhases
from laggard.detectors.judging.groups import Groups, label_of
from laggard.detectors.judging.keeping import Keeper
from laggard.detectors.judging.rounds import Round
from laggard.detectors.judging.section_judge import Condition, Probes
from laggard.detectors.statistics.device_index import Readings
from laggard.detectors.statistics.device_states import DeviceStates
from laggard.detectors.statistics.slow_gpu_analysis import SlowGPUAnalysis
from laggard.detectors.verdict import Verdict, with_cause
from laggard.kvstore.control import LaunchRecord, Signs

__all__ = ["HISTORY_KEY", "Peers", "ReportingJudge", "SlowGPUJudge", "found_by", "more_to_do"]

_log = logging.getLogger("laggard.detectors")

HISTORY_KEY = "laggard/slow-gpu-history"

ReadSigns = Callable[[], Signs | None]


class Peers:
    """What the devices' tags say: which devices are peers, and what may be wrong with them.

    Parameters
    ----------
    groups
        Labels given by the user, of devices or hosts; a device without one is labelled with its model.

    Attributes
    ----------
    labels
        Of all devices seen so far; only devices with the same label are compared.
    uuids
        Of the devices that have one.
    causes
        Each device's likely cause of a slowdown.
    wrong
        Which results were wrong, for the devices that computed any.
    """

    def __init__(self, groups: Groups | None = None) -> None:
        self._groups: Groups = groups or {}
        self.labels: dict[DeviceId, Hashable] = {
            key: label for key, label in self._groups.items() if isinstance(key, tuple)
        }
        self.uuids: dict[DeviceId, str] = {}
        self.causes: dict[DeviceId, str] = {}
        self.wrong: dict[DeviceId, str] = {}
        self._has_new_labels = False

    def note_device(self, device: DeviceId, tags: Mapping[str, str]) -> None:
        """Record a device's UUID, its likely cause of a slowdown, its wrong results, and its model as a label."""
        self.causes[device] = tags.get("cause", UNKNOWN)
        if WRONG in tags:
            self.wrong[device] = tags[WRONG]
        if "uuid" in tags:
            self.uuids[device] = tags["uuid"]
        if device not in self.labels:
            label = label_of(self._groups, None, *device)
            self.labels[device] = tags.get("model", "") if label is None else label
            self._has_new_labels = True

    def group(self, analysis: SlowGPUAnalysis) -> None:
        """Pass the labels to the analysis if there are new ones since the last call."""
        if self._has_new_labels:
            self._has_new_labels = False
            analysis.set_groups(self.labels)


class SlowGPUJudge:
    """Judges the rounds of the main test, and asks for restarts that are worth it.

    Parameters
    ----------
    min_slowdown, false_alarm_budget, groups
        As for :class:`SlowGPUAnalysis`; a device without a label is grouped by its model.
    restart_cost
        What a restart costs; ``None``: as measured.
    keeper
        Keeps the devices' history from launch to launch; ``None``: it is not kept.
    """

    def __init__(
        self,
        *,
        min_slowdown: float,
        false_alarm_budget: float,
        restart_cost: RestartCost | None = None,
        groups: Groups | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        self.peers = Peers(groups)
        self.analysis = SlowGPUAnalysis(
            min_slowdown=min_slowdown, false_alarm_budget=false_alarm_budget, groups=self.peers.labels
        )
        self._restarts = Restarts(restart_cost)
        self._phases = DeclaredPhases()
        self._states = DeviceStates()
        self._read_signs: ReadSigns = lambda: None
        self._keeper = keeper or Keeper(None)
        self._probed_s: dict[DeviceId, float] = {}
        self._has_read_history = False
        self._devices_kept = 0  # how many devices' history is in the state
        self._run = ""
        self._excluded: tuple[str, ...] = ()
        self._reported_faulty: set[DeviceId] = set()

    def begin(self, launch: LaunchRecord, run: str, read_signs: ReadSigns = lambda: None) -> None:
        """Prepare for a launch.

        Parameters
        ----------
        launch
            Its excluded nodes are forgotten.
        run
            Identifies the job: launches of one job share the false-alarm budget.
        read_signs
            Returns what the program has shown of itself by now; ``None`` if that is not known.
        """
        self._run = run
        keeper = () if launch.book_keeper is None else (launch.book_keeper.hostname,)
        self._excluded = (*launch.excluded, *keeper)
        self._restarts.begin(launch)
        self._read_signs = read_signs

    @property
    def probes(self) -> Probes:
        """What the test kernels say, for those who judge by something else."""
        return Probes(
            self._condition,
            lambda device: str(self.peers.labels.get(device, "")),
            lambda device: self.peers.causes.get(device, UNKNOWN),
        )

    def _condition(self, device: DeviceId, since_s: float) -> Condition:
        suspects = self.analysis.suspects(device)
        if suspects is None:
            return "not probed"
        if suspects:
            return "slow"
        return "not known" if self._probed_s.get(device, -math.inf) < since_s else "well"

    def set_thresholds(
        self,
        *,
        min_slowdown: float | None = None,
        very_slow: float | None = None,
        restart_cost: RestartCost | None = None,
    ) -> None:
        """Change the given thresholds."""
        self.analysis.set_thresholds(min_slowdown=min_slowdown, very_slow=very_slow)
        if restart_cost is not None:
            self._restarts.given = restart_cost

    def note_device(self, device: DeviceId, tags: Mapping[str, str]) -> None:
        """Record what the tags of a device's samples say."""
        self.peers.note_device(device, tags)
        self._states.note(device, tags)

    def judge(self, readings: Round, now_s: float) -> list[Verdict]:
        """Return the verdicts that are new with this round."""
        if not self._has_read_history:
            self._read_history(now_s)
        self.peers.group(self.analysis)
        if (signs := self._read_signs()) is not None:
            self._restarts.note_signs(signs, self._keeper.commits, now_s)
            readings = self._phases.without(readings, signs.phases, now_s)
        states = self._states.of_round(
            readings.keys(), self.peers.labels, has_progress=signs is not None and self._restarts.has_progress
        )
        new = self.analysis.update(readings, now_s, states)
        self._probed_s.update(dict.fromkeys(readings, now_s))
        min_slowdown = self.analysis.thresholds.min_slowdown
        grounds = Grounds(self.analysis.episode, self.peers.uuids, min_slowdown, self._why_no_restart, holds_up=False)
        weighed = self._restarts.weigh(new, grounds, readings.keys(), now_s)
        verdicts = [with_cause(verdict, self.peers.causes) for verdict in (*self._faults(), *weighed)]
        if verdicts or self.analysis.learned > self._devices_kept:
            self.keep_history()
        return verdicts

    def _why_no_restart(self, verdict: Verdict) -> str:
        devices = [each for each in self._probed_s if each[0] == verdict.host and verdict.gpu in {None, each[1]}]
        return "" if verdict.own_past else more_to_do(devices, self.analysis, self._states, self.peers)

    def take_notices(self) -> list[str]:
        """Return what is new about all devices together; see :meth:`SlowGPUAnalysis.take_notices`."""
        return self.analysis.take_notices()

    def check(self, readings: Readings) -> list[Verdict]:
        """Judge one cross-section without history, see :meth:`SlowGPUAnalysis.check`."""
        return self.analysis.check(readings)

    def _faults(self) -> list[Verdict]:
        """Return one verdict for each device that computed wrong results, the first time."""
        new = {device: what for device, what in self.peers.wrong.items() if device not in self._reported_faulty}
        self._reported_faulty.update(new)
        return [Verdict.of_fault(*device, what) for device, what in new.items()]

    def _read_history(self, now_s: float) -> None:
        """Read the history that was kept; done in the first round, when the devices' UUIDs are known."""
        self._has_read_history = True
        kept = self._keeper.read(HISTORY_KEY)
        if kept is None:
            return
        now = self.analysis
        try:
            analysis = SlowGPUAnalysis.from_state(
                kept["analysis"],
                identity=self.peers.uuids,
                same_run=kept["run"] == self._run,
                min_slowdown=now.thresholds.min_slowdown,
                very_slow=now.thresholds.very_slow,
                false_alarm_budget=now.false_alarm_budget,
                groups=self.peers.labels,
            )
            if "restarts" in kept:
                self._restarts.restore(kept["restarts"], now_s, same_run=kept["run"] == self._run)
        except (KeyError, ValueError) as error:
            _log.warning("the devices' history cannot be read, so it starts afresh: %s", error)
            return
        analysis.forget(self._excluded)
        self.analysis, self._devices_kept = analysis, analysis.learned

    def keep_history(self) -> None:
        """Write the devices' history to the state."""
        # Seldom, not in each round: each takes the state server some time.
        if self._has_read_history and self._keeper.keeps:
            self._devices_kept = self.analysis.learned
            kept = {
                "run": self._run,
                "analysis": self.analysis.to_state(self.peers.uuids),
                "restarts": self._restarts.to_state(),
            }
            self._keeper.write(HISTORY_KEY, kept)


def more_to_do(devices: Collection[DeviceId], analysis: SlowGPUAnalysis, states: DeviceStates, peers: Peers) -> str:
    """Return why a restart would not help for devices that only their peers accuse; empty if it may.

    A device that was hardly slower than its peers when idle, and is busier than they are, has more to do, unless the
    driver says what slows it down.
    """

    def reason(device: DeviceId) -> str:
        if not analysis.slow_in_this_state(device) or analysis.became_slow(device):
            return ""
        is_explained = peers.causes.get(device, UNKNOWN) != UNKNOWN
        return "" if is_explained else states.much_busier(device, peers.labels)

    reasons = list(map(reason, devices))
    if not reasons or not all(reasons):
        return ""
    return f"it was hardly slower than its peers when idle, and is busier than they are ({reasons[0]})"


def found_by(probe: str) -> str:
    """Return the words at the end of a verdict's evidence that name the probe."""
    return f", by the probe {probe}"


class ReportingJudge:
    """Judges the rounds of one of the probes that run in turn, and only reports what it finds.

    Parameters
    ----------
    probe
        Its name.
    min_slowdown, false_alarm_budget, groups
        As for :class:`SlowGPUJudge`.
    """

    def __init__(
        self,
        probe: str,
        *,
        min_slowdown: float,
        false_alarm_budget: float,
        groups: Groups | None = None,
    ) -> None:
        self._probe = probe
        self._peers = Peers(groups)
        self._analysis = SlowGPUAnalysis(
            min_slowdown=min_slowdown, false_alarm_budget=false_alarm_budget, groups=self._peers.labels
        )
        self._phases = DeclaredPhases()
        self._read_signs: ReadSigns = lambda: None

    def begin(self, read_signs: ReadSigns) -> None:
        """Prepare for a launch; as for :class:`SlowGPUJudge`."""
        self._read_signs = read_signs

    def note_device(self, device: DeviceId, tags: Mapping[str, str]) -> None:
        """Record what the tags of a device's samples say."""
        self._peers.note_device(device, tags)

    def set_thresholds(self, *, min_slowdown: float | None = None, very_slow: float | None = None) -> None:
        """Change the given thresholds."""
        self._analysis.set_thresholds(min_slowdown=min_slowdown, very_slow=very_slow)

    def judge(self, readings: Round, now_s: float) -> list[Verdict]:
        """Return the verdicts that are new with this round; none asks for a restart."""
        self._peers.group(self._analysis)
        if (signs := self._read_signs()) is not None:
            readings = self._phases.without(readings, signs.phases, now_s)
        return [
            replace(
                with_cause(verdict, self._peers.causes),
                action="report",
                evidence=verdict.evidence + found_by(self._probe),
            )
            for verdict in self._analysis.update(readings, now_s)
        ]

    def take_notices(self) -> list[str]:
        """Return nothing: what all devices share is said once, by the main test."""
        return []

"""SlowGPUDetector: times a test kernel on every device of the launch and accuses those slower than their peers."""

from __future__ import annotations

import logging
import os
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar, Self

from collectors.causes import UNKNOWN, cause_of
from collectors.device import VIRTUAL_DEVICES
from collectors.job_symptoms import symptoms_since
from collectors.probes import Probe, gemm_probe
from collectors.symptoms import SymptomsSince
from detectors.analysis import SlowGPUAnalysis
from detectors.blame import with_cause
from detectors.cost import RestartCost
from detectors.detector import CollectorDetectorGroup, Window
from detectors.rounds import DeviceKey, Round
from detectors.verdict import Verdict
from kvstore.control import Control, LaunchRecord
from kvstore.errors import StateUnavailableError
from kvstore.session import current_session
from kvstore.state import State

__all__ = ["SlowGPUDetector"]

_log = logging.getLogger("laggard.detectors")

HISTORY_KEY = "laggard/slow-gpu-history"
GPU_MIN_SLOWDOWN = 1.05
# On a virtual device the probe queues behind the program's own kernels, so its readings depend on their size.
VIRTUAL_MIN_SLOWDOWN = 1.5


class SlowGPUDetector(CollectorDetectorGroup):
    """Finds the slow devices of the launch and asks for a relaunch without their nodes.

    Use it in the program, around the work: ``with SlowGPUDetector(): ...``.

    A subclass that overrides :meth:`analyze_data` is judged by that alone.

    Parameters
    ----------
    collection_rate
        Seconds from one round of test kernels to the next.
    state
        Where the devices' past is kept, by UUID: the next launch knows it and goes on with the same false-alarm budget.
        So does the next ``laggard`` command on the same ``--state-dir``, with a new budget; ``None``: each launch
        begins anew.
    groups
        Label of each device ``(host, gpu)``; only devices of one label are compared. Devices without one are grouped by
        their model.
    min_slowdown
        The smallest slowdown that matters: 1.05 is 5 %. By default 1.05 on GPUs and 1.5 on virtual devices.
    false_alarm_budget
        Bound on the probability of any false restart verdict over the whole run; see :class:`SlowGPUAnalysis`.
    restart_cost
        When a restart is worth it; ``None``: once as much is lost as the last relaunch took, as measured, and always
        before the first one.  ``RestartCost(0)``: always.
    """

    metric_name: ClassVar[str] = "gpu-probe-time"
    repeats: ClassVar[int] = 3

    def __init__(
        self,
        collection_rate: float = 3.0,
        *,
        state: State | None = None,
        groups: Mapping[DeviceKey, Hashable] | None = None,
        min_slowdown: float | None = None,
        false_alarm_budget: float = 1e-4,
        restart_cost: RestartCost | None = None,
    ) -> None:
        super().__init__(collection_rate)
        default = VIRTUAL_MIN_SLOWDOWN if VIRTUAL_DEVICES in os.environ else GPU_MIN_SLOWDOWN
        self._labels: dict[DeviceKey, Hashable] = dict(groups or {})
        self._uuids: dict[DeviceKey, str] = {}
        self._settings: dict[str, Any] = {
            "min_slowdown": default if min_slowdown is None else min_slowdown,
            "false_alarm_budget": false_alarm_budget,
            "restart_cost": restart_cost,
            "groups": self._labels,
        }
        self._state = state
        self._analysis = SlowGPUAnalysis(**self._settings)
        self._remembers = self._met_more = False
        self._kept = 0  # of how many devices the past was kept
        self._run = ""
        self._excluded: tuple[str, ...] = ()
        self._probes: dict[str, Probe] = {}
        self._symptoms: dict[str, SymptomsSince | None] = {}
        self._causes: dict[DeviceKey, str] = {}

    def start(self) -> Self:
        """Start the collectors and the watcher."""
        session = current_session()
        self._take_up(Control(session.client, session.endpoint, session.environment.launch).read_launch())
        # The folder is made for one command. Launch numbers would not do: on an old state directory they go on.
        self._run = str(session.environment.endpoint_file)
        return super().start()

    def _take_up(self, launch: LaunchRecord) -> None:
        self._excluded = launch.excluded
        if self._analysis.restart_cost is None and launch.relaunch_s is not None:
            self._analysis.restart_cost = RestartCost(launch.relaunch_s)

    def set_thresholds(
        self,
        *,
        min_slowdown: float | None = None,
        very_slow: float | None = None,
        restart_cost: RestartCost | None = None,
    ) -> None:
        """Change the thresholds while the job runs; what is not given stays, and so does what is known of the devices.

        Raises
        ------
        ValueError
            If a slowdown is not above 1.
        """
        self._analysis.set_thresholds(min_slowdown=min_slowdown, very_slow=very_slow)
        if restart_cost is not None:
            self._analysis.restart_cost = restart_cost

    def collector_test(self, args: Any) -> float:
        """Run the test kernel once; return its seconds on the device's clock."""
        del args
        if self.device.gpu not in self._probes:
            self._probes[self.device.gpu] = gemm_probe(self.device)
        return self._probes[self.device.gpu].seconds()

    def sample_tags(self) -> Mapping[str, str]:
        """Tell what the driver has seen on the device since its last sample, where that explains a slowness."""
        gpu = self.device.gpu
        if gpu not in self._symptoms:
            self._symptoms[gpu] = symptoms_since(self.device)
        symptoms = self._symptoms[gpu]
        cause = UNKNOWN if symptoms is None else cause_of(symptoms.take())
        return {} if cause == UNKNOWN else {"cause": cause}

    def meet(self, device: DeviceKey, tags: Mapping[str, str]) -> None:
        """Learn a device's UUID, what may slow it now, and its model if it has no label."""
        self._causes[device] = tags.get("cause", UNKNOWN)
        if "uuid" in tags:
            self._uuids[device] = tags["uuid"]
        if device not in self._labels:
            self._labels[device] = tags.get("model", "")
            self._met_more = True

    def judge(self, readings: Round, now_s: float) -> list[Verdict]:
        """Return the verdicts that are new with this round."""
        if type(self).analyze_data is not SlowGPUDetector.analyze_data:
            return super().judge(readings, now_s)
        if not self._remembers:
            self._remember()
        if self._met_more:
            self._met_more = False
            self._analysis.set_groups(self._labels)
        verdicts = [with_cause(verdict, self._causes) for verdict in self._analysis.update(readings, now_s)]
        if verdicts or self._analysis.learned > self._kept:
            self._keep_history()
        return verdicts

    def analyze_data(self, data: Window, analysis_args: Any) -> tuple[bool, list[str]]:
        """Judge one cross-section without history, as :meth:`SlowGPUAnalysis.check` does."""
        del analysis_args
        accused = [verdict for verdict in self._analysis.check(data) if verdict.action == "restart"]
        return bool(accused), sorted({verdict.host for verdict in accused})

    def stop(self) -> None:
        """End the watcher and the collectors, and keep what was learned."""
        super().stop()
        self._keep_history()

    def _remember(self) -> None:
        """Take up what was kept, with the first round: by then the devices have said who they are."""
        self._remembers = True
        if self._state is None or HISTORY_KEY not in self._state:
            return
        kept: Any = self._state[HISTORY_KEY]
        now = self._analysis
        settings = self._settings | {
            "min_slowdown": now.thresholds.min_slowdown,
            "very_slow": now.thresholds.very_slow,
            "restart_cost": now.restart_cost,
        }
        try:
            analysis = SlowGPUAnalysis.from_state(
                kept["analysis"], identity=self._uuids, same_run=kept["run"] == self._run, **settings
            )
        except (KeyError, ValueError) as error:
            _log.warning("the devices' past cannot be read and begins anew: %s", error)
            return
        analysis.forget(self._excluded)
        self._analysis, self._kept = analysis, analysis.learned

    def _keep_history(self) -> None:
        # Seldom, not each round: a commit to State counts as the program's progress.
        if self._state is not None and self._remembers:
            self._kept = self._analysis.learned
            try:
                self._state[HISTORY_KEY] = {"run": self._run, "analysis": self._analysis.to_state(self._uuids)}
            except StateUnavailableError as error:
                _log.warning("the devices' past was not kept this time: %s", error)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._probes = {}
        self._symptoms = {}

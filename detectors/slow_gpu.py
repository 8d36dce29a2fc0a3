"""SlowGPUDetector: times a test kernel on every device of the launch and accuses those slower than their peers."""

from __future__ import annotations

import os
from typing import Any, ClassVar, Self

from collectors.device import VIRTUAL_DEVICES
from collectors.probe import GemmProbe
from detectors.analysis import SlowGPUAnalysis
from detectors.detector import CollectorDetectorGroup, Window
from detectors.rounds import Round
from detectors.verdict import Verdict
from kvstore.control import Control
from kvstore.session import current_session
from kvstore.state import State

__all__ = ["SlowGPUDetector"]

HISTORY_KEY = "laggard/slow-gpu-history"
GPU_MIN_SLOWDOWN = 1.05
# On a virtual device the probe queues behind the program's own kernels, so its readings depend on their size.
VIRTUAL_MIN_SLOWDOWN = 1.5


class SlowGPUDetector(CollectorDetectorGroup):
    """Finds the slow devices of the launch and asks for a relaunch without their nodes.

    Use it in the program, around the work: ``with SlowGPUDetector(): ...``.

    Parameters
    ----------
    collection_rate
        Seconds from one round of test kernels to the next.
    state
        Where the devices' past is kept, so that the next launch knows it; ``None``: each launch begins anew.
    min_slowdown
        The smallest slowdown that matters: 1.05 is 5 %. By default 1.05 on GPUs and 1.5 on virtual devices.
    false_alarm_budget
        Bound on the probability of any false restart verdict over the whole run; see :class:`SlowGPUAnalysis`.
    """

    metric_name: ClassVar[str] = "gpu-probe-time"
    repeats: ClassVar[int] = 3

    def __init__(
        self,
        collection_rate: float = 3.0,
        *,
        state: State | None = None,
        min_slowdown: float | None = None,
        false_alarm_budget: float = 1e-4,
    ) -> None:
        super().__init__(collection_rate)
        default = VIRTUAL_MIN_SLOWDOWN if VIRTUAL_DEVICES in os.environ else GPU_MIN_SLOWDOWN
        settings: dict[str, Any] = {
            "min_slowdown": default if min_slowdown is None else min_slowdown,
            "false_alarm_budget": false_alarm_budget,
        }
        self._state = state
        self._analysis = SlowGPUAnalysis(**settings)
        if state is not None and HISTORY_KEY in state:
            self._analysis = SlowGPUAnalysis.from_state(state[HISTORY_KEY], **settings)
        self._probes: dict[str, GemmProbe] = {}

    def start(self) -> Self:
        """Start the collectors and the watcher."""
        session = current_session()
        launch = Control(session.client, session.endpoint, session.environment.launch).read_launch()
        self._analysis.forget(launch.excluded)
        return super().start()

    def collector_test(self, args: Any) -> float:
        """Run the test kernel once; return its seconds on the device's clock."""
        del args
        if self.device.gpu not in self._probes:
            self._probes[self.device.gpu] = GemmProbe(self.device)
        return self._probes[self.device.gpu].seconds()

    def judge(self, readings: Round, now_s: float) -> list[Verdict]:
        """Return the verdicts that are new with this round."""
        verdicts = self._analysis.update(readings, now_s)
        if verdicts:
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

    def _keep_history(self) -> None:
        # Seldom, not each round: a commit to State counts as the program's progress.
        if self._state is not None:
            self._state[HISTORY_KEY] = self._analysis.to_state()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._probes = {}

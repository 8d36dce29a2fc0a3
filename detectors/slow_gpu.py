"""SlowGPUDetector: a collector that times test kernels on every device, and a judge that finds the slow devices.

The collector (``collectors/slow_gpu_collector.py``) is sent to the nodes. The judge (``detectors/judging/``) stays with
the watcher, which reads the samples from the state server, makes rounds of them, and sends verdicts to the controller.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

from laggard.collectors.device import VIRTUAL_DEVICES, DeviceId
from laggard.collectors.group import NodeCollector
from laggard.collectors.probe_metrics import PROBE_TIME
from laggard.collectors.ray_actors import NodeActors
from laggard.collectors.slow_gpu_collector import SlowGPU
from laggard.detectors.detector import CollectorDetectorGroup, Window
from laggard.detectors.economics.restart_cost import RestartCost
from laggard.detectors.economics.restarts import Restarts
from laggard.detectors.judging.device_readings import HISTORY_KEY, DeviceReadings
from laggard.detectors.judging.groups import Groups
from laggard.detectors.judging.history_store import HistoryStore
from laggard.detectors.judging.judge import Judge
from laggard.detectors.judging.launch_signs import LaunchSigns
from laggard.detectors.judging.rounds import Round
from laggard.detectors.notices import Notice
from laggard.detectors.sections import SECTION_MIN_SLOWDOWN, SectionDetector
from laggard.detectors.statistics.thresholds import (
    GPU_MIN_SLOWDOWN,
    PROBES_SHARE,
    VIRTUAL_MIN_SLOWDOWN,
    checked_budget,
    checked_slowdown,
)
from laggard.detectors.verdict import Verdict
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.control import Control, NodeRecord
from laggard.kvstore.state.mapping import State
from laggard.settings import number

GPU_MAX_INTRUSION = 0.005  # docs/benchmarks/intrusion.md
# Virtual devices are for trying things out, and a slow one is only found if the probe is as large as its kernels.
VIRTUAL_MAX_INTRUSION = 0.25


class SlowGPUDetector(CollectorDetectorGroup):
    """Finds the slow devices of the launch and asks for a relaunch without their nodes.

    Use it in the program, around the work: ``with SlowGPUDetector(): ...``. It also compares the ranks by the times of
    the program's own sections, see :func:`laggard.section` and :class:`SectionDetector`.

    A subclass that overrides :meth:`analyze_data` is judged by that alone; one that overrides :meth:`collector_test`
    runs that in place of the matrix product.

    Parameters
    ----------
    collection_rate
        Seconds from one round of test kernels to the next.
    state
        Where the devices' history is kept, by UUID. The next launch reads it and continues with the same false-alarm
        budget; so does the next ``laggard`` command with the same ``--state-dir``, with a new budget. ``None``: each
        launch starts without a history.
    groups
        Labels of devices ``(host, gpu)``, of hosts, or, for the program's sections, of ranks; only what has the same
        label is compared. A device without one is grouped by its model.
    min_slowdown
        The smallest slowdown that matters: 1.05 is 5 %. By default 1.05 on GPUs and 1.5 on virtual devices.
    false_alarm_budget
        Bound on the probability of any false verdict of the job, by probes, sections and links together; see
        :class:`SlowGPUAnalysis`.
    restart_cost
        What a restart costs, in seconds or as a :class:`RestartCost`: one is asked for once the job has lost enough by
        a slow device. It counts until all of it is measured; ``None``: as measured, from the launch's start to the
        program's first progress, and the work since its newest checkpoint. 0: restart at once.
    max_intrusion
        The largest share of a device's time that the probe may take; if a round costs more, rounds are skipped. By
        default 0.5 % on GPUs and 25 % on virtual devices.
    inline_probes
        The program itself runs the test kernels, with :class:`laggard.collectors.InlineProbe`: nothing is started on
        the nodes.

    Raises
    ------
    ValueError
        If a setting is out of range.
    """

    metric_name: str = PROBE_TIME
    repeats: int = 3

    def __init__(
        self,
        collection_rate: float = 3.0,
        *,
        state: State | None = None,
        groups: Groups | None = None,
        min_slowdown: float | None = None,
        false_alarm_budget: float = 1e-4,
        restart_cost: RestartCost | float | None = None,
        max_intrusion: float | None = None,
        inline_probes: bool = False,
    ) -> None:
        super().__init__(collection_rate)
        is_virtual = VIRTUAL_DEVICES in os.environ
        given_slowdown = SECTION_MIN_SLOWDOWN if min_slowdown is None else min_slowdown
        if min_slowdown is None:
            min_slowdown = VIRTUAL_MIN_SLOWDOWN if is_virtual else GPU_MIN_SLOWDOWN
        if max_intrusion is None:
            max_intrusion = VIRTUAL_MAX_INTRUSION if is_virtual else GPU_MAX_INTRUSION
        if not 0 < number(max_intrusion) <= 1:
            raise ValueError(f"max_intrusion is {max_intrusion!r}: it is a share of the time, above 0 and at most 1")
        self.inline_probes = inline_probes
        self.collector = SlowGPU(
            collection_rate,
            max_intrusion=max_intrusion,
            metric_name=self.metric_name,
            repeats=self.repeats,
            own_test=self.collector_test if _overrides(self, "collector_test") else None,
        )
        keeper = HistoryStore(state)
        own_budget = PROBES_SHARE * checked_budget(false_alarm_budget)
        self._readings = DeviceReadings(min_slowdown=min_slowdown, false_alarm_budget=own_budget, groups=groups)
        self._judge = Judge(self._readings, Restarts(RestartCost.of(restart_cost)), keeper, HISTORY_KEY)
        self._sections = SectionDetector(
            groups=groups,
            min_slowdown=max(SECTION_MIN_SLOWDOWN, given_slowdown),
            false_alarm_budget=false_alarm_budget,
            restart_cost=restart_cost,
            probes=self._readings.probes,
            keeper=keeper,
        )

    def start(self) -> Self:
        """Start the collectors and the watcher."""
        session = current_session()
        launch = Control(session.client, session.endpoint, session.environment.launch).read_launch()
        # The endpoint file is made for one command. Launch numbers would not do: with an old state directory they
        # continue.
        self._judge.begin(launch, str(session.environment.endpoint_file), LaunchSigns(session).read)
        super().start()
        if not _overrides(self, "analyze_data"):
            self._sections.start()
        return self

    def stop(self) -> None:
        """Stop the watcher and the collectors, and keep the devices' history."""
        super().stop()
        self._sections.stop()
        self._judge.keep()

    def set_thresholds(
        self, *, min_slowdown: float | None = None, restart_cost: RestartCost | float | None = None
    ) -> None:
        """Change thresholds while the job runs; those not given, and the devices' history, stay as they are.

        Raises
        ------
        ValueError
            If the slowdown is not a number above 1, or the cost none of at least 0; then nothing is changed.
        """
        cost = RestartCost.of(restart_cost)
        if min_slowdown is not None:
            self._readings.compared.min_slowdown = checked_slowdown(min_slowdown)
        if cost is not None:
            self._sections.set_restart_cost(cost)
            self._judge.restarts.given = cost

    # -- the collector, on the nodes -----------------------------------------------------------------------------------

    def for_nodes(self) -> SlowGPU:
        """Return the collector, which is sent to the nodes."""
        self.collector.collector_args = self.collector_args
        return self.collector

    def collector_test(self, args: Any) -> float:
        """Run the test kernel once; return its seconds on the device's clock."""
        del args
        return self.collector.product_seconds()

    def _place(self, nodes: Sequence[NodeRecord]) -> NodeActors | NodeCollector | None:
        return None if self.inline_probes else super()._place(nodes)

    # -- the judge, beside the watcher ---------------------------------------------------------------------------------

    def note_device(self, device: DeviceId, tags: Mapping[str, str]) -> None:
        """Record a device's UUID, its likely cause of a slowdown, and its model if it has no label."""
        self._judge.note_device(device, tags)

    def judge(self, readings: Round, now_s: float) -> list[Verdict]:
        """Return the verdicts that are new with this round."""
        if _overrides(self, "analyze_data"):
            return super().judge(readings, now_s)
        return self._judge.judge(readings, now_s)

    def take_notices(self) -> Sequence[Notice]:
        """Return what the rounds show of all devices together: see :meth:`SlowGPUAnalysis.take_notices`."""
        return self._judge.take_notices()

    def analyze_data(self, data: Window, analysis_args: Any) -> tuple[bool, list[str]]:
        """Judge one cross-section without history, as :meth:`SlowGPUAnalysis.check` does."""
        del analysis_args
        accused = [verdict for verdict in self._readings.compared.check(data) if verdict.action == "restart"]
        return bool(accused), sorted({verdict.host for verdict in accused})


def _overrides(detector: SlowGPUDetector, method: str) -> bool:
    """Return whether a subclass overrides a method."""
    return getattr(type(detector), method) is not getattr(SlowGPUDetector, method)

"""SlowGPUDetector: times a test kernel on every device of the launch and accuses those slower than their peers."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Self

from collectors.device import VIRTUAL_DEVICES
from collectors.group import NodeCollector
from collectors.placement import NodeActors
from collectors.probes import GEMM_PROBE, PROBE_NAMES
from collectors.probing import Probing
from detectors.analysis import SlowGPUAnalysis
from detectors.blame import with_cause
from detectors.cost import RestartCost
from detectors.detector import CollectorDetectorGroup, Watcher, Window
from detectors.part import PART, Part
from detectors.peers import Peers
from detectors.rounds import DeviceKey, Round
from detectors.verdict import Verdict
from kvstore.control import Control, LaunchRecord, NodeRecord
from kvstore.errors import StateUnavailableError
from kvstore.session import current_session
from kvstore.state import State

__all__ = ["SlowGPUDetector"]

_log = logging.getLogger("laggard.detectors")

HISTORY_KEY = "laggard/slow-gpu-history"
GPU_MIN_SLOWDOWN = 1.05
# On a virtual device the probe queues behind the program's own kernels, so its readings depend on their size.
VIRTUAL_MIN_SLOWDOWN = 1.5
GPU_MAX_INTRUSION = 0.005
# Virtual devices are there to try things out, and a probe is seen there only if it is as large as a program's kernels.
VIRTUAL_MAX_INTRUSION = 0.25


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
    probes_in_turn
        Names of other probes (``collectors.probes.PROBE_NAMES``), one of which runs with each round, in turn. What they
        find is reported, each under a false-alarm budget of its own; it restarts nothing.
    max_intrusion
        The share of a device's time that all this may take: where a round costs more, rounds are left out. By default
        0.5 % on GPUs and 25 % on virtual devices.
    in_gaps
        The program itself runs the test kernels, with :class:`collectors.Gaps`: nothing is started on the nodes.

    Raises
    ------
    ValueError
        If a setting is out of its range, or there is no such probe.
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
        probes_in_turn: Collection[str] = (),
        max_intrusion: float | None = None,
        in_gaps: bool = False,
    ) -> None:
        super().__init__(collection_rate)
        virtual = VIRTUAL_DEVICES in os.environ
        default = VIRTUAL_MIN_SLOWDOWN if virtual else GPU_MIN_SLOWDOWN
        self.probes_in_turn = _known(probes_in_turn)
        usual = VIRTUAL_MAX_INTRUSION if virtual else GPU_MAX_INTRUSION
        self.max_intrusion = usual if max_intrusion is None else max_intrusion
        if not 0 < self.max_intrusion <= 1:
            raise ValueError(f"max_intrusion is {self.max_intrusion}: it is a share of the time, above 0 and at most 1")
        self.in_gaps = in_gaps
        self._peers = Peers(groups)
        self._settings: dict[str, Any] = {
            "min_slowdown": default if min_slowdown is None else min_slowdown,
            "false_alarm_budget": false_alarm_budget,
            "restart_cost": restart_cost,
            "groups": self._peers.labels,
        }
        self._state = state
        self._analysis = SlowGPUAnalysis(**self._settings)
        self._parts = {probe: Part(probe, self._settings) for probe in self.probes_in_turn}
        self._part_watchers: list[Watcher] = []
        self._remembers = False
        self._kept = 0  # of how many devices the past was kept
        self._run = ""
        self._excluded: tuple[str, ...] = ()
        self._probing: dict[str, Probing] = {}
        self._faulty: set[DeviceKey] = set()

    def start(self) -> Self:
        """Start the collectors and the watcher."""
        session = current_session()
        self._take_up(Control(session.client, session.endpoint, session.environment.launch).read_launch())
        # The folder is made for one command. Launch numbers would not do: on an old state directory they go on.
        self._run = str(session.environment.endpoint_file)
        interval_s = self.collection_rate * len(self.probes_in_turn)
        self._part_watchers = [
            Watcher(self._metric_of(probe), interval_s, part, tells_silence=False)
            for probe, part in self._parts.items()
        ]
        return super().start()

    def _place(self, nodes: Sequence[NodeRecord]) -> NodeActors | NodeCollector | None:
        return None if self.in_gaps else super()._place(nodes)

    def _metric_of(self, probe: str) -> str:
        return f"{self.metric_name}{PART}{probe}"

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
        for part in self._parts.values():
            part.set_thresholds(min_slowdown=min_slowdown, very_slow=very_slow)
        if restart_cost is not None:
            self._analysis.restart_cost = restart_cost

    def collector_test(self, args: Any) -> float:
        """Run the test kernel once; return its seconds on the device's clock."""
        del args
        return self._here.main_seconds()

    @property
    def _here(self) -> Probing:
        """What runs on the device of the running test."""
        gpu = self.device.gpu
        if gpu not in self._probing:
            self._probing[gpu] = Probing(self.device, self.probes_in_turn, self.max_intrusion)
        return self._probing[gpu]

    def read(self, turn: int) -> Mapping[str, Sequence[float]]:
        """Return the test kernel's readings, and those of the other probe whose turn it is."""
        here = self._here
        readings = dict(super().read(turn))
        here.end_main(readings[self.metric_name])
        if other := here.other(turn // self.turns_apart(), self.repeats):
            readings[self._metric_of(other[0])] = other[1]
        return readings

    def turns_apart(self) -> int:
        """Return how many times ``collection_rate`` lies between two turns of this device, for the intrusion's sake."""
        return self._here.turns_apart(self.collection_rate)

    def sample_tags(self) -> Mapping[str, str]:
        """Tell what the driver has seen on the device since its last sample, where that explains a slowness."""
        return self._here.tags()

    def meet(self, device: DeviceKey, tags: Mapping[str, str]) -> None:
        """Learn a device's UUID, what may slow it now, and its model if it has no label."""
        self._peers.meet(device, tags)

    def judge(self, readings: Round, now_s: float) -> list[Verdict]:
        """Return the verdicts that are new with this round."""
        if type(self).analyze_data is not SlowGPUDetector.analyze_data:
            return super().judge(readings, now_s)
        if not self._remembers:
            self._remember()
        self._peers.group(self._analysis)
        found = [*self._faults(), *self._analysis.update(readings, now_s)]
        verdicts = [with_cause(verdict, self._peers.causes) for verdict in found]
        if verdicts or self._analysis.learned > self._kept:
            self._keep_history()
        return verdicts

    def _faults(self) -> list[Verdict]:
        """Return a verdict on each device that was found to compute wrongly, once."""
        news = {device: what for device, what in self._peers.wrong.items() if device not in self._faulty}
        self._faulty.update(news)
        return [Verdict.of_fault(*device, what) for device, what in news.items()]

    def analyze_data(self, data: Window, analysis_args: Any) -> tuple[bool, list[str]]:
        """Judge one cross-section without history, as :meth:`SlowGPUAnalysis.check` does."""
        del analysis_args
        accused = [verdict for verdict in self._analysis.check(data) if verdict.action == "restart"]
        return bool(accused), sorted({verdict.host for verdict in accused})

    def stop(self) -> None:
        """End the watchers and the collectors, and keep what was learned."""
        super().stop()
        for watcher in self._part_watchers:
            watcher.stop()
        self._part_watchers = []
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
                kept["analysis"], identity=self._peers.uuids, same_run=kept["run"] == self._run, **settings
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
                self._state[HISTORY_KEY] = {"run": self._run, "analysis": self._analysis.to_state(self._peers.uuids)}
            except StateUnavailableError as error:
                _log.warning("the devices' past was not kept this time: %s", error)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._probing = {}


def _known(probes: Collection[str]) -> tuple[str, ...]:
    """Return these names in the order of the probes."""
    if unknown := set(probes) - set(PROBE_NAMES):
        raise ValueError(f"there is no probe {min(unknown)!r}: there are {', '.join(PROBE_NAMES)}")
    return tuple(probe for probe in PROBE_NAMES if probe in probes and probe != GEMM_PROBE)

"""SectionDetector: finds ranks that are slow in a part of the program's own step (:func:`laggard.section`)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, MutableMapping
from typing import Self

import redis

from laggard.collectors.group import Startable
from laggard.collectors.section_sender import section_of
from laggard.detectors.analysis import SlowGPUAnalysis
from laggard.detectors.detector import Watcher
from laggard.detectors.groups import Groups
from laggard.detectors.launch_cost import LaunchCost
from laggard.detectors.launch_signs import LaunchSigns
from laggard.detectors.restart_cost import UNKNOWN_COST_S, RestartCost
from laggard.detectors.section_judge import Probes, SectionJudge, worker_of
from laggard.detectors.sources import StreamSource
from laggard.kvstore.codec import Value
from laggard.kvstore.connection import current_session
from laggard.kvstore.control import Control, LaunchRecord
from laggard.kvstore.errors import FencedError, KVStoreError
from laggard.kvstore.series import Series
from laggard.kvstore.state import State

__all__ = ["SECTION_MIN_SLOWDOWN", "SectionDetector", "budget_share"]

_log = logging.getLogger("laggard.detectors")

# The work of a step varies more than that of a test kernel.
SECTION_MIN_SLOWDOWN = 1.1
# As many as a process may have.
MAX_WATCHED = 64
STOP_DEADLINE_S = 2.0
_FIRST = "-"  # the id before that of a stream's first sample


def budget_share(launch: int, section: int) -> float:
    """Return the share of the false-alarm budget that a section gets; those of all sections and launches sum to 1.

    Parameters
    ----------
    launch, section
        Their numbers, from 0: the section's is its place among those of the launch.
    """
    return 1 / ((launch + 1) * (launch + 2) * (section + 1) * (section + 2))


class SectionDetector(Startable):
    """Compares ranks by the times of the program's sections (:func:`laggard.section`), each section by itself.

    :class:`SlowGPUDetector` and ``--detect`` do so too; this is for programs whose devices are not to be probed.

    A restart is asked for if a rank has become slower than it was, or is slower than ranks that are known to have as
    much to do (``groups``); not if test kernels on its device are as fast as before, and not if the same rank was as
    slow on another node.

    Parameters
    ----------
    state
        Where it is kept which ranks a restart was asked for; ``None``: each launch starts without this.
    groups
        Labels of ranks, devices ``(host, gpu)`` or hosts, for instance ``{0: "stage 0", 1: "stage 1"}``; only ranks
        with the same label are compared.  A section's own ``group`` and ``LAGGARD_GROUP`` come first.  Ranks without a
        label are grouped by the model of their device, if it is probed.
    min_slowdown
        The smallest slowdown that matters, as a ratio of times; no smaller one yields a restart verdict.
    false_alarm_budget
        Bound on the probability of any false restart verdict over the whole run, see :class:`SlowGPUAnalysis`; sections
        and launches share it.
    restart_cost
        What a restart costs, in seconds or as a :class:`RestartCost`: one is asked for once as much is lost. ``None``:
        as measured. 0: at once.
    probes
        What test kernels say of the devices.
    """

    def __init__(
        self,
        *,
        state: State | None = None,
        groups: Groups | None = None,
        min_slowdown: float = SECTION_MIN_SLOWDOWN,
        false_alarm_budget: float = 1e-4,
        restart_cost: RestartCost | float | None = None,
        probes: Probes | None = None,
    ) -> None:
        self._accused: MutableMapping[str, Value] = {} if state is None else state
        self._groups: Groups = groups or {}
        self._min_slowdown = min_slowdown
        self._false_alarm_budget = false_alarm_budget
        self._measures_cost = restart_cost is None
        self._restart_cost = RestartCost.of(restart_cost) or RestartCost(UNKNOWN_COST_S)
        self._probes = probes or Probes()
        self._watchers: dict[str, Watcher] = {}
        self._analyses: list[SlowGPUAnalysis] = []
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Start watching.

        Raises
        ------
        NotInJobError
            If the process was not started by laggard.
        """
        session = current_session()
        launch = Control(session.client, session.endpoint, session.environment.launch).read_launch()
        series = Series(session.client, session.endpoint, launch.launch)
        # What an earlier launch has timed; of a section that comes later, every sample is of this one.
        past = {metric: series.last_id(metric) for metric in series.metrics() if section_of(metric)}
        self._ended.clear()
        arguments = (series, past, launch, LaunchSigns(session))
        self._thread = threading.Thread(target=self._look, args=arguments, name="section-detector", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop watching. Stopping twice does nothing."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(STOP_DEADLINE_S)
            self._thread = None
        for watcher in self._watchers.values():
            watcher.stop()
        self._watchers = {}

    def set_restart_cost(self, restart_cost: RestartCost) -> None:
        """Change what a restart costs, while the job runs."""
        self._restart_cost = restart_cost
        for analysis in self._analyses:
            analysis.restart_cost = restart_cost

    def _look(self, series: Series, past: Mapping[str, str], launch: LaunchRecord, signs: LaunchSigns) -> None:
        """Watch each section that appears."""
        interval_s, cost = launch.detect_interval_s, LaunchCost(launch)
        while not self._ended.wait(interval_s / 2):
            if self._measures_cost and (seen := signs.read()) is not None:
                cost.note(seen, 0, time.time())
                self.set_restart_cost(RestartCost(cost.price(time.time()).cost_s))
            try:
                for metric in sorted(series.metrics() - self._watchers.keys()):
                    is_there = section_of(metric) and series.last_id(metric) != past.get(metric)
                    if is_there and len(self._watchers) < MAX_WATCHED:
                        after = past.get(metric, _FIRST)
                        self._watchers[metric] = self._watcher(metric, after, launch.launch, interval_s)
            except FencedError:
                return
            except (KVStoreError, redis.RedisError) as error:
                _log.info("the detector of sections is waiting for the state server: %s", error)

    def _watcher(self, metric: str, after: str, launch: int, interval_s: float) -> Watcher:
        analysis = SlowGPUAnalysis(
            min_slowdown=self._min_slowdown,
            false_alarm_budget=self._false_alarm_budget * budget_share(launch, len(self._watchers)),
            restart_cost=self._restart_cost,
        )
        self._analyses.append(analysis)
        judge = SectionJudge(section_of(metric) or metric, analysis, self._groups, self._probes, self._accused)
        source = StreamSource(current_session(), metric, after=after, place=worker_of)
        return Watcher(metric, interval_s, judge, reports_silence=False, source=source, expected=())

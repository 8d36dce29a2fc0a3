"""SectionDetector: finds ranks that are slow in a part of the program's own step (:func:`laggard.section`)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from functools import partial
from typing import Self

import redis

from laggard.collectors.group import Startable
from laggard.collectors.section_sender import section_of
from laggard.detectors.analysis.slow_gpu_analysis import SlowGPUAnalysis
from laggard.detectors.economics.restart_cost import RestartCost
from laggard.detectors.economics.restarts import Restarts
from laggard.detectors.judging.groups import Groups
from laggard.detectors.judging.history_store import HistoryStore, SectionKeeper
from laggard.detectors.judging.judge import Judge
from laggard.detectors.judging.launch_signs import LaunchSigns
from laggard.detectors.judging.section_readings import Probes, SectionReadings, worker_of
from laggard.detectors.judging.sources import StreamSource
from laggard.detectors.judging.watcher import LONGEST_NAME, Watcher, tell_end_of
from laggard.detectors.statistics.thresholds import SECTIONS_SHARE, checked_budget, checked_slowdown
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.control import Control, LaunchRecord, Signs
from laggard.kvstore.errors import FencedError, KVStoreError
from laggard.kvstore.series.streams import Series
from laggard.kvstore.state.mapping import State

_log = logging.getLogger("laggard.detectors")

# The work of a step varies more than that of a test kernel.
SECTION_MIN_SLOWDOWN = 1.1
# As many as a process may have.
MAX_WATCHED = 64
STOP_DEADLINE_S = 2.0
_FIRST = "-"  # the id before that of a stream's first sample


def budget_share(launch: int, section: int) -> float:
    """Return the share of the budget that a section gets; those of all launches sum to what sections have."""
    return SECTIONS_SHARE / ((launch + 1) * (launch + 2) * (section + 1) * (section + 2))


class SectionDetector(Startable):
    """Compares ranks by the times of the program's sections (:func:`laggard.section`), each section by itself.

    :class:`SlowGPUDetector` and ``--detect`` do so too; this is for programs whose devices are not to be probed.

    A restart is asked for if a rank has become slower than it was, or is slower than ranks that are known to have as
    much to do (``groups``), once it is worth it; not if test kernels on its device are as fast as before, and not if
    the same rank was as slow on another node.

    Parameters
    ----------
    state
        Where incidents are kept; ``None``: each launch starts without those of the one before.
    groups
        Labels of ranks, devices ``(host, gpu)`` or hosts, for instance ``{0: "stage 0", 1: "stage 1"}``; only ranks
        with the same label are compared.  A section's own ``group`` and ``LAGGARD_GROUP`` come first.  Ranks without a
        label are grouped by the model of their device, if it is probed.
    min_slowdown
        The smallest slowdown that matters, as a ratio of times; no smaller one yields a restart verdict.
    false_alarm_budget
        Bound on the probability of any false verdict of the job, by probes, sections and links together; sections and
        launches share a tenth of it.
    restart_cost
        What a restart costs, in seconds or as a :class:`RestartCost`, as for :class:`SlowGPUDetector`. ``None``: as
        measured. 0: at once.
    probes
        What test kernels say of the devices.
    keeper
        Keeps the incidents in place of ``state``, for detectors that keep things together.
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
        keeper: HistoryStore | None = None,
    ) -> None:
        self._kept = SectionKeeper(keeper or HistoryStore(state))
        self._groups: Groups = groups or {}
        self._min_slowdown = checked_slowdown(min_slowdown)
        self._false_alarm_budget = checked_budget(false_alarm_budget)
        self._restart_cost = RestartCost.of(restart_cost)
        self._probes = probes or Probes()
        self._watchers: dict[str, Watcher] = {}
        self._judges: list[Judge] = []
        self._signs: Signs | None = None
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
        self._kept.begin()
        self._ended.clear()
        control = Control(session.client, session.endpoint, launch.launch)
        look = partial(self._look, series, past, launch, LaunchSigns(session))
        arguments = ("sections", control, look)
        self._thread = threading.Thread(target=tell_end_of, args=arguments, name="section-detector", daemon=True)
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
        for judge in self._judges:
            judge.restarts.given = restart_cost

    def _look(self, series: Series, past: Mapping[str, str], launch: LaunchRecord, signs: LaunchSigns) -> None:
        """Watch each section that appears."""
        interval_s = launch.detect_interval_s
        while not self._ended.wait(interval_s / 2):
            self._signs = signs.read() or self._signs
            try:
                for metric in sorted(series.metrics() - self._watchers.keys()):
                    is_name = section_of(metric) and len(metric) <= LONGEST_NAME
                    is_there = is_name and series.last_id(metric) != past.get(metric)
                    if is_there and len(self._watchers) < MAX_WATCHED:
                        after = past.get(metric, _FIRST)
                        self._watchers[metric] = self._watcher(metric, after, launch, interval_s)
            except FencedError:
                raise
            except (KVStoreError, redis.RedisError) as error:
                _log.info("the detector of sections is waiting for the state server: %s", error)

    def _watcher(self, metric: str, after: str, launch: LaunchRecord, interval_s: float) -> Watcher:
        session = current_session()
        analysis = SlowGPUAnalysis(
            min_slowdown=self._min_slowdown,
            false_alarm_budget=self._false_alarm_budget * budget_share(launch.launch, len(self._watchers)),
        )
        section = section_of(metric) or metric
        readings = SectionReadings(section, analysis, self._groups, self._probes, self._kept.asked)
        judge = Judge(readings, Restarts(self._restart_cost), self._kept, section)
        judge.begin(launch, str(session.environment.endpoint_file), lambda: self._signs)
        self._judges.append(judge)
        source = StreamSource(session, metric, after=after, place=worker_of)
        return Watcher(metric, interval_s, judge, source=source, expected=())

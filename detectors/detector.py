"""Detectors: watch a metric, judge each round of readings, and write verdicts for the controller to read.

:class:`Detector` watches a metric that something else collects; :class:`CollectorDetectorGroup` also collects it. A
detector never stops a job: that is left to the controller.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

from laggard.collectors.device import DeviceId
from laggard.collectors.group import CollectorGroup, Startable, checked_rate
from laggard.collectors.ray_actors import NodeActors
from laggard.detectors.evidence import Accused
from laggard.detectors.judging.rounds import Round
from laggard.detectors.judging.sources import AnySource
from laggard.detectors.judging.watcher import Watcher
from laggard.detectors.notices import Notice
from laggard.detectors.verdict import Evidence, Verdict
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.control import Control, NodeRecord

WINDOW_ROUNDS = 4  # what `analyze_data` looks at, as in Dragon

Window = dict[DeviceId, list[float]]
"""Each device's readings of the last rounds, oldest first."""


class Detector(Startable):
    """Watches the metric ``metric_name``, which something else collects, and judges it with :meth:`analyze_data`.

    It is fed by a :class:`~laggard.CollectorGroup`, or by :meth:`laggard.Telemetry.add_data` in any process of the job;
    a round then has the samples of one interval, by host and by the value of the metric's other tag.

    Parameters
    ----------
    collection_rate
        Seconds from one round to the next.
    analysis_args
        Passed to each call of :meth:`analyze_data`.
    """

    metric_name: str
    _watcher: Watcher | None = None

    def __init__(self, collection_rate: float = 3.0, analysis_args: Any = None) -> None:
        self.collection_rate = checked_rate(collection_rate)
        self.analysis_args = analysis_args
        self._window: Window = {}

    @abstractmethod
    def analyze_data(self, data: Window, analysis_args: Any) -> tuple[bool, list[str]]:
        """Judge the last rounds' readings; return whether to restart, and the hosts to exclude."""

    def note_device(self, device: DeviceId, tags: Mapping[str, str]) -> None:
        """Record the tags of a device; called with its first sample, and whenever they change."""

    def judge(self, readings: Round, now_s: float) -> list[Verdict]:
        """Return this round's verdicts: the hosts that :meth:`analyze_data` returns."""
        del now_s  # a user's analysis gets no time
        for device, values in readings.items():
            self._window[device] = [*self._window.get(device, []), *values][-WINDOW_ROUNDS * len(values) :]
        restart, hosts = cast("Any", self.analyze_data(self._window, self.analysis_args))
        if isinstance(hosts, str) or not all(isinstance(host, str) for host in hosts):
            raise TypeError(f"analyze_data must return whether to restart, and a list of host names, not {hosts!r}")
        found = Accused(type(self).__name__, tuple(hosts))
        return [
            Verdict(
                host, None, math.nan, "slow", Evidence(host, None, found), action="restart" if restart else "report"
            )
            for host in hosts
        ]

    def take_notices(self) -> Sequence[Notice]:
        """Return what else the rounds show: here nothing."""
        return ()

    def start(self) -> Self:
        """Start watching.

        Raises
        ------
        NotInJobError
            If the process was not started by laggard.
        """
        source = AnySource.of_job(current_session(), self.metric_name, self.collection_rate)
        is_on = current_session().environment.telemetry_level > 0
        why_blind = "" if is_on else "at telemetry level 0 add_data keeps nothing, add --telemetry-level=1"
        self._watcher = Watcher(
            self.metric_name, self.collection_rate, self, source=source, expected=(), why_blind=why_blind
        )
        return self

    def stop(self) -> None:
        """Stop watching. Stopping twice does nothing."""
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher = None


class CollectorDetectorGroup(CollectorGroup, Detector):
    """Collects a metric on every device and judges it: a :class:`CollectorGroup` and a :class:`Detector` in one.

    A subclass defines ``metric_name``, ``collector_test`` and ``analyze_data``.

    Parameters
    ----------
    collection_rate
        Seconds from one sample of a device to the next.
    collector_args, analysis_args
        Passed to each call of ``collector_test`` and of ``analyze_data``.
    """

    def __init__(self, collection_rate: float = 3.0, collector_args: Any = None, analysis_args: Any = None) -> None:
        CollectorGroup.__init__(self, collection_rate, collector_args)
        Detector.__init__(self, collection_rate, analysis_args)

    def start(self) -> Self:
        """Start the collectors and the watcher."""
        expected = None if self.per_gpu else [(node.hostname, "") for node in _nodes_of_this_launch()]
        self._watcher = Watcher(
            self.metric_name, self.collection_rate, self, failure_on=self.failure_on, expected=expected
        )
        try:
            return CollectorGroup.start(self)
        except BaseException:
            Detector.stop(self)
            raise

    def failure_on(self, host: str) -> str:
        """Return why the collector of a host could not start; empty if it could, or has not tried yet."""
        return self._collectors.failure_on(host) if isinstance(self._collectors, NodeActors) else ""

    def stop(self) -> None:
        """Stop the watcher and the collectors."""
        Detector.stop(self)
        CollectorGroup.stop(self)


def _nodes_of_this_launch() -> tuple[NodeRecord, ...]:
    session = current_session()
    return Control(session.client, session.endpoint, session.environment.launch).read_launch().nodes

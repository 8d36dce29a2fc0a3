"""Detectors: watch a metric, judge each round of readings, and write verdicts for the controller to read.

:class:`Detector` watches a metric that something else collects; :class:`CollectorDetectorGroup` also collects it. A
detector never stops a job: that is left to the controller.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, Self

from laggard.collectors.device import DeviceId
from laggard.collectors.group import ERROR, STRIDE, CollectorGroup, Startable
from laggard.collectors.ray_actors import NodeActors
from laggard.detectors.rounds import Round, RoundAssembler, WatchClock
from laggard.detectors.sources import AnySource, Source, StreamSource
from laggard.detectors.verdict import Verdict
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.control import Control, NodeRecord, RequestKind
from laggard.kvstore.errors import FencedError, StateFullError, StateUnavailableError
from laggard.telemetry.errors import NodeError

__all__ = ["CollectorDetectorGroup", "Detector", "Judge"]

_log = logging.getLogger("laggard.detectors")

WATCHES_PER_INTERVAL = 10
STOP_DEADLINE_S = 2.0
WINDOW_ROUNDS = 4
# How long collectors or the program may take to give their first reading.
FIRST_READING_S = 60.0

Window = dict[DeviceId, list[float]]
"""Each device's readings of the last rounds, oldest first."""


class Judge(Protocol):
    """Judges rounds of readings for a watcher."""

    def note_device(self, device: DeviceId, tags: Mapping[str, str]) -> None:
        """Record the tags of a device; called with its first sample, and whenever they change."""

    def judge(self, readings: Round, now_s: float) -> list[Verdict]:
        """Return the verdicts that are new with this round."""

    def take_notices(self) -> list[str]:
        """Return what else the rounds show, each thing once: nothing for which a device is to blame."""


class Watcher:
    """A thread that assembles a metric's samples into rounds, has them judged, and sends verdicts to the controller.

    It survives a restart of the state server: its requests wait.

    Parameters
    ----------
    metric_name
        The metric to watch.
    interval_s
        Seconds from one round to the next.
    judge
        Judges each round.
    reports_silence
        Whether to send a notice about devices that give no good reading.
    failure_on
        Returns why there is no collector on a host; empty if there is one, or if it is not known.
    source
        Where the samples come from; ``None``: what collectors write.
    expected
        The devices that must give readings; ``None``: those of the launch.  If it is empty, a notice is sent if there
        is no reading at all.
    why_blind
        What may be the reason then.
    """

    def __init__(
        self,
        metric_name: str,
        interval_s: float,
        judge: Judge,
        *,
        reports_silence: bool = True,
        failure_on: Callable[[str], str] = lambda _: "",
        source: Source | None = None,
        expected: Collection[DeviceId] | None = None,
        why_blind: str = "",
    ) -> None:
        session = current_session()
        self._control = Control(session.client, session.endpoint, session.environment.launch)
        self._metric_name = metric_name
        self._interval_s = interval_s
        self._judge = judge
        self._reports_silence = reports_silence
        self._failure_on = failure_on
        self._source = source or StreamSource(session, metric_name)
        if expected is None:
            expected = [(node.hostname, gpu) for node in self._control.read_launch().nodes for gpu in node.devices]
        self._expected = frozenset(expected)
        now_s = time.monotonic()
        self._clock = WatchClock(longest_s=interval_s, now_s=now_s)
        self._rounds = RoundAssembler(expected, interval_s, now_s)
        self._why_blind = f": {why_blind}" if why_blind else ""
        self._blind_from_s = math.inf if expected else now_s + max(FIRST_READING_S, 3 * interval_s)
        self._tags: dict[DeviceId, Mapping[str, str]] = {}
        self._requests: deque[tuple[RequestKind, list[Any]]] = deque()  # not sent yet
        self._logged_trouble = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"watch-{metric_name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stopping.set()
        self._thread.join(STOP_DEADLINE_S)

    def _watch(self) -> None:
        while not self._stopping.wait(self._interval_s / WATCHES_PER_INTERVAL):
            try:
                self._process_samples()
                self._send_requests()
                self._logged_trouble = False
            except FencedError:
                return  # this launch is over
            except (StateUnavailableError, StateFullError, NodeError) as error:
                if not self._logged_trouble:
                    _log.warning("the detector of %s is waiting for the state server: %s", self._metric_name, error)
                self._logged_trouble = True

    def _process_samples(self) -> None:
        now_s = self._clock.look(time.monotonic())
        self._read(now_s)
        if readings := self._rounds.take(now_s):
            self._judge_round(readings)
        silent, answering = self._rounds.newly_silent(now_s), self._rounds.newly_answering()
        notices = [
            *self._notices_of_silence([device for device in silent if device in self._expected]),
            *self._notices_of_answers([device for device in answering if device in self._expected]),
        ]
        if now_s > self._blind_from_s:
            self._blind_from_s = math.inf
            notices.append(f"{self._metric_name}: no reading so far{self._why_blind}")
        if notices and self._reports_silence:
            self._requests.append(("notices", notices))

    def _notices_of_silence(self, silent: Sequence[DeviceId]) -> list[str]:
        """Return a notice for each reason, with the devices that give it."""
        names: dict[str, list[str]] = {}
        for host, gpu in silent:
            reason = self._tags.get((host, gpu), {}).get(ERROR) or self._failure_on(host)
            names.setdefault(f": {reason}" if reason else "", []).append(_name(host, gpu))
        return [
            f"{self._metric_name}: no good reading from {', '.join(devices)} for three rounds{reason}"
            for reason, devices in names.items()
        ]

    def _notices_of_answers(self, devices: Sequence[DeviceId]) -> list[str]:
        names = [_name(host, gpu) for host, gpu in devices]
        if not names:
            return []
        return [f"{self._metric_name}: {', '.join(names)} give{'s' if len(names) == 1 else ''} readings again"]

    def _read(self, now_s: float) -> None:
        """Add new samples to the round."""
        for device, sample in self._source.read():
            self._blind_from_s = math.inf
            if self._tags.get(device) != sample.tags:
                self._tags[device] = sample.tags
                self._judge.note_device(device, sample.tags)
                self._rounds.expect_every(self._interval_s * int(sample.tags.get(STRIDE, 1)))
            self._rounds.add(device, sample.values, now_s)

    def _judge_round(self, readings: Round) -> None:
        try:
            verdicts = self._judge.judge(readings, time.time())
        except Exception as error:  # noqa: BLE001 - a user's analysis may raise anything, and a silent detector is worse
            _log.exception("the detector of %s could not judge a round", self._metric_name)
            notice = f"{self._metric_name}: a round could not be judged: {type(error).__name__}: {error}"
            self._requests.append(("notices", [notice]))
            return
        if verdicts:
            self._requests.append(("verdicts", [dataclasses.asdict(verdict) for verdict in verdicts]))
        if notices := self._judge.take_notices():
            self._requests.append(("notices", [f"{self._metric_name}: {notice}" for notice in notices]))

    def _send_requests(self) -> None:
        while self._requests:
            self._control.ask(*self._requests[0])
            self._requests.popleft()


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
        self.collection_rate = collection_rate
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
        restart, hosts = self.analyze_data(self._window, self.analysis_args)
        evidence = f"{type(self).__name__} accuses {', '.join(hosts)}"
        return [
            Verdict(host, None, float("nan"), "slow", evidence, action="restart" if restart else "report")
            for host in hosts
        ]

    def take_notices(self) -> list[str]:
        """Return what else the rounds show: here nothing."""
        return []

    def start(self) -> Self:
        """Start watching.

        Raises
        ------
        NotInJobError
            If the process was not started by laggard.
        """
        source = AnySource(current_session(), self.metric_name, self.collection_rate)
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


def _name(host: str, gpu: str) -> str:
    return f"{host} gpu {gpu}" if gpu else host

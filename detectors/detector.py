"""Detectors: watch a metric, judge each round of readings, and write verdicts for the controller to read.

A detector never ends anything. :class:`Detector` watches a metric that something else collects;
:class:`CollectorDetectorGroup` also collects it.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self

from collectors.group import APART, CollectorGroup
from detectors.rounds import DeviceKey, Round, RoundAssembler
from detectors.verdict import Verdict
from kvstore.control import Control, RequestKind
from kvstore.errors import FencedError, StateFullError, StateUnavailableError
from kvstore.series import Series
from kvstore.session import current_session

__all__ = ["CollectorDetectorGroup", "Detector", "Judge"]

_log = logging.getLogger("laggard.detectors")

WATCHES_PER_INTERVAL = 10
STOP_DEADLINE_S = 2.0
WINDOW_ROUNDS = 4
# The server answers others meanwhile, and neither end holds a large job's whole round as one text.
READ_AT_ONCE = 5000

Window = dict[DeviceKey, list[float]]
"""Each device's readings of the last rounds, oldest first."""


class Judge(Protocol):
    """What a watcher asks."""

    def meet(self, device: DeviceKey, tags: Mapping[str, str]) -> None:
        """Take note of a device that is heard for the first time, or whose tags have changed."""

    def judge(self, readings: Round, now_s: float) -> list[Verdict]:
        """Return the verdicts that are new with this round."""


class Watcher:
    """A thread that puts a metric's samples together into rounds, has them judged, and tells the controller.

    It outlives a restart of the state server: what it has to tell waits.

    Parameters
    ----------
    metric_name
        What to watch.
    interval_s
        Seconds between two rounds.
    judge
        Meets each device and judges each round.
    tells_silence
        Whether devices that have no good reading are told of.
    """

    def __init__(self, metric_name: str, interval_s: float, judge: Judge, *, tells_silence: bool = True) -> None:
        session = current_session()
        launch = session.environment.launch
        self._control = Control(session.client, session.endpoint, launch)
        self._series = Series(session.client, session.endpoint, launch)
        self._metric_name = metric_name
        self._interval_s = interval_s
        self._judge = judge
        self._tells_silence = tells_silence
        self._last_id = self._series.last_id(metric_name)  # what an earlier launch measured is not ours to judge
        devices = [(node.hostname, gpu) for node in self._control.read_launch().nodes for gpu in node.devices]
        self._rounds = RoundAssembler(devices, interval_s, time.monotonic())
        self._met: dict[DeviceKey, Mapping[str, str]] = {}
        self._to_tell: deque[tuple[RequestKind, list[Any]]] = deque()
        self._said: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"watch-{metric_name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join(STOP_DEADLINE_S)

    def _watch(self) -> None:
        while not self._ended.wait(self._interval_s / WATCHES_PER_INTERVAL):
            try:
                self._look()
                self._tell()
                self._say_once(None)
            except FencedError:
                return  # this launch is over
            except (StateUnavailableError, StateFullError) as error:
                self._say_once(f"the detector of {self._metric_name} waits for the state server: {error}")

    def _look(self) -> None:
        while self._read():
            pass
        if readings := self._rounds.take(time.monotonic()):
            self._judge_round(readings)
        silent = self._rounds.newly_silent(time.monotonic())
        if silent and self._tells_silence:
            names = ", ".join(f"{host} gpu {gpu}" for host, gpu in silent)
            self._to_tell.append(("notices", [f"{self._metric_name}: no good reading from {names} for three rounds"]))

    def _read(self) -> bool:
        """Take what is new into the round; return whether there may be more."""
        found = self._series.read(self._metric_name, self._last_id, limit=READ_AT_ONCE)
        now_s = time.monotonic()
        for sample_id, sample in found:
            self._last_id = sample_id
            device = (sample.tags["host"], sample.tags.get("gpu", ""))
            if self._met.get(device) != sample.tags:
                self._met[device] = sample.tags
                self._judge.meet(device, sample.tags)
                self._rounds.expect_every(self._interval_s * int(sample.tags.get(APART, 1)))
            self._rounds.add(device, sample.values, now_s)
        return len(found) == READ_AT_ONCE

    def _judge_round(self, readings: Round) -> None:
        try:
            verdicts = self._judge.judge(readings, time.time())
        except Exception as error:  # noqa: BLE001 - a user's analysis may raise anything, and a silent detector is worse
            _log.exception("the detector of %s could not judge a round", self._metric_name)
            notice = f"{self._metric_name}: a round could not be judged: {type(error).__name__}: {error}"
            self._to_tell.append(("notices", [notice]))
            return
        if verdicts:
            self._to_tell.append(("verdicts", [dataclasses.asdict(verdict) for verdict in verdicts]))

    def _tell(self) -> None:
        while self._to_tell:
            self._control.ask(*self._to_tell[0])
            self._to_tell.popleft()

    def _say_once(self, trouble: str | None) -> None:
        if trouble is not None and self._said is None:
            _log.warning("%s", trouble)
        self._said = trouble


class Detector:
    """Watches the metric ``metric_name`` that something else collects, and judges it with :meth:`analyze_data`.

    Parameters
    ----------
    collection_rate
        Seconds between two rounds.
    analysis_args
        Given to each call of :meth:`analyze_data`.
    """

    metric_name: ClassVar[str]

    def __init__(self, collection_rate: float = 3.0, analysis_args: Any = None) -> None:
        self.collection_rate = collection_rate
        self.analysis_args = analysis_args
        self._watcher: Watcher | None = None
        self._window: Window = {}

    @abstractmethod
    def analyze_data(self, data: Window, analysis_args: Any) -> tuple[bool, list[str]]:
        """Judge the last rounds' readings; return whether to restart, and the hosts to leave out."""

    def meet(self, device: DeviceKey, tags: Mapping[str, str]) -> None:
        """Take note of a device that is heard for the first time; ``tags`` are those of its samples."""

    def judge(self, readings: Round, now_s: float) -> list[Verdict]:
        """Return the verdicts that are new with this round: those that :meth:`analyze_data` stands for."""
        del now_s  # a user's analysis knows no time
        for device, values in readings.items():
            self._window[device] = [*self._window.get(device, []), *values][-WINDOW_ROUNDS * len(values) :]
        restart, hosts = self.analyze_data(self._window, self.analysis_args)
        evidence = f"{type(self).__name__} accuses {', '.join(hosts)}"
        return [
            Verdict(host, None, float("nan"), "slow", evidence, action="restart" if restart else "report")
            for host in hosts
        ]

    def start(self) -> Self:
        """Start to watch.

        Raises
        ------
        NotInJobError
            If the process was not started by laggard.
        """
        self._watcher = Watcher(self.metric_name, self.collection_rate, self)
        return self

    def stop(self) -> None:
        """Stop watching. Stopping twice does nothing."""
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class CollectorDetectorGroup(CollectorGroup, Detector):
    """Collects a metric on every device and judges it: a :class:`CollectorGroup` and a :class:`Detector` in one.

    A subclass gives ``metric_name``, ``collector_test`` and ``analyze_data``.

    Parameters
    ----------
    collection_rate
        Seconds from one sample of a device to the next.
    collector_args, analysis_args
        Given to each call of ``collector_test`` and of ``analyze_data``.
    """

    def __init__(self, collection_rate: float = 3.0, collector_args: Any = None, analysis_args: Any = None) -> None:
        CollectorGroup.__init__(self, collection_rate, collector_args)
        Detector.__init__(self, collection_rate, analysis_args)

    def start(self) -> Self:
        """Start the collectors and the watcher."""
        Detector.start(self)
        return CollectorGroup.start(self)

    def stop(self) -> None:
        """End the watcher and the collectors."""
        Detector.stop(self)
        CollectorGroup.stop(self)

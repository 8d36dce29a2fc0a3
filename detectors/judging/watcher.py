"""The watcher: reads a metric's samples, has each round judged, and sends verdicts and notices to the controller."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from laggard.collectors.device import DeviceId
from laggard.collectors.group import ERROR, STRIDE
from laggard.detectors import wording
from laggard.detectors.judging.rounds import Round, RoundAssembler, WatchClock
from laggard.detectors.judging.sources import Source, StreamSource
from laggard.detectors.notices import Answering, Blind, Notice, NotJudged, Silent
from laggard.detectors.verdict import Verdict
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.control import Control, RequestKind
from laggard.kvstore.errors import FencedError, StateFullError, StateUnavailableError
from laggard.telemetry.errors import NodeError

_log = logging.getLogger("laggard.detectors")

WATCHES_PER_INTERVAL = 10  # a round is judged soon after its last reading
STOP_DEADLINE_S = 2.0
# How long collectors or the program may take to give their first reading.
FIRST_READING_S = 60.0


class JudgesRounds(Protocol):
    """Judges rounds of readings for a watcher."""

    def note_device(self, device: DeviceId, tags: Mapping[str, str]) -> None:
        """Record the tags of a device; called with its first sample, and whenever they change."""

    def judge(self, readings: Round, now_s: float) -> list[Verdict]:
        """Return the verdicts that are new with this round."""

    def take_notices(self) -> Sequence[Notice]:
        """Return what else the rounds show, each thing once: nothing for which a device is to blame."""


class Watcher:
    """A thread that assembles a metric's samples into rounds, has them judged, and sends verdicts to the controller.

    It survives a restart of the state server: its requests wait.
    """

    def __init__(
        self,
        metric_name: str,
        interval_s: float,
        judge: JudgesRounds,
        *,
        reports_silence: bool = True,
        failure_on: Callable[[str], str] = lambda _: "",
        source: Source | None = None,
        expected: Collection[DeviceId] | None = None,
        why_blind: str = "",
        rounds: Callable[[Collection[DeviceId], float, float], RoundAssembler] = RoundAssembler,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now_s = clock
        session = current_session()
        self._control = Control(session.client, session.endpoint, session.environment.launch)
        self._metric_name = metric_name  # the metric to watch
        self._interval_s = interval_s  # seconds from one round to the next
        self._judge = judge  # judges each round
        self._reports_silence = reports_silence  # whether to send a notice about devices that give no good reading
        # Returns why there is no collector on a host; empty if there is one, or if it is not known
        self._failure_on = failure_on
        # Where the samples come from; `None`: what collectors write
        self._source = source or StreamSource(session, metric_name)
        if expected is None:
            expected = [(node.hostname, gpu) for node in self._control.read_launch().nodes for gpu in node.devices]
        # The devices that must give readings; `None`: those of the launch. If it is empty, a notice is sent if there is
        # no reading at all.
        self._expected = frozenset(expected)
        now_s = clock()
        self._clock = WatchClock(longest_s=interval_s, now_s=now_s)
        self._rounds = rounds(expected, interval_s, now_s)
        self._why_blind = why_blind  # what may be the reason then
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
        now_s = self._clock.look(self._now_s())
        self._read(now_s)
        if readings := self._rounds.take(now_s):
            self._judge_round(readings)
        silent, answering = self._rounds.newly_silent(now_s), self._rounds.newly_answering()
        notices: list[Notice] = [*self._silences([device for device in silent if device in self._expected])]
        if back := tuple(device for device in answering if device in self._expected):
            notices.append(Answering(back))
        if now_s > self._blind_from_s:
            self._blind_from_s = math.inf
            notices.append(Blind(self._why_blind))
        if self._reports_silence:
            self._tell(notices)

    def _silences(self, silent: Sequence[DeviceId]) -> list[Silent]:
        """Return a notice for each reason, with the devices that give it."""
        by_reason: dict[str, list[DeviceId]] = {}
        for device in silent:
            reason = self._tags.get(device, {}).get(ERROR) or self._failure_on(device[0])
            by_reason.setdefault(reason, []).append(device)
        return [Silent(tuple(devices), reason) for reason, devices in by_reason.items()]

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
            self._tell([NotJudged(type(error).__name__, str(error))])
            return
        if verdicts:
            self._requests.append(("verdicts", [verdict.to_fields() for verdict in verdicts]))
        self._tell(self._judge.take_notices())

    def _tell(self, notices: Sequence[Notice]) -> None:
        if notices:
            self._requests.append(("notices", [f"{self._metric_name}: {wording.notice(each)}" for each in notices]))

    def _send_requests(self) -> None:
        while self._requests:
            self._control.ask(*self._requests[0])
            self._requests.popleft()

"""The watcher: reads a metric's samples, has each round judged, and sends verdicts and notices to the controller."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from laggard.collectors.device import DeviceId
from laggard.collectors.group import ERROR, MAX_ERROR, STRIDE, in_a_line
from laggard.collectors.silences import Silences
from laggard.detectors import wording
from laggard.detectors.judging.refusals import Refusals
from laggard.detectors.judging.rounds import Round, RoundAssembler, WatchClock
from laggard.detectors.judging.sources import Source, StreamSource
from laggard.detectors.notices import Answering, Blind, Failed, FailedAt, Notice, Silent
from laggard.detectors.verdict import Verdict
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.control import Control, RequestKind
from laggard.kvstore.errors import FencedError, StateFullError, StateUnavailableError
from laggard.kvstore.series.streams import Refused, Sample
from laggard.telemetry.errors import NodeError

_log = logging.getLogger("laggard.detectors")

WATCHES_PER_INTERVAL = 10  # a round is judged soon after its last reading
STOP_DEADLINE_S = 2.0
# How long collectors or the program may take to give their first reading.
FIRST_READING_S = 60.0
# Of what a node calls its ranks, and the values of its tags: those of devices are the launch's.
MOST_NAMES, LONGEST_NAME = 1000, 256


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

    It survives a restart of the state server: its requests wait. Nothing else that is written or raised ends it either:
    that is skipped, and told once.
    """

    def __init__(
        self,
        metric_name: str,
        interval_s: float,
        judge: JudgesRounds,
        *,
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
        # Returns why there is no collector on a host; empty if there is one, or if it is not known
        self._failure_on = failure_on
        # Where the samples come from; `None`: what collectors write
        self._source = source or StreamSource(session, metric_name)
        launch = self._control.read_launch()
        if expected is None:
            expected = [(node.hostname, gpu) for node in launch.nodes for gpu in node.devices]
        # The devices that must give readings, and no others may; `None`: those of the launch. If it is empty, those of
        # any name may, and a notice is sent if there is no reading at all.
        self._expected = frozenset(expected)
        self._hosts = {node.hostname for node in (*launch.nodes, launch.head_only) if node is not None}
        now_s = clock()
        self._clock = WatchClock(longest_s=interval_s, now_s=now_s)
        self._rounds = rounds(expected, interval_s, now_s)
        self._silences_told = Silences()
        self._why_blind = why_blind  # what may be the reason then
        self._blind_from_s = math.inf if expected else now_s + max(FIRST_READING_S, 3 * interval_s)
        self._tags: dict[DeviceId, Mapping[str, str]] = {}
        self._n_names = Counter[str]()  # of each node
        self._refusals = Refusals(self._hosts, interval_s)
        self._failed: set[tuple[FailedAt, str]] = set()  # what was told, by the kind of error
        self._requests: deque[tuple[RequestKind, list[Any]]] = deque()  # not sent yet
        self._logged_trouble = False
        self._stopping = threading.Event()
        arguments = (metric_name, self._control, self._watch)
        self._thread = threading.Thread(target=tell_end_of, args=arguments, name=f"watch-{metric_name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stopping.set()
        self._thread.join(STOP_DEADLINE_S)

    def _watch(self) -> None:
        while not self._stopping.wait(self._interval_s / WATCHES_PER_INTERVAL):
            self.look()

    def look(self) -> None:
        """Read and judge what is new, and send what is to be said."""
        try:
            self._process_samples()
            self._send_requests()
            self._logged_trouble = False
        except FencedError:
            raise
        except (StateUnavailableError, StateFullError, NodeError) as error:
            if not self._logged_trouble:
                _log.warning("the detector of %s is waiting for the state server: %s", self._metric_name, error)
            self._logged_trouble = True
        except Exception as error:  # noqa: BLE001 - a detector that is gone finds nothing, and says nothing
            self._note_failure("look", error)

    def _process_samples(self) -> None:
        now_s = self._clock.look(self._now_s())
        self._read(now_s)
        if readings := self._rounds.take(now_s):
            self._judge_round(readings)
        newly = self._rounds.newly_silent(now_s), self._rounds.newly_answering()
        if self._expected:
            silent, answering = self._silences_told.add(*newly, now_s)
            self._tell(self._silences(silent))
            self._tell([Answering(tuple(answering))] if answering else [])
        if now_s > self._blind_from_s:
            self._blind_from_s = math.inf
            self._tell([Blind(self._why_blind)])
        self._tell(self._refusals.take_notices(now_s))

    def _silences(self, silent: Sequence[DeviceId]) -> list[Silent]:
        """Return a notice for each reason, with the devices that give it."""
        by_reason: dict[str, list[DeviceId]] = {}
        for device in silent:
            reason = self._tags.get(device, {}).get(ERROR, "")[:MAX_ERROR] or self._failure_on(device[0])
            by_reason.setdefault(reason, []).append(device)
        return [Silent(tuple(devices), reason) for reason, devices in by_reason.items()]

    def _read(self, now_s: float) -> None:
        """Add new samples to the round."""
        for found in self._source.read():
            refused = found if isinstance(found, Refused) else self._add(*found, now_s)
            if refused is not None:
                self._refusals.add(refused, now_s)

    def _add(self, device: DeviceId, sample: Sample, now_s: float) -> Refused | None:
        """Add a sample to the round, unless its device is none of the launch's."""
        if device not in self._tags and (refused := self._refused(device)):
            return refused
        self._blind_from_s = math.inf
        if self._tags.get(device) != sample.tags:
            self._tags[device] = sample.tags
            self._rounds.expect_every(device, self._interval_s * int(sample.tags.get(STRIDE, 1)))
            try:
                self._judge.note_device(device, sample.tags)
            except BaseException as error:  # noqa: BLE001 - a user's method may raise anything
                self._note_failure("tags", error)
        self._rounds.add(device, sample.values, now_s)
        return None

    def _refused(self, device: DeviceId) -> Refused | None:
        """Return why samples of a device that is new are refused, if they are."""
        host, name = device
        if device not in self._expected if self._expected else host not in self._hosts:
            return Refused(host, "not of the launch", wording.subject((host, name or None))[:LONGEST_NAME])
        self._n_names[host] += 1
        if self._n_names[host] > MOST_NAMES or len(name) > LONGEST_NAME:
            return Refused(host, "too many", name[:LONGEST_NAME])
        return None

    def _judge_round(self, readings: Round) -> None:
        try:
            if verdicts := [verdict.to_fields() for verdict in self._judge.judge(readings, time.time())]:
                self._requests.append(("verdicts", verdicts))
            self._tell(self._judge.take_notices())
        except FencedError:
            raise
        except BaseException as error:  # noqa: BLE001 - a user's analysis may raise anything
            self._note_failure("round", error)

    def _note_failure(self, what: FailedAt, error: BaseException) -> None:
        """Tell what has failed, each kind of error once: the watcher goes on."""
        if (key := (what, type(error).__name__)) not in self._failed:
            self._failed.add(key)
            _log.error("the detector of %s goes on after an error", self._metric_name, exc_info=error)
            self._tell([Failed(what, in_a_line(error))])

    def _tell(self, notices: Sequence[Notice]) -> None:
        if notices:
            self._requests.append(("notices", [f"{self._metric_name}: {wording.notice(each)}" for each in notices]))

    def _send_requests(self) -> None:
        while self._requests:
            request = self._requests.popleft()  # one that cannot be sent must not hold up the others
            try:
                self._control.ask(*request)
            except (StateUnavailableError, StateFullError):
                self._requests.appendleft(request)
                raise


def tell_end_of(what: str, control: Control, watch: Callable[[], None]) -> None:
    """Run what a watcher's thread does; unless its launch is over, it is told if an error ends it."""
    try:
        watch()
    except FencedError:
        return
    except BaseException as error:
        control.ask("notices", [f"{what}: {wording.notice(Failed('end', in_a_line(error)))}"])
        raise

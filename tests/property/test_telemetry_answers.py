"""Whatever is killed, stopped or late: an answer is whole, or it says what is missing.

Real nodes, questions, rollups, dumps and readers, in one process: only the state server's channels and the clock are
made up. A stopped process receives questions and answers them when it goes on; a killed one has no channel.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import tempfile
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from starlette.datastructures import Headers, QueryParams

from laggard.kvstore.client.connection import Endpoint, Session
from laggard.kvstore.client.environment import JobEnvironment
from laggard.kvstore.client.fence import launch_key
from laggard.kvstore.control import LaunchRecord, NodeRecord
from laggard.kvstore.series.sample_store import key_of
from laggard.records import plain
from laggard.telemetry import AnalysisClient, node
from laggard.telemetry.dumps.reading import read_dump
from laggard.telemetry.errors import NoAnswerError, NodeError
from laggard.telemetry.node import NodeTelemetry
from laggard.telemetry.nodes import sources
from laggard.telemetry.nodes.bus import NodeAnswerer, NodeAsker
from laggard.telemetry.nodes.mailbox import ASK, PING
from laggard.telemetry.nodes.sources import LocalSource, NodesSource
from laggard.telemetry.query import query_from_json
from laggard.telemetry.query.engine import Span
from laggard.telemetry.query.times import SECOND_US
from laggard.telemetry.server.handlers import Handler, Reach, Service, lookups, metrics, query, suggestions
from laggard.telemetry.server.lost import lost_answerer
from laggard.telemetry.server.page import device_map, job
from laggard.telemetry.server.requests import Call
from laggard.telemetry.settings import TelemetrySettings
from laggard.telemetry.store.rollups import ROLLUPS, Rollups, _parsed
from laggard.telemetry.store.summaries import COLUMNS
from laggard.telemetry.store.tiers import WINDOWS_S

HOSTS = ("node1", "node2")
T0_S = 1_800_000_000.0
ENDPOINT = Endpoint("127.0.0.1", 1, "job", "secret")
BY_HOST = {"type": "wildcard", "tagk": "host", "filter": "*", "groupBy": True}


class Channels:
    """The state server: its channels, the launch, and the notices that were sent to the controller."""

    def __init__(self) -> None:
        self.now_s = T0_S
        self.handlers: dict[str, Callable[[bytes], None]] = {}
        self.boxes: dict[str, deque[bytes]] = {}
        self.notices: list[str] = []
        record = LaunchRecord(0, tuple(NodeRecord(host, "127.0.0.1", ()) for host in HOSTS), ())
        self._values = {launch_key(ENDPOINT): b"0", ENDPOINT.key("launch", "0"): json.dumps(plain(record)).encode()}

    def publish(self, channel: str, message: bytes) -> int:
        if channel in self.boxes:
            self.boxes[channel].append(message)
        elif channel in self.handlers:
            self.handlers[channel](message)
        return int(channel in self.boxes or channel in self.handlers)

    def pubsub_channels(self, pattern: str) -> list[bytes]:
        return [name.encode() for name in self.handlers if name.startswith(pattern.removesuffix("*"))]

    def pubsub(self, **_: object) -> Subscription:
        return Subscription(self)

    @contextlib.contextmanager
    def pipeline(self, *, transaction: bool) -> Iterator[Pipeline]:
        assert not transaction
        yield Pipeline(self)

    def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    def register_script(self, _: str) -> Callable[..., list[bytes]]:
        def notice(*, keys: list[str], args: list[Any]) -> list[bytes]:
            del keys
            self.notices += json.loads(args[-1])["body"]
            return [b"ok", b"1-0"]

        return notice


class Pipeline:
    """Messages that are sent together."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._waiting: list[tuple[str, bytes] | None] = []

    def publish(self, channel: str, message: bytes) -> None:
        self._waiting.append((channel, message))

    def xrange(self, *_: object, **__: object) -> None:
        self._waiting.append(None)  # no events

    def execute(self) -> list[Any]:
        return [[] if each is None else self._channels.publish(*each) for each in self._waiting]


class Subscription:
    """What one asker receives; to wait for nothing takes the time that it takes."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._box: deque[bytes] = deque()

    def subscribe(self, *names: str) -> None:
        self._channels.boxes.update(dict.fromkeys(names, self._box))

    def get_message(self, *, ignore_subscribe_messages: bool = False, timeout: float) -> dict[str, bytes] | None:
        if self._box:
            return {"data": self._box.popleft()}
        if ignore_subscribe_messages:
            self._channels.now_s += timeout
        return None

    def close(self) -> None:
        pass


class AtOnce:
    """A pool of threads that runs what it is given in this one."""

    def submit(self, work: Callable[..., object], *arguments: object) -> None:
        work(*arguments)


class Process:
    """A node's telemetry process."""

    def __init__(self, channels: Channels, folder: Path, host: str, settings: TelemetrySettings) -> None:
        client: Any = channels
        session = Session(JobEnvironment(folder / host / "endpoint.json", 0, host, 4), ENDPOINT, client)
        self.node = NodeTelemetry(session, settings, lambda: channels.now_s)
        self._answerer: Any = NodeAnswerer(client, ENDPOINT, host, self.node.answer)
        vars(self._answerer)["_threads"] = AtOnce()
        self._unread: list[bytes] = []
        self.is_stopped = False
        channels.handlers[ENDPOINT.key(ASK, host)] = self._take
        self.node.begin()
        self.name = self.node._run.name
        self.sent = 0

    def _take(self, message: bytes) -> None:
        if self.is_stopped:
            self._unread.append(message)
        else:
            self._answerer._submit(message)

    def go_on(self) -> None:
        self.is_stopped = False
        while self._unread:
            self._answerer._submit(self._unread.pop(0))


class Answers(RuleBasedStateMachine):
    """Two nodes in use, and everybody who reads what they have."""

    dump_node = ""
    from_rollups = False

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        for host in HOSTS:
            (self.folder / host).mkdir()
        self.channels = Channels()
        client: Any = self.channels
        own_asker = partial(NodeAsker, clock=lambda: self.channels.now_s)
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr(node, "NodeAsker", own_asker)
        self.patched.setattr(sources, "ROLLUPS_ABOVE_NODES", 1 if self.from_rollups else 16)
        self.sent: dict[str, list[int]] = {host: [] for host in HOSTS}  # times of all samples that a node has taken
        self.lost: Counter[str] = Counter()  # samples of killed processes that the primary has not received
        self.processes: dict[str, Process] = {}
        self.known: set[str] = set()  # nodes of which the primary has received something
        self.published: defaultdict[str, int] = defaultdict(int)
        self.rollups = Rollups(WINDOWS_S, max_bytes=64 << 20, clock=lambda: self.channels.now_s)
        self.channels.handlers[ENDPOINT.key(ROLLUPS)] = self._take
        (self.folder / "telemetry.yaml").write_text(f'dump_node: "{self.dump_node}"\n')
        self.settings = TelemetrySettings(dump_dir=str(self.folder / "dumps"), dump_node=self.dump_node)
        self.asker = own_asker(client, ENDPOINT)
        self.session = Session(JobEnvironment(self.folder / "endpoint.json", 0, "node1", 4), ENDPOINT, client)
        server = own_asker(client, ENDPOINT)
        answerer: Any = lost_answerer(self.session, self.rollups, server, self.settings.dump_dir)
        answerer._threads = AtOnce()
        self.channels.handlers[ENDPOINT.key(ASK, "")] = answerer._submit
        self.client = AnalysisClient()
        self.client._connection = self.session, self.asker
        self.service = Service(
            reach=lambda: Reach("job", 0, 0),
            source=NodesSource(server, self.rollups, lambda: HOSTS, self._silent),
            events=lambda *_: [],
            error_lines=lambda *_: [],
            put=None,
            token="",
            reading_needs_token=False,
            names=frozenset(),
            health=dict,
            own_metrics=list,
        )

    def teardown(self) -> None:
        self.patched.undo()
        shutil.rmtree(self.folder)

    def _take(self, message: bytes) -> None:
        self.rollups.take(message)
        run, _, _, rows = _parsed(message)
        self.known.add(run.host)
        self.published[run.name] += int(rows.unpack(COLUMNS)["count"].sum())

    def _silent(self) -> list[str]:
        return self.asker.ask({"kind": PING}, hosts=HOSTS).missing

    def _away(self) -> set[str]:
        return {host for host in HOSTS if host not in self.processes or self.processes[host].is_stopped}

    # -- what happens

    @initialize(late=st.sets(st.sampled_from(HOSTS), max_size=1))
    def begin(self, late: set[str]) -> None:
        for host in HOSTS:
            if host not in late:
                self.start(host)

    @rule(host=st.sampled_from(HOSTS))
    def start(self, host: str) -> None:
        if host not in self.processes:
            self.channels.now_s += 1.0  # which is what it takes to start
            self.processes[host] = Process(self.channels, self.folder, host, self.settings)

    @rule(child=st.integers(0, 2), count=st.integers(1, 40), apart_s=st.sampled_from([0.01, 0.3]))
    def send(self, child: int, count: int, apart_s: float) -> None:
        """The program, or what it has forked, sends samples on each node whose process takes them."""
        now_us = round(self.channels.now_s * SECOND_US)
        times_us = now_us + np.arange(count, dtype=np.int64) * round(apart_s * SECOND_US)
        self.channels.now_s = float(times_us[-1] + 1) / SECOND_US
        for host in {*HOSTS} - self._away():
            key = key_of("m", {"host": host, "process": str(child)})
            self.processes[host].node._take({key: (times_us, np.ones(count))})
            self.processes[host].sent += count
            self.sent[host] += times_us.tolist()

    @rule(seconds=st.sampled_from([1, 4, 9, 31, 200]))
    def keep(self, seconds: int) -> None:
        """Time passes, less than an hour in all, and whoever runs keeps its store."""
        self.channels.now_s = max(self.channels.now_s, min(self.channels.now_s + seconds, T0_S + 3000))
        for process in self.processes.values():
            if not process.is_stopped:
                process.node.keep()

    @rule(host=st.sampled_from(HOSTS))
    def kill(self, host: str) -> None:
        if (process := self.processes.pop(host, None)) is not None:
            del self.channels.handlers[ENDPOINT.key(ASK, host)]
            self.lost[host] += process.sent - self.published[process.name]

    @rule(host=st.sampled_from(HOSTS), in_order=st.booleans())
    def restart(self, host: str, in_order: bool) -> None:
        if in_order and host not in self._away():  # the last that it does is to publish what it has
            self.processes[host].node._ended.set()
            self.processes[host].node._keep()
        self.kill(host)
        self.start(host)

    @rule(host=st.sampled_from(HOSTS))
    def stop(self, host: str) -> None:
        if host in self.processes:
            self.processes[host].is_stopped = True

    @rule()
    def go_on(self) -> None:
        for process in self.processes.values():
            process.go_on()

    # -- who reads

    def _said_of(self, host: str) -> int:
        """Return how many samples may be missing, since somebody has said that this node's telemetry began anew."""
        return self.lost[host] if any(text.startswith(f"{host}:") for text in self.channels.notices) else 0

    def _answered(self, handler: Handler, body: Any = None, **parameters: Any) -> Any:
        """Return an answer of the server, whose header names who is away."""
        return json.loads(self._text(handler, body, **parameters))

    def _text(self, handler: Handler, body: Any = None, **parameters: Any) -> bytes:
        response = handler(self.service, Call(QueryParams(parameters), Headers(), json.dumps(body).encode(), math.inf))
        assert set(response.headers.get("x-laggard-missing-nodes", "").split(",")) - {""} == self._away()
        return bytes(response.body)

    @rule(ago_s=st.none() | st.sampled_from([5, 100, 2000]))
    def get_data(self, ago_s: float | None) -> None:
        start_s = None if ago_s is None else self.channels.now_s - ago_s
        found = self.client.get_data("m", start_time=start_s)
        got: dict[str, set[int]] = {host: set() for host in HOSTS}
        for series in found:
            got[series["tags"]["host"]] |= {round(float(time_s) * SECOND_US) for time_s in series["dps"]}
        assert set(found.missing) == self._away()
        for host in {*HOSTS} - {*found.missing}:
            from_us = round(max(found.since[host], start_s or 0.0) * SECOND_US)
            assert got[host] <= {*self.sent[host]}
            assert got[host] >= {time_us for time_us in self.sent[host] if time_us > from_us + 1}
        lacks = bool(found.missing) or any(start_s is not None and start_s < each for each in found.since.values())
        with pytest.raises(NodeError) if lacks else contextlib.nullcontext():
            self.client.get_data("m", start_time=start_s, whole=True)

    @rule(downsample=st.sampled_from(["10s-sum", "1m-count", "10s-count"]))
    def ask(self, downsample: str) -> None:
        target = {"metric": "m", "aggregator": "zimsum", "downsample": downsample, "filters": [BY_HOST]}
        body = {"start": round(T0_S) - 100, "end": math.ceil(self.channels.now_s), "queries": [target]}
        away = self._away()
        try:
            answer = self._answered(query, body)
        except NoAnswerError:
            assert away == {*HOSTS}
            return
        found = {each["tags"]["host"]: sum(each["dps"].values()) for each in answer}
        for host in {*HOSTS} - away:
            waiting = self.processes[host].sent - self.published[self.processes[host].name]
            may_lack = self._said_of(host) + (waiting if self.from_rollups else 0)
            assert len(self.sent[host]) - may_lack <= found.get(host, 0) <= len(self.sent[host])

    @rule()
    def names(self) -> None:
        """Who has samples at the primary or in a process that is there is in the lists of names."""
        answering = {host for host in {*HOSTS} - self._away() if self.processes[host].sent}
        known = self.known | (set() if self.from_rollups else answering)
        found = self.client.get_metrics()
        assert (set(found.missing), found) == (self._away(), {"m"} if self.known | answering else set())
        assert known <= {*self._answered(suggestions, type="tagv")} & {*HOSTS}
        assert known <= {each["tags"]["host"] for each in self._answered(lookups, m="m")["results"]}
        span = {"start": round(T0_S * 1000) - 100_000, "end": math.ceil(self.channels.now_s * 1000)}
        assert set(self._answered(job, **span)["missing"]) == self._away()

    @rule()
    def newest(self) -> None:
        """Whoever answers and has samples of the last minute is in the newest values, and on the map."""
        there = {host for host in {*HOSTS} - self._away() if self.processes[host].sent}
        recent = {host for host in there if self.sent[host][-1] > (self.channels.now_s - 60) * SECOND_US}
        text = self._text(metrics).decode()
        assert recent <= {host for host in HOSTS if f'{{hostname="{host}"' in text} <= there
        try:
            found = self._answered(device_map, metric="m", end=math.ceil(self.channels.now_s * 1000))
        except NoAnswerError:
            assert self._away() == {*HOSTS}
            return
        assert self.from_rollups or recent <= {*found["hosts"]}

    @rule()
    def dump(self) -> None:
        shutil.rmtree(self.settings.dump_dir, ignore_errors=True)
        away, said = self._away(), ""
        try:
            self.client.db_dump()
        except NodeError as error:
            said = str(error).replace(f"the dump of {self.dump_node}", "")
        is_of_one = bool(self.dump_node) and self.dump_node in away
        assert {host for host in HOSTS if host in said} == ({self.dump_node} if is_of_one else away)
        if is_of_one or not list(Path(self.settings.dump_dir).glob("*.csv.gz")):
            return
        history = read_dump([Path(self.settings.dump_dir)])
        body = {"metric": "m", "aggregator": "zimsum", "downsample": "1m-sum", "filters": [BY_HOST]}
        asked = query_from_json({"start": round(T0_S) - 100, "queries": [body]}, round(self.channels.now_s * SECOND_US))
        span = Span(asked.start_us, round(self.channels.now_s + 1) * SECOND_US)
        found = {
            each.tags["host"]: each.values.sum()
            for each in LocalSource(history).evaluate(asked.queries[0], span).answers
        }
        for host in {*HOSTS} - away:
            assert len(self.sent[host]) - self._said_of(host) <= found.get(host, 0) <= len(self.sent[host])


class AnswersFromRollups(Answers):
    """As in a job of many nodes, whose overviews the primary answers by itself."""

    from_rollups = True


class AnswersInOneDump(Answers):
    """One node writes the dump of all."""

    dump_node = "node2"


@pytest.mark.parametrize("downsample", ["10s-sum", "1m-count"])
def test_the_bucket_in_which_a_process_was_replaced_has_what_both_have_taken(downsample: str) -> None:
    machine = Answers()
    machine.begin(late=set())
    machine.send(0, 5, 0.01)
    machine.restart("node1", in_order=True)
    machine.send(0, 5, 0.01)
    machine.ask(downsample)
    machine.teardown()


TestAnswers = Answers.TestCase
TestAnswersFromRollups = AnswersFromRollups.TestCase
TestAnswersInOneDump = AnswersInOneDump.TestCase
TestAnswers.settings = TestAnswersFromRollups.settings = TestAnswersInOneDump.settings = settings(
    max_examples=15, stateful_step_count=40, deadline=None
)

"""A launch of four nodes with two devices each, whose samples a test writes, and a watcher that looks when it says."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from laggard.collectors.device import DeviceId
from laggard.detectors import SlowGPUDetector, Verdict
from laggard.detectors.judging.sources import StreamSource
from laggard.detectors.judging.watcher import JudgesRounds, Watcher
from laggard.kvstore.client.connection import Endpoint, current_session
from laggard.kvstore.client.environment import ENDPOINT_FILE, LAUNCH, NODE
from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.control import Control, LaunchRecord, NodeRecord
from laggard.kvstore.server.process import StateServer

INTERVAL_S = 3.0
HOSTS = ("node1", "node2", "node3", "node4")
DEVICES: list[DeviceId] = [(host, gpu) for host in HOSTS for gpu in "01"]
SLOW: DeviceId = ("node1", "1")  # twice as slow from this round on
SLOW_ROUND, ROUNDS = 10, 18
Entry = Mapping[bytes, bytes]
_numbers = itertools.count()


def entry(node: str, sample: object) -> Entry:
    """Return what a process on a node writes for a sample: a text, or what JSON makes of it."""
    return {b"node": node.encode(), b"sample": sample if isinstance(sample, bytes) else orjson.dumps(sample)}


def reading(device: DeviceId, seconds: float = 0.01, **tags: str) -> Entry:
    """Return what a collector writes for a device."""
    host, gpu = device
    repeats = [seconds, 1.001 * seconds, 1.002 * seconds]
    return entry(host, [1000.0, repeats, {"host": host, "gpu": gpu, "model": "V100", **tags}])


class WatchedLaunch:
    """The launch, and a metric of its own for each watcher."""

    def __init__(self, server: StateServer) -> None:
        self.endpoint: Endpoint = server.endpoint
        self.client = current_session().client
        self.control = Control(self.client, self.endpoint, 0)
        self._asked = self.control.last_request_id()

    def write(self, metric: str, entries: Sequence[Entry]) -> None:
        """Write entries to a metric's stream."""
        pipeline = self.client.pipeline(transaction=False)
        for each in entries:
            pipeline.xadd(self.endpoint.key("series", metric), dict(each))  # type: ignore[arg-type]
        pipeline.sadd(self.endpoint.key("metrics"), metric)
        pipeline.execute()

    def told(self, kind: str = "notices") -> list[Any]:
        """Return what watchers have sent since the last call of one kind, and forget the rest."""
        found = list(self.control.requests(self._asked, 0.001))
        self._asked = found[-1][0] if found else self._asked
        return [each for _, request in found if request.kind == kind for each in request.body]


class Looker:
    """A watcher that looks when the test says so, by a clock of the test's."""

    def __init__(self, launch: WatchedLaunch, judge: JudgesRounds, **settings: Any) -> None:
        self.launch, self.metric = launch, f"metric-{next(_numbers)}"
        self.now_s = 0.0
        source = StreamSource(current_session(), self.metric, after="-", **settings.pop("source", {}))
        self.watcher = Watcher(self.metric, INTERVAL_S, judge, source=source, clock=lambda: self.now_s, **settings)
        self.watcher.stop()

    def round(self, entries: Sequence[Entry]) -> None:
        """Write the entries of a round, look, and let the round's time pass."""
        self.launch.write(self.metric, entries)
        self.look()
        self.now_s += INTERVAL_S

    def look(self) -> None:
        """Look once."""
        self.watcher.look()


def verdicts_of_rounds(
    launch: WatchedLaunch, garbage: Callable[[int], Sequence[Entry]] = lambda _: (), but: str = ""
) -> set[tuple[str, str | None, str]]:
    """Play rounds among which a process writes something else; return what is found on other nodes than one."""
    looker = Looker(launch, SlowGPUDetector(INTERVAL_S, restart_cost=0))
    for number in range(ROUNDS):
        slow = {SLOW: 0.02} if number >= SLOW_ROUND else {}
        jitter = {device: 1 + 1e-3 * ((number + place) % 3) for place, device in enumerate(DEVICES)}
        good = [reading(device, slow.get(device, 0.01) * jitter[device]) for device in DEVICES]
        written = list(garbage(number))
        looker.round([*written[::2], *good, *written[1::2]])
    found = [Verdict.of_fields(fields) for fields in launch.told("verdicts")]
    return {(each.host, each.gpu, each.severity) for each in found if each.host != but}


@contextmanager
def watched_launch(folder: Path) -> Iterator[WatchedLaunch]:
    """Make this process one of a launch."""
    with StateServer.start(folder / "state", job="watched") as server, pytest.MonkeyPatch.context() as patch:
        server.endpoint.save(folder / "endpoint.json")
        for name, value in ((ENDPOINT_FILE, str(folder / "endpoint.json")), (LAUNCH, "0"), (NODE, "node1")):
            patch.setenv(name, value)
        current_session.cache_clear()
        with current_session().client as client:
            begin_launch(client, server.endpoint, 0)
            nodes = tuple(NodeRecord(host, "127.0.0.1", ("0", "1")) for host in HOSTS)
            Control(client, server.endpoint, 0).write_launch(LaunchRecord(0, nodes, (), detect_interval_s=0.1))
            yield WatchedLaunch(server)
        current_session.cache_clear()

"""What programs feed becomes readings: each sample once, of the host and the value of the metric's own tag."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from laggard.detectors.judging.sources import AnySource, FedSource, StreamSource
from laggard.kvstore.series.streams import Refused, Sample
from laggard.kvstore.series.timeseries import TimeSeries
from laggard.telemetry.nodes.gathering import Gathered

METRIC = "batch-seconds"


class Nodes:
    """The samples that all nodes have, from which :func:`gather` would return those in a time range."""

    def __init__(self) -> None:
        self.fed: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[int, float]]] = {}
        self.asked = 0

    def feed(self, at_s: float, value: float, on: str = "", **tags: str) -> None:
        key = on or tags["host"], tuple(tags.items())
        self.fed.setdefault(key, []).append((round(at_s * 1e6), value))

    def gather(self, _: object, metrics: list[str], start_us: int, end_us: int) -> Gathered:
        assert metrics == [METRIC]
        self.asked += 1
        found: dict[str, list[TimeSeries]] = {}
        for (host, tags), samples in self.fed.items():
            inside = [each for each in samples if start_us <= each[0] <= end_us]
            if inside:
                times, values = zip(*inside, strict=True)
                series = TimeSeries(METRIC, dict(tags), np.array(times, np.int64), np.array(values))
                found.setdefault(host, []).append(series)
        return Gathered(found, {}, [])


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def session(level: int = 1) -> Any:
    return SimpleNamespace(client=None, endpoint=None, environment=SimpleNamespace(telemetry_level=level, launch=0))


def read(source: FedSource | AnySource) -> dict[tuple[str, str], tuple[float, ...]]:
    found = [each for each in source.read() if not isinstance(each, Refused)]
    return {device: sample.values for device, sample in found}


def test_each_sample_is_read_once_however_late_it_comes(nodes: Nodes) -> None:
    now_s = time.time()
    nodes.feed(now_s - 1, 9.0, host="node1", rank="0")  # before the source was there
    source = FedSource(session(), METRIC, 0.0, nodes.gather)
    now_s = time.time() + 1e-3
    nodes.feed(now_s, 1.0, host="node1", rank="0")
    nodes.feed(now_s + 1, 2.0, host="node1", rank="0")
    assert read(source) == {("node1", "0"): (1.0, 2.0)}
    assert read(source) == {}
    nodes.feed(now_s + 0.5, 3.0, host="node2", rank="1")
    nodes.feed(now_s + 2, 4.0, host="node1", rank="0")
    assert read(source) == {("node2", "1"): (3.0,), ("node1", "0"): (4.0,)}


def test_a_sample_from_the_future_hides_no_other(nodes: Nodes) -> None:
    source = FedSource(session(), METRIC, 0.0, nodes.gather)
    now_s = time.time() + 1e-3
    nodes.feed(now_s + 3600, 1.0, host="node1", rank="0")
    assert read(source) == {("node1", "0"): (1.0,)}
    nodes.feed(now_s, 2.0, host="node2", rank="1")
    assert read(source) == {("node2", "1"): (2.0,)}


def test_the_device_is_the_node_and_the_values_of_all_other_tags(nodes: Nodes) -> None:
    source = FedSource(session(), METRIC, 0.0, nodes.gather)
    now_s = time.time() + 1e-3
    for tags in ({}, {"gpu": "3"}, {"process": "99", "layer": "7"}, {"stride": "often"}):
        nodes.feed(now_s, 1.0, host="node1", **tags)
    assert set(read(source)) == {("node1", ""), ("node1", "3"), ("node1", "7/99")}


def test_nodes_are_asked_once_per_interval(nodes: Nodes) -> None:
    source = FedSource(session(), METRIC, 3600.0, nodes.gather)
    read(source)
    read(source)
    assert nodes.asked == 1


def test_what_a_process_feeds_under_the_name_of_another_node_is_refused(nodes: Nodes) -> None:
    source = FedSource(session(), METRIC, 0.0, nodes.gather)
    now_s = time.time() + 1e-3
    nodes.feed(now_s, 1.0, on="node2", host="node1", rank="0")
    nodes.feed(now_s, 2.0, on="node2", host="node2", rank="1")
    first, second = source.read()
    assert first == Refused("node2", "of another node", "node1")
    assert not isinstance(second, Refused)
    assert second[0] == ("node2", "1")


@pytest.mark.parametrize("level", [0, 1])
def test_what_a_collector_writes_is_not_read_again_from_the_telemetry(nodes: Nodes, level: int) -> None:
    written: list[tuple[tuple[str, str], Sample]] = []
    stream = SimpleNamespace(read=lambda: [written.pop(0)] if written else [])
    source = AnySource(stream, FedSource(session(), METRIC, 0.0, nodes.gather) if level else None)
    nodes.feed(time.time() + 1e-3, 1.0, host="node1", gpu="0")
    assert read(source) == ({("node1", "0"): (1.0,)} if level else {})
    written.append((("node1", "0"), Sample(METRIC, 0.0, (2.0,), {"host": "node1", "gpu": "0"})))
    assert read(source) == {("node1", "0"): (2.0,)}
    nodes.feed(time.time() + 1e-3, 3.0, host="node1", gpu="0")
    assert read(source) == {}


def test_what_is_refused_does_not_keep_what_programs_feed_from_being_read(nodes: Nodes) -> None:
    refused = Refused("node9", "malformed", "?")
    source = AnySource(SimpleNamespace(read=lambda: [refused]), FedSource(session(), METRIC, 0.0, nodes.gather))
    assert source.read() == [refused]
    nodes.feed(time.time() + 1e-3, 1.0, host="node1", gpu="0")
    stream: Any = source._stream
    stream.read = list
    assert read(source) == {("node1", "0"): (1.0,)}


def test_a_stream_is_read_from_its_beginning_or_from_now_on_and_by_the_tags_that_are_wanted() -> None:
    written = [Sample(METRIC, 0.0, (float(at),), {"host": "node1", "launch": str(at % 2)}) for at in range(4)]

    def read_after(_: str, after: str, *, limit: int) -> list[tuple[str, Sample]]:
        return [(str(at), each) for at, each in enumerate(written) if after == "-" or at > int(after)][:limit]

    series: Any = SimpleNamespace(read=read_after, last_id=lambda _: "1")

    def values(**settings: Any) -> list[float]:
        found = StreamSource(session(), METRIC, series=series, **settings).read()
        return [each[1].values[0] for each in found if not isinstance(each, Refused)]

    assert values() == [2.0, 3.0]
    assert values(after="-") == [0.0, 1.0, 2.0, 3.0]
    assert values(after="-", only={"launch": "1"}) == [1.0, 3.0]

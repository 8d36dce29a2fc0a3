"""The program's own metrics in a job's record and its report: what is kept of them, and that it is bounded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from laggard.kvstore.series.sample_store import SampleStore, key_of
from laggard.kvstore.series.timeseries import TimeSeries
from laggard.resilience.record.own_metrics import MAX_METRICS, OwnMetrics, chosen, readable_steps
from laggard.resilience.report.frozen import frozen
from laggard.resilience.report.inputs import read_inputs
from laggard.resilience.report.page import write_report
from laggard.telemetry.dumps.writing import write_dump
from laggard.telemetry.nodes.bus import NodeAsker, Replies
from laggard.telemetry.nodes.sources import answer_question
from laggard.telemetry.page.content import recorded_means
from laggard.telemetry.store.history import History
from laggard.telemetry.store.rollups import Run
from laggard.telemetry.store.tiers import WINDOWS_S, Tiers
from tests.made_up_job import LENGTH_S, T0, series, write_record

T0_US = round(T0 * 1e6)
SECOND_US = 1_000_000


class Nodes:
    """The stores of some nodes, which answer at once."""

    def __init__(self, n_nodes: int = 2) -> None:
        self.clock_s = T0
        self.stores = {}
        self.histories = {}
        for number in range(n_nodes):
            tiers = Tiers(WINDOWS_S, max_bytes=1 << 30, clock=lambda: self.clock_s)
            store = SampleStore(LENGTH_S, clock=lambda: self.clock_s, observe=tiers.add)
            host = f"node{number + 1}"
            self.stores[host], self.histories[host] = store, History(tiers, store)

    def add(self, host: str, metric: str, at_s: float, value: float, **tags: str) -> None:
        times_us = np.array([round((T0 + at_s) * 1e6)])
        self.stores[host].extend(key_of(metric, {"host": host, **tags}), times_us, np.array([value]))

    def hosts(self) -> list[str]:
        return [*self.stores]

    def ask(self, question: dict[str, Any], *, hosts: list[str]) -> Replies:
        assert hosts == self.hosts()
        run = Run.new("node1", T0_US)
        return Replies({host: answer_question(each, run, question) for host, each in self.histories.items()})

    def read(self, own: OwnMetrics, at_s: float) -> None:
        self.clock_s = T0 + at_s
        own.read(round(self.clock_s * 1e6))


def made(nodes: Nodes) -> OwnMetrics:
    return OwnMetrics(cast(NodeAsker, nodes), T0_US)


def found(own: OwnMetrics) -> dict[tuple[str, str], TimeSeries]:
    own.settle(T0_US + 10_000 * SECOND_US)
    return {(each.metric, each.tags["of_series"]): each for each in own.series()}


def test_of_many_series_the_lowest_mean_and_highest_are_kept_also_of_late_samples() -> None:
    nodes = Nodes()
    own = made(nodes)
    for rank, (host, value) in enumerate([("node1", 1.0), ("node1", 2.0), ("node2", 9.0)]):
        nodes.add(host, "loss", 2.5, value, rank=str(rank))
    nodes.read(own, 5)
    nodes.add("node2", "loss", 3.5, 5.0, rank="2")  # sent after the others, and read all the same
    nodes.read(own, 10)
    nodes.read(own, 60)

    kept = found(own)

    assert {name: each.values.tolist() for (_, name), each in kept.items()} == {
        "lowest": [1.0, 5.0],
        "mean": [4.0, 5.0],
        "highest": [9.0, 5.0],
    }
    assert (kept["loss", "mean"].times_us - T0_US).tolist() == [2.5 * SECOND_US, 3.5 * SECOND_US]
    assert kept["loss", "mean"].tags["n_series"] == "3"


def test_a_single_series_is_kept_once_and_what_laggard_collects_is_not_kept_here() -> None:
    nodes = Nodes()
    own = made(nodes)
    nodes.add("node1", "loss", 1, 3.0)
    nodes.add("node1", "DeviceUtilization", 1, 3.0, gpu="0")
    nodes.add("node1", "gpu-probe-time", 1, 3.0, gpu="0")
    nodes.add("node1", "a|b", 1, 3.0)  # a query that names it as text would take it for two
    nodes.read(own, 5)

    assert list(found(own)) == [("loss", "mean"), ("a|b", "mean")]


def test_metrics_and_slices_are_bounded() -> None:
    nodes = Nodes(1)
    own = made(nodes)
    nodes.add("node1", "zeta", 1, 1.0)
    nodes.read(own, 5)
    for at_s in range(10, 2000, 5):
        nodes.add("node1", "zeta", at_s - 1, float(at_s))
        nodes.read(own, at_s)
    for number in range(MAX_METRICS + 4):
        for rank in range(3):
            nodes.add("node1", f"m{number:02}", 2001, 1.0, rank=str(rank))
    nodes.read(own, 2005)

    kept = found(own)

    assert len({metric for metric, _ in kept}) == MAX_METRICS
    assert 100 <= len(kept["zeta", "mean"].times_us) <= 300
    assert [readable_steps(n_nodes) for n_nodes in (0, 1, 1000, 10**6)] == [60, 60, 11, 1]
    assert chosen(["b"], {"a", "b", "c"}, 2) == ["b", "a"]


def curves(n_metrics: int) -> list[TimeSeries]:
    """Return what a record has of metrics with eight series each."""
    times_us = T0_US + np.arange(0, LENGTH_S, 2, dtype=np.int64) * SECOND_US
    values = np.linspace(2.5, 0.5, len(times_us))
    return [
        TimeSeries(f"loss{number}", {"of_series": name, "n_series": "8"}, times_us, values + by)
        for number in range(n_metrics)
        for name, by in (("lowest", -0.1), ("mean", 0.0), ("highest", 0.3))
    ]


def test_a_report_has_the_curves_of_its_record_and_stays_small_and_the_same(tmp_path: Path) -> None:
    write_record(tmp_path, 16, 8, samples=False)
    write_dump(str(tmp_path), "samples", T0 + LENGTH_S, [*series(16, 8), *curves(MAX_METRICS)])

    path = write_report(read_inputs(tmp_path), tmp_path)

    text = path.read_bytes()
    assert len(text) < 3_000_000
    assert text == write_report(read_inputs(tmp_path), tmp_path).read_bytes()
    data = json.loads(text.decode().split('id="frozen">')[1].split("</script>")[0])
    curve = data["curves"]["loss7"]
    assert (curve["n_series"], curve["low"][0], curve["middle"][0], curve["high"][0]) == (8, 2.4, 2.5, 2.8)
    assert [each["kind"] for each in data["about"]["metrics"] if each["name"] == "loss7"] == ["program"]
    assert "loss7" not in data["maps"]
    assert "own metrics beyond the first 32" in text.decode()


def test_a_dump_of_all_telemetry_gives_the_same_curve(tmp_path: Path) -> None:
    times_us = T0_US + np.arange(0, 10, dtype=np.int64) * SECOND_US
    ranks = [TimeSeries("loss", {"rank": str(rank)}, times_us, np.full(10, float(rank))) for rank in range(3)]
    write_record(tmp_path, samples=False)
    write_dump(str(tmp_path), "all", T0, ranks)
    curve = frozen(read_inputs(tmp_path), "")["curves"]["loss"]
    assert curve["n_series"] == 3
    assert [set(curve[name]) for name in ("low", "middle", "high")] == [{0.0}, {1.0}, {2.0}]


@pytest.mark.parametrize(("number", "stands_for"), [("8", 8), ("", 1), ("9" * 5000, 1)])
def test_a_chart_of_a_record_shows_its_means_and_says_of_how_many_series(number: str, stands_for: int) -> None:
    recorded = [replace(each, tags={**each.tags, "n_series": number}) for each in curves(1)]
    means, n_series = recorded_means(recorded)
    assert ([each.tags["of_series"] for each in means], n_series) == (["mean"], stands_for)
    plain = [replace(each, tags={}) for each in recorded]
    assert recorded_means(plain) == (plain, 3)

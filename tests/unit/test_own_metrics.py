"""The program's own metrics in a job's record and its report: what is kept of them, and that it is bounded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from laggard.kvstore.series.sample_store import SampleStore, key_of
from laggard.kvstore.series.timeseries import TimeSeries
from laggard.resilience.record.own_metrics import MAX_METRICS, OwnMetrics, chosen, readable_steps
from laggard.resilience.report.frozen import MAX_LINE_VALUES, MAX_POINTS, frozen
from laggard.resilience.report.inputs import read_inputs
from laggard.resilience.report.page import write_report
from laggard.telemetry.dumps.writing import write_dump
from laggard.telemetry.nodes.bus import NodeAsker, Replies
from laggard.telemetry.nodes.sources import answer_question
from laggard.telemetry.page.content import recorded_means
from laggard.telemetry.store.history import History
from laggard.telemetry.store.program_metrics import MAX_LINES, with_lines
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
    names = "of_series", "rank", "host"
    return {(each.metric, next(each.tags[name] for name in names if name in each.tags)): each for each in own.series()}


def test_every_rank_has_its_line_also_of_late_samples_and_when_it_moves_to_another_node() -> None:
    nodes = Nodes()
    own = made(nodes)
    for rank, (host, value) in enumerate([("node1", 1.0), ("node1", 2.0), ("node2", 9.0)]):
        nodes.add(host, "loss", 2.5, value, rank=str(rank))
    nodes.read(own, 5)
    nodes.add("node2", "loss", 3.5, 5.0, rank="2")  # sent after the others, and read all the same
    nodes.read(own, 10)
    nodes.add("node1", "loss", 12.5, 7.0, rank="2")
    nodes.read(own, 15)
    nodes.read(own, 60)

    kept = found(own)

    assert {name: each.values.tolist() for (_, name), each in kept.items()} == {
        "0": [1.0],
        "1": [2.0],
        "2": [9.0, 5.0, 7.0],
    }
    assert (kept["loss", "2"].times_us - T0_US).tolist() == [2.5 * SECOND_US, 3.5 * SECOND_US, 12.5 * SECOND_US]


def test_of_more_series_than_there_is_room_for_the_lowest_mean_and_highest_are_kept_and_no_part_of_the_lines() -> None:
    nodes = Nodes(1)
    own = made(nodes)
    for rank in range(3):
        nodes.add("node1", "loss", 2.5, float(rank), rank=str(rank))
    nodes.read(own, 20)
    for rank in range(3, MAX_LINES + 1):
        nodes.add("node1", "loss", 22.5, float(rank), rank=str(rank))
    nodes.add("node1", "time", 22.5, 3.0)
    nodes.read(own, 30)
    nodes.read(own, 90)

    kept = found(own)

    assert {of: each.values.tolist() for of, each in kept.items()} == {
        ("loss", "lowest"): [0.0, 3.0],
        ("loss", "mean"): [1.0, (3 + MAX_LINES) / 2],
        ("loss", "highest"): [2.0, MAX_LINES],
        ("time", "node1"): [3.0],
    }
    assert kept["loss", "mean"].tags["n_series"] == str(MAX_LINES + 1)


def test_a_node_that_does_not_answer_once_loses_nothing_that_was_read_before() -> None:
    nodes = Nodes()
    own = made(nodes)
    nodes.add("node1", "loss", 2.5, 1.0, rank="0")
    nodes.add("node2", "loss", 2.5, 2.0, rank="1")
    nodes.read(own, 5)
    del nodes.histories["node2"]
    nodes.read(own, 10)

    assert {name: each.values.tolist() for (_, name), each in found(own).items()} == {"0": [1.0], "1": [2.0]}


def test_a_node_is_silent_once_what_it_has_is_not_waited_for_any_longer() -> None:
    nodes = Nodes()
    own = made(nodes)
    nodes.read(own, 5)
    answers = nodes.histories.pop("node2")
    silent = []
    for at_s in (10, 20, 25):
        nodes.read(own, at_s)
        silent.append(own.silent(T0_US + at_s * SECOND_US))
    store = nodes.stores.pop("node2")
    nodes.read(own, 30)
    silent.append(own.silent(T0_US + 30 * SECOND_US))
    nodes.stores["node2"], nodes.histories["node2"] = store, answers
    nodes.read(own, 35)

    assert silent == [set(), {"node2"}, {"node2"}, {"node2"}], "one that is gone has not answered"
    assert own.silent(T0_US + 35 * SECOND_US) == set()


def test_of_what_laggard_collects_only_a_few_metrics_of_the_nodes_are_kept_here() -> None:
    nodes = Nodes()
    own = made(nodes)
    nodes.add("node1", "loss", 1, 3.0)
    nodes.add("node1", "DeviceUtilization", 1, 3.0, gpu="0")
    nodes.add("node1", "gpu-probe-time", 1, 3.0, gpu="0")
    nodes.add("node1", "a|b", 1, 3.0)  # a query that names it as text would take it for two
    for host in ("node1", "node2"):
        nodes.add(host, "cpu_percent", 1, 3.0)
        nodes.add(host, "load_average", 1, 3.0)
    nodes.read(own, 5)

    question = {"kind": "program", "metrics": [], "start_us": T0_US, "end_us": T0_US}
    assert nodes.ask(question, hosts=nodes.hosts()).by_host["node1"]["n_series"] == {"loss": 1, "a|b": 1}
    assert {*found(own)} == {("loss", "node1"), ("a|b", "node1"), ("cpu_percent", "node1"), ("cpu_percent", "node2")}


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
    assert 100 <= len(kept["zeta", "node1"].times_us) <= 300
    assert [readable_steps(n_nodes) for n_nodes in (0, 1, 1000, 10**6)] == [60, 60, 11, 1]
    assert chosen(["b"], {"a", "b", "c"}, 2) == ["b", "a"]
    assert with_lines({"a": MAX_LINES - 1, "b": 2, "c": 1}) == ["a", "c"]


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
    curve = data["curves"]["loss7"]["[]"]
    assert (curve["n_series"], curve["low"][0], curve["middle"][0], curve["high"][0]) == (8, 2.4, 2.5, 2.8)
    assert [each["kind"] for each in data["about"]["metrics"] if each["name"] == "loss7"] == ["program"]
    assert "loss7" not in data["maps"]
    assert "own metrics beyond the first 32" in text.decode()


def ranks_of(metric: str, number: int, odd: int) -> Iterator[TimeSeries]:
    """Yield a line for each rank, one of them far above the others."""
    times_us = T0_US + np.arange(0, 60, 2, dtype=np.int64) * SECOND_US
    noise = np.random.default_rng(2)
    for rank in range(number):
        values = noise.normal(1 + (rank == odd), 0.01, len(times_us))
        yield TimeSeries(metric, {"rank": str(rank)}, times_us, values)


@pytest.mark.parametrize(("max_values", "n_drawn"), [(MAX_LINE_VALUES, 32), (20 * MAX_POINTS, 1)])
def test_a_report_has_the_lines_of_all_ranks_or_those_that_differ_if_there_are_too_many(
    max_values: int, n_drawn: int, tmp_path: Path
) -> None:
    write_record(tmp_path, samples=False)
    write_dump(str(tmp_path), "samples", T0 + 60, [*ranks_of("time", 32, 17), *ranks_of("loss", 100, 40)])

    curves = {name: by['["rank"]'] for name, by in frozen(read_inputs(tmp_path), "", max_values)["curves"].items()}

    time = curves["time"]
    assert (len(time["of"]), time["n_series"]) == (n_drawn, 0 if n_drawn == 32 else 31)
    assert [of for of, far in zip(time["of"], time["far"], strict=True) if far] == [("17",)]
    assert (curves["loss"]["of"], curves["loss"]["n_series"]) == ([("40",)], 99)


def test_a_dump_of_all_telemetry_gives_the_same_curve(tmp_path: Path) -> None:
    times_us = T0_US + np.arange(0, 10, dtype=np.int64) * SECOND_US
    ranks = [TimeSeries("loss", {"rank": str(rank)}, times_us, np.full(10, float(rank))) for rank in range(3)]
    write_record(tmp_path, samples=False)
    write_dump(str(tmp_path), "all", T0, ranks)
    curve = frozen(read_inputs(tmp_path), "")["curves"]["loss"]["[]"]
    assert curve["n_series"] == 3
    assert [set(curve[name]) for name in ("low", "middle", "high")] == [{0.0}, {1.0}, {2.0}]


@pytest.mark.parametrize(("number", "stands_for"), [("8", 8), ("", 1), ("9" * 5000, 1)])
def test_a_chart_of_a_record_shows_its_means_and_says_of_how_many_series(number: str, stands_for: int) -> None:
    recorded = [replace(each, tags={**each.tags, "n_series": number}) for each in curves(1)]
    means, n_series = recorded_means(recorded)
    assert ([each.tags["of_series"] for each in means], n_series) == (["mean"], stands_for)
    plain = [replace(each, tags={}) for each in recorded]
    assert recorded_means(plain) == (plain, 3)

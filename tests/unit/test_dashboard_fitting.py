"""Dashboards fit a job: its metrics, its size, its time; and the server's limits at a thousand nodes."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import laggard.telemetry
from laggard.telemetry.catalogue import CATALOGUE, EVENTS, NODE_METRICS
from laggard.telemetry.grafana.fitting import MAX_LINES, Dashboard, JobShape, fitted
from laggard.telemetry.grafana.provisioning import DASHBOARDS
from laggard.telemetry.nodes.sources import MAX_TRAVELLING_SAMPLES
from laggard.telemetry.query.engine import MAX_ANSWER_POINTS
from laggard.telemetry.store.summaries import EXACT

FOLDER = Path(laggard.telemetry.__file__).parent / "grafana"
VIRTUAL = {
    *(metric.name for metric in NODE_METRICS),
    *("DeviceUtilization", "DeviceMemoryUtilization", "DevicePowerUsage", "DeviceTemperature"),
}
EVERYTHING = set(CATALOGUE)
N_NODES, N_DEVICES = 1000, 8
# Grafana rounds a chart's interval, so that it has up to this many times the points that it was told to have.
ROUNDING = 1.75


def load(name: str) -> Dashboard:
    found: Dashboard = json.loads((FOLDER / name).read_text())
    return found


def metrics_of(dashboard: Dashboard) -> set[str]:
    return {target["metric"] for panel in dashboard["panels"] for target in panel.get("targets", [])}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_on_virtual_devices_no_panel_stays_empty(name: str) -> None:
    found = fitted(load(name), JobShape(VIRTUAL, 4))

    assert {metric for metric in metrics_of(found) if metric in CATALOGUE} <= VIRTUAL
    assert all(panel["targets"] for panel in found["panels"] if panel["type"] != "row")
    rows = [panel["type"] for panel in found["panels"]]
    assert ("row", "row") not in pairwise(rows), "a row without panels"
    assert rows[-1] != "row"


def test_on_virtual_devices_four_metrics_of_a_device_are_left() -> None:
    assert metrics_of(fitted(load("device.json"), JobShape(VIRTUAL, 4))) == {
        name for name in VIRTUAL if name.startswith("Device")
    }


@pytest.mark.parametrize("name", DASHBOARDS)
@pytest.mark.parametrize("metrics", [EVERYTHING, set()], ids=["all metrics", "none yet"])
def test_nothing_is_left_out_that_a_job_has_or_may_still_get(name: str, metrics: set[str]) -> None:
    dashboard = load(name)

    found = fitted(dashboard, JobShape(metrics, 4))

    assert metrics_of(found) == metrics_of(dashboard)
    assert [panel["title"] for panel in found["panels"]] == [panel["title"] for panel in dashboard["panels"]]


def test_the_probe_and_the_events_stay_before_there_are_any() -> None:
    assert {"gpu-probe-time", EVENTS} <= metrics_of(fitted(load("verdicts.json"), JobShape(VIRTUAL, 4)))


@pytest.mark.parametrize("name", DASHBOARDS)
@pytest.mark.parametrize("metrics", [VIRTUAL, EVERYTHING], ids=["virtual", "all"])
def test_what_is_left_is_laid_out_without_overlaps(name: str, metrics: set[str]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in fitted(load(name), JobShape(metrics, 4))["panels"]:
        place = panel["gridPos"]
        columns, lines = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        cells = {(x, y) for x in columns for y in lines}
        assert not cells & taken
        assert max(columns) < 24
        taken |= cells


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dump_opens_on_its_own_range_and_is_not_asked_again(name: str) -> None:
    found = fitted(load(name), JobShape(VIRTUAL, 4, (1_700_000_000.25, 1_700_000_600.0)))

    assert found["time"] == {"from": "2023-11-14T22:13:20.250Z", "to": "2023-11-14T22:23:20.000Z"}
    assert found["refresh"] == ""
    assert fitted(load(name), JobShape(VIRTUAL, 4))["time"] == {"from": "now-5m", "to": "now"}


def n_series(target: dict[str, Any]) -> int:
    by = {each["tagk"] for each in target["filters"] if each["groupBy"]}
    per_node = N_DEVICES if {"gpu", "reader", "peer", "peer_leaf"} & by else 1  # a node has eight partners, too
    return N_NODES * per_node if "host" in by else N_NODES if "peer" in by else 1


@pytest.mark.parametrize("name", ["overview.json", "verdicts.json"])
@pytest.mark.parametrize("form", ["as it is", "fitted"])
def test_a_thousand_nodes_of_eight_devices_are_within_the_servers_limits(name: str, form: str) -> None:
    dashboard = load(name)
    if form == "fitted":
        dashboard = fitted(dashboard, JobShape(EVERYTHING, N_NODES * N_DEVICES, n_nodes=N_NODES))
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            if target["metric"] == EVENTS:
                continue
            n_points = ROUNDING * panel.get("maxDataPoints", 800)
            assert n_series(target) * n_points <= MAX_ANSWER_POINTS, panel["title"]
            is_of_rollups = panel.get("interval") == "10s" and target["downsampleAggregator"] in EXACT
            assert is_of_rollups or N_DEVICES * n_points <= MAX_TRAVELLING_SAMPLES // N_NODES, panel["title"]


LINKS = "Links, the slowest first"
MATRIX = "Time from each node (row) to each other (column)"
LEAVES = "Time from each leaf switch (row) to each other (column)"


def panel_of(dashboard: Dashboard, title: str) -> Dashboard:
    (panel,) = (panel for panel in dashboard["panels"] if panel["title"] == title)
    found: Dashboard = panel
    return found


def test_links_have_panels_only_where_they_are_probed() -> None:
    links = {"link.send_s", "link.leaf_send_s"}
    without, with_links = (fitted(load("overview.json"), JobShape(VIRTUAL | more, 4)) for more in (set(), links))

    assert not {"Links", LINKS, MATRIX, LEAVES} & {panel["title"] for panel in without["panels"]}
    assert not metrics_of(without) & links
    assert {"Links", LINKS, MATRIX, LEAVES} <= {panel["title"] for panel in with_links["panels"]}


@pytest.mark.parametrize(
    ("n_nodes", "has_leaves", "matrices", "grouped_by"),
    [
        (4, True, [MATRIX], ["host", "peer"]),
        (64, True, [MATRIX], ["host", "peer"]),  # with eight devices each, which charts show as a band
        (65, True, [LEAVES], ["host", "peer"]),
        (65, False, [], ["host", "peer"]),
        (256, True, [LEAVES], ["host", "peer"]),
        (257, True, [LEAVES], ["host"]),
        (N_NODES, True, [LEAVES], ["host"]),  # 8,000 links are more than the server answers with
    ],
)
def test_the_matrix_is_of_nodes_or_else_of_leaves_and_of_more_nodes_the_table_has_the_senders(
    n_nodes: int, has_leaves: bool, matrices: list[str], grouped_by: list[str]
) -> None:
    metrics = EVERYTHING if has_leaves else EVERYTHING - {"link.leaf_send_s"}

    found = fitted(load("overview.json"), JobShape(metrics, N_DEVICES * n_nodes, n_nodes=n_nodes))

    assert [panel["title"] for panel in found["panels"] if panel["title"] in {MATRIX, LEAVES}] == matrices
    for title in matrices:
        assert panel_of(found, title)["targets"] == panel_of(load("overview.json"), title)["targets"]
    (table,) = panel_of(found, LINKS)["targets"]
    assert [each["tagk"] for each in table["filters"] if each["groupBy"]] == grouped_by


def test_beyond_what_a_chart_can_show_it_shows_a_band() -> None:
    few, many = (fitted(load("overview.json"), JobShape(EVERYTHING, n)) for n in (MAX_LINES, MAX_LINES + 1))

    def of(dashboard: Dashboard, title: str) -> list[tuple[str, str, str]]:
        targets = panel_of(dashboard, title)["targets"]
        return [(each["refId"], each["aggregator"], each["alias"]) for each in targets]

    assert of(few, "Utilisation") == [("A", "avg", "$tag_host gpu$tag_gpu")]
    assert of(many, "Utilisation") == [("A", "min", "least"), ("B", "avg", "mean"), ("C", "max", "greatest")]
    assert of(many, "Received") == [("A", "avg", "mean")], "a rate"
    one = fitted(load("device.json"), JobShape(EVERYTHING, 8000))
    assert one["panels"] == fitted(load("device.json"), JobShape(EVERYTHING, 1))["panels"], "it shows one device anyway"

"""The dashboards fit the metrics, the filters, the data source, and every Grafana that is to load them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import laggard.telemetry
from laggard.detectors.slow_gpu import SlowGPUDetector
from laggard.telemetry.catalogue import CATALOGUE, EVENTS
from laggard.telemetry.grafana.provisioning import DASHBOARDS, write_grafana
from laggard.telemetry.query import query_from_json
from laggard.telemetry.query.filters import FILTER_TYPES

FOLDER = Path(laggard.telemetry.__file__).parent / "grafana"


def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return found


def targets(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in dashboard["panels"]:
        yield from panel.get("targets", [])


@pytest.fixture(params=DASHBOARDS)
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    return load(request.param)


def test_every_panel_draws_a_metric_that_exists(dashboard: dict[str, Any]) -> None:
    known = {*CATALOGUE, EVENTS, SlowGPUDetector.metric_name}

    assert {target["metric"] for target in targets(dashboard)} <= known


def test_every_variable_asks_for_a_metric_that_exists(dashboard: dict[str, Any]) -> None:
    for variable in dashboard["templating"]["list"]:
        (metric,) = re.findall(r"tag_values\((\S+), \w+\)", variable["query"])
        assert metric in {*CATALOGUE, SlowGPUDetector.metric_name}


@pytest.mark.parametrize("chosen", [".*", "node1", "node1|node2"])
def test_every_target_is_a_query_that_the_engine_takes(dashboard: dict[str, Any], chosen: str) -> None:
    for target in targets(dashboard):
        filters = [{**each, "filter": re.sub(r"\$\w+", lambda _: chosen, each["filter"])} for each in target["filters"]]
        assert {each["type"] for each in filters} <= set(FILTER_TYPES)
        query_from_json(
            {
                "start": 1,
                "end": 2,
                "queries": [
                    {
                        "metric": target["metric"],
                        "aggregator": target["aggregator"],
                        "downsample": f"1m-{target['downsampleAggregator']}",
                        "filters": filters,
                    }
                ],
            },
            0,
        )


def test_annotations_keep_their_metric_in_every_schema_of_grafana(dashboard: dict[str, Any]) -> None:
    """Grafana 13 converts a dashboard to its second schema, which keeps an annotation's target only as an object."""
    (annotation,) = dashboard["annotations"]["list"]

    assert annotation["target"] == {"refId": "Anno", "fromAnnotations": True, "isGlobal": True, "target": EVENTS}


def test_counter_options_are_text_as_newer_grafanas_demand(dashboard: dict[str, Any]) -> None:
    for target in targets(dashboard):
        for option in ("counterMax", "counterResetValue"):
            assert isinstance(target.get(option, ""), str)


def test_every_part_uses_the_data_source_that_is_provisioned(dashboard: dict[str, Any]) -> None:
    (source,) = yaml.safe_load((FOLDER / "custom.yaml").read_text())["datasources"]
    parts = [*dashboard["panels"], *targets(dashboard), *dashboard["templating"]["list"]]
    parts += dashboard["annotations"]["list"]

    used = {json.dumps(part["datasource"]) for part in parts if "datasource" in part}

    assert used == {json.dumps({"type": source["type"], "uid": source["uid"]})}


def test_the_schema_is_that_of_the_oldest_grafana_and_nothing_waits_for_an_import(dashboard: dict[str, Any]) -> None:
    assert dashboard["schemaVersion"] == 39
    assert not [key for key in dashboard if key.startswith("__")]
    assert "${DS_" not in json.dumps(dashboard)
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


def test_panels_do_not_overlap(dashboard: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_a_round_trip_through_grafanas_schema_loses_nothing(dashboard: dict[str, Any]) -> None:
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")

    back = json.loads(encoder.JSONEncoder(sort_keys=True).encode(models.Dashboard.from_json(dashboard)))

    assert set(dashboard) <= set(back)
    assert [set(panel) - set(other) for panel, other in zip(dashboard["panels"], back["panels"], strict=True)] == [
        set()
    ] * len(back["panels"])


def test_provisioning_has_the_address_and_the_token_and_only_the_owner_reads_it(tmp_path: Path) -> None:
    written = write_grafana(tmp_path / "grafana", "http://localhost:5555", "secret")

    sources = tmp_path / "grafana" / "provisioning" / "datasources" / "laggard.yaml"
    (source,) = yaml.safe_load(sources.read_text())["datasources"]
    assert sources in written
    assert sources.stat().st_mode & 0o077 == 0
    assert source["url"] == "http://localhost:5555"
    assert source["secureJsonData"] == {"httpHeaderValue1": "secret"}
    assert all(type(source["jsonData"][name]) is int for name in ("tsdbVersion", "tsdbResolution", "lookupLimit"))
    (provider,) = yaml.safe_load((sources.parents[1] / "dashboards" / "laggard.yaml").read_text())["providers"]
    assert sorted(path.name for path in Path(provider["options"]["path"]).iterdir()) == sorted(DASHBOARDS)

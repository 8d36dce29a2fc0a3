"""The matrices of links in Grafana: the panels' queries and transformations, on what a real server answers.

Grafana itself is not there, so each transformation is done here as its documentation says. The data source of older
versions names a series by the query's alias and gives no labels; that of newer ones knows no alias, and Grafana names
the series by its labels. Both must give the same matrix.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import laggard.telemetry
from laggard.kvstore.server.process import StateServer
from laggard.telemetry.grafana.server_client import read_shape
from laggard.telemetry.link_matrix import LEAF_SEND_TIME, SEND_TIME, TRANSFER_BYTES
from tests.integration.serving import SECOND_US, Served, serve

NODES = ("node1", "node2", "gpu-a.rack-2")
NEVER_MET = ("node1", "gpu-a.rack-2")
USUAL_S, SLOW_S = 0.031, 0.31
LEAF_OF = {"node1": "leaf-1", "node2": "leaf-1", "gpu-a.rack-2": "leaf-2"}
OVERVIEW = Path(laggard.telemetry.__file__).parent / "grafana" / "overview.json"

Table = list[dict[str, Any]]


@pytest.fixture(scope="module")
def served(state_server: StateServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(state_server, tmp_path_factory.mktemp("node1")) as server:
        now_us = round(time.time() * SECOND_US)
        add = server.node.store.add
        for host in NODES:
            add(TRANSFER_BYTES, {"host": host}, now_us, 4096.0)
            for peer in NODES:
                if host == peer or (host, peer) == NEVER_MET:
                    continue
                of_leaf = {"host": host, "leaf": LEAF_OF[host], "peer_leaf": LEAF_OF[peer]}
                for ago_s, value in ((60, 0.5), (0, SLOW_S if host == "node2" else USUAL_S)):
                    at_us = now_us - ago_s * SECOND_US
                    add(SEND_TIME, {"host": host, "peer": peer}, at_us, value)
                    add(LEAF_SEND_TIME, of_leaf, at_us, value)
        yield server


def matrix_of(metric: str) -> dict[str, Any]:
    """Return the panel that makes a matrix of a metric."""
    panels = [panel for panel in json.loads(OVERVIEW.read_text())["panels"] if panel["type"] == "table"]
    (found,) = (
        panel
        for panel in panels
        if panel["targets"][0]["metric"] == metric
        and "groupingToMatrix" in [step["id"] for step in panel["transformations"]]
    )
    return dict(found)


def by_alias(answer: Mapping[str, Any], target: Mapping[str, Any]) -> str:
    """Name a series as the data source in the browser does."""
    return re.sub(r"\$tag_(\w+)", lambda found: str(answer["tags"][found[1]]), target["alias"])


def by_labels(answer: Mapping[str, Any], target: Mapping[str, Any]) -> str:
    """Name a series as Grafana does if it has labels and no alias."""
    labels = ", ".join(f'{name}="{value}"' for name, value in answer["tags"].items())
    return f"{target['metric']} {{{labels}}}"


def extract_fields(table: Table, options: Mapping[str, Any]) -> Table:
    assert options["format"] == "kvp"
    return [{**row, **dict(re.findall(r'(\w+)="([^"]*)"', row[options["source"]]))} for row in table]


def sort_by(table: Table, options: Mapping[str, Any]) -> Table:
    (by,) = options["sort"]
    return sorted(table, key=lambda row: str(row[by["field"]]), reverse=by.get("desc", False))


def grouping_to_matrix(table: Table, options: Mapping[str, Any]) -> Table:
    row_field, column_field = options["rowField"], options["columnField"]
    assert options["emptyValue"] == "null"
    empty = dict.fromkeys(row[column_field] for row in table)
    rows: dict[str, dict[str, Any]] = {}
    for row in table:
        cells = rows.setdefault(row[row_field], {f"{row_field}\\{column_field}": row[row_field], **empty})
        cells[row[column_field]] = row[options["valueField"]]
    return list(rows.values())


def organize(table: Table, options: Mapping[str, Any]) -> Table:
    return [{options["renameByName"].get(name, name): value for name, value in row.items()} for row in table]


STEPS: Mapping[str, Callable[[Table, Mapping[str, Any]], Table]] = {
    "extractFields": extract_fields,
    "sortBy": sort_by,
    "groupingToMatrix": grouping_to_matrix,
    "organize": organize,
}


MATRICES: Mapping[str, Table] = {
    SEND_TIME: [
        {"from \\ to": "gpu-a.rack-2", "gpu-a.rack-2": None, "node1": USUAL_S, "node2": USUAL_S},
        {"from \\ to": "node1", "gpu-a.rack-2": None, "node1": None, "node2": USUAL_S},
        {"from \\ to": "node2", "gpu-a.rack-2": SLOW_S, "node1": SLOW_S, "node2": None},
    ],
    LEAF_SEND_TIME: [
        {"from \\ to": "leaf-1", "leaf-1": SLOW_S, "leaf-2": SLOW_S},
        {"from \\ to": "leaf-2", "leaf-1": USUAL_S, "leaf-2": None},
    ],
}


@pytest.mark.parametrize("metric", MATRICES)
@pytest.mark.parametrize("name_of", [by_alias, by_labels], ids=["by alias", "by labels"])
def test_who_sends_is_a_row_and_who_receives_a_column(
    served: Served, metric: str, name_of: Callable[[Mapping[str, Any], Mapping[str, Any]], str]
) -> None:
    panel = matrix_of(metric)
    (target,) = panel["targets"]
    query = {
        "metric": target["metric"],
        "aggregator": target["aggregator"],
        "downsample": f"20s-{target['downsampleAggregator']}",
        "filters": [{**each, "filter": each["filter"].replace("$host", ".*")} for each in target["filters"]],
    }
    first, *steps = panel["transformations"]
    assert first == {"id": "reduce", "options": {"reducers": ["lastNotNull"], "mode": "seriesToRows"}}

    answers = served.json("/api/query", {"start": round(time.time()) - 1800, "queries": [query]})
    table: Table = [{"Field": name_of(each, target), "Last *": [*each["dps"].values()][-1]} for each in answers]
    for step in steps:
        table = STEPS[step["id"]](table, step["options"])

    assert [list(row.items()) for row in table] == [list(row.items()) for row in MATRICES[metric]]


def test_who_probes_links_counts_as_a_node_at_every_level(served: Served) -> None:
    assert read_shape(f"http://127.0.0.1:{served.port}").n_nodes == len(NODES)

"""The HTTP server on a real job's telemetry: what each era of Grafana sends and can read, and what others send."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laggard.detectors.evidence import WrongResults
from laggard.detectors.verdict import Evidence, Verdict
from laggard.kvstore.client.environment import ENDPOINT_FILE, NODE
from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.control import Control, LaunchRecord, NodeRecord
from laggard.kvstore.series.sample_store import key_of
from laggard.kvstore.server.process import StateServer
from laggard.resilience.record.journal import Journal
from laggard.telemetry.course import LaunchBegan
from laggard.telemetry.events import Event, EventLog
from laggard.telemetry.node import NodeTelemetry
from laggard.telemetry.query.aggregators import AGGREGATORS
from laggard.telemetry.query.filters import FILTER_TYPES
from tests.integration.serving import DEADLINE_S, SECOND_US, Served, go_strict, serve, strict
from tests.queries import sub_query
from tests.waiting import wait_until

T0 = int(time.time()) - 120
"""The first sample: the samples are 100 s long, one each half second, on 2 nodes of 2 devices."""


@pytest.fixture(scope="module")
def served(state_server: StateServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("node1")
    endpoint = state_server.endpoint
    client = endpoint.connect()
    begin_launch(client, endpoint, 0)
    record = LaunchRecord(0, tuple(NodeRecord(f"node{i}", "127.0.0.1", ("0", "1")) for i in (1, 2)), (), ())
    Control(client, endpoint, 0).write_launch(record)
    verdict = Verdict("node2", "0", 1.5, "slow", Evidence("node2", "0", WrongResults("made up")))
    journal = Journal(None)
    journal.write(LaunchBegan(0, ("node1", "node2"), (), "node1"))
    journal.write(verdict)
    journal.publish(client, endpoint)
    EventLog(client, endpoint).add(Event((T0 + 50) * SECOND_US, "xid", "XID 79", "node1", "1"))
    with serve(state_server, directory, settings=f"dump_dir: {directory}/dumps\n") as server:
        fill(server.node)
        yield server


def fill(node: NodeTelemetry) -> None:
    times = T0 * SECOND_US + np.arange(200) * SECOND_US // 2
    for host in (1, 2):
        for gpu in (0, 1):
            key = key_of("DeviceUtilization", {"host": f"node{host}", "gpu": str(gpu)})
            node.store.extend(key, times, np.full(200, 10.0 * host + gpu))
        key = key_of("network_receive", {"host": f"node{host}"})
        node.store.extend(key, times, 1000.0 * host * np.arange(200, dtype=np.float64))
    gappy = np.concatenate([times[:40], times[120:]])
    node.store.extend(key_of("gappy", {"host": "node1"}), gappy, np.ones(len(gappy)))
    node.store.extend(key_of("broken", {"host": "node1"}), times[:3], np.array([1.0, np.nan, np.inf]))


HOST_FILTER = {"type": "wildcard", "tagk": "host", "filter": "*", "groupBy": True}
TARGET = {
    "metric": "DeviceUtilization",
    "aggregator": "avg",
    "downsample": "10s-avg",
    "filters": [HOST_FILTER],
    "tags": {},
}
START, END = T0 - T0 % 10, T0 + 100
LEGACY = {"start": START * 1000, "msResolution": False, "globalAnnotations": True}
ERAS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "10.4-12.3 browser, 2.2": ("/api/query", {**LEGACY, "queries": [TARGET, TARGET]}, False),
    "10.4-12.3 browser, 2.3": ("/api/query", {**LEGACY, "showQuery": True, "queries": [TARGET, TARGET]}, False),
    "10.4-12.2 back end": ("/api/query", {"start": START * 1000, "end": END * 1000, "queries": [TARGET]}, False),
    "11.2-11.5 back end": (
        "/api/query?arrays=true",
        {"start": START * 1000, "end": END * 1000, "queries": [TARGET]},
        True,
    ),
    "12.3-13 back end": ("/api/query", {"start": START, "end": END, "queries": [TARGET]}, False),
    "12.3-13 back end, 2.4": ("/api/query?arrays=true", {"start": START, "end": END, "queries": [TARGET]}, True),
    "back end, nothing chosen": (
        "/api/query",
        {"start": START, "end": END, "queries": [{**TARGET, "aggregator": "", "downsample": "10s-avg-"}]},
        False,
    ),
}


@pytest.mark.parametrize("era", ERAS)
def test_the_panel_request_of_every_grafana_is_answered_in_its_form(served: Served, era: str) -> None:
    path, body, arrays = ERAS[era]

    status, headers, content = served.request(path, body)

    assert status == 200
    assert headers["content-type"].startswith("application/json")
    elements = go_strict(content, arrays=arrays)
    assert [element["tags"] for element in elements] == [{"host": "node1"}, {"host": "node2"}] * len(body["queries"])
    assert elements[0]["aggregateTags"] == ["gpu"]
    values = {point[1] for point in elements[0]["dps"]} if arrays else set(elements[0]["dps"].values())
    assert values == {10.5}
    if body.get("showQuery"):
        assert [element["query"]["index"] for element in elements] == [0, 0, 1, 1]


def test_milliseconds_are_given_only_when_asked_for(served: Served) -> None:
    body = {**LEGACY, "msResolution": True, "queries": [{**TARGET, "downsample": "500ms-avg"}]}

    first = next(iter(served.json("/api/query", body)[0]["dps"]))

    assert first == str(T0 * 1000)


def test_a_sum_without_downsampling_collapses_points_within_a_second(served: Served) -> None:
    body = {"start": T0, "end": T0 + 100, "queries": [{"metric": "DeviceUtilization", "aggregator": "max"}]}

    (element,) = go_strict(served.request("/api/query", body)[2])

    assert len(element["dps"]) == 100
    assert set(element["dps"].values()) == {21.0}


def test_a_gap_is_null_for_the_browser_and_left_out_for_the_back_end(served: Served) -> None:
    target = {"metric": "gappy", "aggregator": "avg", "downsample": "10s-avg-null"}

    browser = served.json("/api/query", {**LEGACY, "queries": [target]})[0]["dps"]
    back_end = go_strict(served.request("/api/query", {"start": START, "end": END, "queries": [target]})[2])[0]["dps"]

    assert None in browser.values()
    assert back_end == {time_s: value for time_s, value in browser.items() if value is not None}


def test_values_that_are_not_finite_are_never_emitted(served: Served) -> None:
    body = {"start": START, "end": END, "queries": [{"metric": "broken", "aggregator": "sum", "downsample": "1s-sum"}]}

    (element,) = go_strict(served.request("/api/query", body)[2])

    assert element["dps"] == {str(T0): 1.0}


def test_rates_are_per_second(served: Served) -> None:
    target = {"metric": "network_receive", "aggregator": "sum", "downsample": "10s-last", "rate": True}

    (element,) = go_strict(served.request("/api/query", {"start": START, "end": END, "queries": [target]})[2])

    assert sorted(element["dps"].values())[len(element["dps"]) // 2] == pytest.approx(6000)


def test_an_unknown_metric_is_an_empty_answer(served: Served) -> None:
    assert served.json("/api/query", {"start": START, "queries": [{"metric": "nobody", "aggregator": "sum"}]}) == []


def test_missing_nodes_are_named_in_a_header(served: Served) -> None:
    wait_until(lambda: served.json("/health")["missing"] == ["node2"])

    _, headers, _ = served.request("/api/query", {"start": START, "queries": [TARGET]})

    assert headers["x-laggard-missing-nodes"] == "node2"


def test_events_come_as_annotations_of_the_first_element(served: Served) -> None:
    body = {"start": START, "queries": [{"aggregator": "sum", "metric": "laggard.events"}]}
    wait_until(lambda: b"launch 0 began" in served.request("/api/query", body)[2])

    elements = go_strict(served.request("/api/query", body)[2])

    notes = [note["description"] for note in elements[0]["globalAnnotations"]]
    assert notes[0] == "xid: XID 79"
    assert any(text.startswith("verdict: node2 gpu 0: made up") for text in notes)
    assert any(text.startswith("launch 0 began on node1, node2") for text in notes)
    assert all("globalAnnotations" not in element for element in elements[1:])


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/api/suggest?type=metrics&q=Dev&max=1000", ["DeviceUtilization"]),
        ("/api/suggest?type=tagk&q=&max=1000", ["gpu", "host"]),
        ("/api/suggest?type=tagv&q=node&max=1000", ["node1", "node2"]),
        ("/api/suggest?q=cpu&type=metrics", []),
        ("/api/aggregators", list(AGGREGATORS)),
    ],
)
def test_names_are_suggested(served: Served, path: str, expected: list[str]) -> None:
    found = served.json(path)

    assert [name for name in found if not name.startswith("put.")] == expected


def test_variables_find_tag_names_and_values(served: Served) -> None:
    names = served.json("/api/search/lookup?m=DeviceUtilization&limit=1000")
    values = served.json("/api/search/lookup?m=DeviceUtilization%7Bgpu=*,host=node1,host=node2%7D&limit=0")
    one = served.json("/api/search/lookup?m=DeviceUtilization%7Bgpu=0,host=node1%7C%7D&limit=1000")

    assert {key for result in names["results"] for key in result["tags"]} == {"host", "gpu"}
    assert names["totalResults"] == 4
    assert {result["tags"]["gpu"] for result in values["results"]} == {"0", "1"}
    assert [result["tags"] for result in one["results"]] == [{"gpu": "0", "host": "node1"}]


def test_variables_find_the_kinds_of_events_and_their_nodes(served: Served) -> None:
    found = served.json("/api/search/lookup?m=laggard.events&limit=1000")

    tags = [result["tags"] for result in found["results"]]
    assert {"kind": "xid", "host": "node1", "gpu": "1"} in tags
    assert {"kind": "verdict", "host": "node2", "gpu": "0"} in tags
    assert not any("text" in each for each in tags)


def test_filter_types_are_the_keys_of_an_object(served: Served) -> None:
    assert set(served.json("/api/config/filters")) == set(FILTER_TYPES)


def test_the_version_is_reported(served: Served) -> None:
    assert served.json("/api/version")["version"].startswith("2.")


def test_an_answer_is_compressed_on_request(served: Served) -> None:
    body = {"start": START, "end": END, "queries": [{**TARGET, "downsample": "1s-avg"}]}

    _, headers, content = served.request("/api/query", body, {"Accept-Encoding": "gzip"})

    assert headers["content-encoding"] == "gzip"
    assert strict(gzip.decompress(content)) == served.json("/api/query", body)


@pytest.mark.parametrize(
    ("path", "body", "method", "status"),
    [
        ("/api/nothing", None, "GET", 404),
        ("/other", None, "GET", 404),
        ("/api/query", None, "DELETE", 405),
        ("/api/put", None, "GET", 405),
        ("/api/query?start=1h-ago&m=sum:m", None, "GET", 405),
        ("/api/suggest", {"type": "metrics"}, "POST", 405),
        ("/api/query/last?timeseries=m", None, "GET", 404),
        ("/api/annotation", {"description": "x"}, "POST", 404),
        ("/api/query", b"{", "POST", 400),
        ("/api/query", b"[" * 100_000, "POST", 400),
        ("/api/query", b"\xff\xfe", "POST", 400),
        ("/api/query", b'{"start": NaN, "queries": [{"metric": "m"}]}', "POST", 400),
        ("/api/query", {"start": START, "queries": [{"metric": "m", "downsample": "1m-magic"}]}, "POST", 400),
        ("/api/query", {"start": 1, "queries": [{"metric": "m", "downsample": "1ms-avg"}]}, "POST", 413),
        ("/api/suggest?type=magic", None, "GET", 400),
        ("/api/suggest?type=metrics&max=x", None, "GET", 400),
        ("/api/search/lookup?m=%7Bx%7D", None, "GET", 400),
        ("/api/put", [], "POST", 401),
        ("/page/lines?start=1&end=2", None, "GET", 401),
    ],
)
def test_a_bad_request_is_refused_with_opentsdbs_error_body(
    served: Served, path: str, body: Any, method: str, status: int
) -> None:
    code, headers, content = served.request(path, body, method=method)

    assert code == status
    assert headers["content-type"].startswith("application/json")
    error = strict(content)["error"]
    assert error["code"] == status
    assert isinstance(error["message"], str)
    assert "Traceback" not in content.decode()


def test_a_body_that_is_too_large_is_refused_before_it_has_arrived(served: Served) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=DEADLINE_S)
    connection.putrequest("POST", "/api/query")
    connection.putheader("Content-Length", str(1 << 40))
    connection.endheaders()
    piece = b" " * (1 << 20)
    for _ in range(17):
        connection.send(piece)

    answer = connection.getresponse()

    assert answer.status == 413
    connection.close()


def test_a_gzip_bomb_is_refused(served: Served) -> None:
    bomb = gzip.compress(b" " * (100 << 20))

    status, _, _ = served.request("/api/query", bomb, {"Content-Encoding": "gzip"})

    assert status == 413


def bearer(served: Served) -> dict[str, str]:
    return {"Authorization": f"Bearer {served.token}"}


def test_samples_are_put_with_the_token_and_found(served: Served) -> None:
    now_s = int(time.time())
    points = [
        {"metric": "put.one", "timestamp": now_s - 1, "value": "1.5", "tags": {"host": "other"}},
        {"metric": "put.one", "timestamp": now_s * 1000, "value": 2, "tags": {"host": "other"}},
    ]
    basic = {"Authorization": "Basic " + base64.b64encode(f"laggard:{served.token}".encode()).decode()}

    first = served.request(
        "/api/put", gzip.compress(json.dumps(points).encode()), {**basic, "Content-Encoding": "gzip"}
    )
    second = served.request("/api/put", [*points, {"metric": "bad name!"}], bearer(served))
    third = served.request("/api/put", {"metric": "put.one"}, bearer(served))

    assert (first[0], strict(first[2])) == (200, {"success": 2, "failed": 0, "errors": []})
    assert second[0] == 400
    assert {key: strict(second[2])[key] for key in ("success", "failed")} == {"success": 2, "failed": 1}
    assert third[0] == 400
    query = {"start": T0, "queries": [sub_query("sum:1s-last:put.one{host=other}")]}
    wait_until(lambda: served.json("/api/query", query))
    assert list(served.json("/api/query", query)[0]["dps"].values()) == [1.5, 2.0]


def test_series_beyond_the_stores_limit_are_dropped_and_counted(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = served.node.store.size()
    monkeypatch.setattr(served.node.store, "_max_series", before.series + 1)

    points = [
        {"metric": "put.many", "timestamp": int(time.time()), "value": 1, "tags": {"id": f"x{i}"}} for i in range(3)
    ]

    assert served.request("/api/put", points, bearer(served))[0] == 200
    wait_until(lambda: served.node.store.size().dropped == before.dropped + 2)
    assert served.node.store.size().series == before.series + 1


def test_more_points_than_can_be_drawn_are_refused(served: Served) -> None:
    target = {**TARGET, "downsample": "1ms-avg-zero"}

    status, _, content = served.request(
        "/api/query", {"start": START, "end": END, "queries": [target] * 30, "msResolution": True}
    )

    assert status == 413
    assert "points" in strict(content)["error"]["message"]


# What Prometheus 3 and OpenTelemetry's collector, which scrapes with its code, would like best.
ACCEPTED = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,"
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


def test_prometheus_reads_the_newest_values(served: Served) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    now_us = round(time.time() * SECOND_US)
    served.node.store.add("DevicePowerUsage", {"host": "node1", "gpu": "0"}, now_us, 301.5)
    served.node.store.add("network_errors", {"host": "node1"}, now_us, 7.0)
    served.node.store.add('odd "name"', {"k\n": 'v"\\\n'}, now_us, 1.0)

    _, headers, content = served.request("/metrics", headers={"Accept": ACCEPTED})
    families = {family.name: family for family in parser.text_string_to_metric_families(content.decode())}

    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8", "one that it need not guess"
    assert {family.type for family in families.values()} == {"gauge", "counter"}, "others are dropped"
    assert families["laggard_user_odd__name_"].documentation.endswith('metric odd "name"')
    (sample,) = families["DCGM_FI_DEV_POWER_USAGE"].samples
    assert (sample.labels, sample.value) == ({"hostname": "node1", "gpu": "0"}, 301.5)
    assert families["laggard_node_network_errors"].type == "counter"
    assert b"# TYPE laggard_node_network_errors_total counter\n" in content


def test_a_client_that_sends_nothing_does_not_keep_others_waiting(served: Served) -> None:
    idle = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(50)]
    for each in idle:
        each.sendall(b"POST /api/query HTTP/1.1\r\nContent-Length: 10\r\n\r\n{")

    assert served.json("/api/version")

    for each in idle:
        each.close()


def test_a_port_in_use_is_named_in_one_line(served: Served) -> None:
    variables = {ENDPOINT_FILE: str(served.directory / "endpoint.json"), NODE: "node1"}

    done = subprocess.run(
        [sys.executable, "-m", "laggard.telemetry.server", "--port", str(served.port)],
        env=variables,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=DEADLINE_S,
        check=False,
        cwd=Path(__file__).parents[2],
    )

    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert str(served.port) in done.stderr

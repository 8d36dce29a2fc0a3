"""The API's and the page's handlers, called as the server calls them: what is in their answers, and what is refused."""

from __future__ import annotations

import base64
import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from starlette.datastructures import Headers, QueryParams
from starlette.responses import Response

from laggard.kvstore.series.sample_store import Newest, SampleStore, key_of
from laggard.telemetry.catalogue import EVENTS
from laggard.telemetry.error_lines import ErrorLine
from laggard.telemetry.errors import BadQueryError, QueryTooLargeError, RequestError
from laggard.telemetry.events import Event
from laggard.telemetry.nodes.sources import Found, LocalSource, Source
from laggard.telemetry.nodes.watch import NodeHealth
from laggard.telemetry.query.engine import Answer
from laggard.telemetry.sending.batches import Batch
from laggard.telemetry.server.handlers import ROUTES, Reach, Service, authorize
from laggard.telemetry.server.job import own_metrics
from laggard.telemetry.server.page import PAGE_ROUTES
from laggard.telemetry.server.requests import Call
from laggard.telemetry.store.history import History
from laggard.telemetry.store.tiers import Tiers

T0 = 1_700_000_000
SECOND_US = 1_000_000
PROBE = "gpu-probe-time"
FAILED = Event((T0 + 5) * SECOND_US, "failure", "rank 1 on a failed", "a")


def known(*events: Event) -> Callable[[int, int], list[Event]]:
    """Return a source of events that are known beforehand."""
    return lambda start_us, end_us: [event for event in events if start_us <= event.time_us <= end_us]


class Nodes(LocalSource):
    """A source with an answer of its own to each sub-query, as that of nodes of which some do not answer."""

    def __init__(self, *found: Found) -> None:
        super().__init__(store())
        self._found = list(found)

    def evaluate(self, *_: object) -> Found:
        return self._found.pop(0)


def store(*series: tuple[str, dict[str, str], Iterable[tuple[float, float]]]) -> History:
    history = History(Tiers({}, max_bytes=1 << 20, clock=lambda: T0), SampleStore(1e9, clock=lambda: T0))
    for metric, tags, points in series:
        times, values = zip(*points, strict=True)
        times_us = np.array([round(at * SECOND_US) for at in times])
        history.samples.extend(key_of(metric, tags), times_us, np.array(values, float))
    return history


def service(source: Source | History | None = None, **more: Any) -> Service:
    given: dict[str, Any] = {
        "reach": lambda: Reach("train", T0 * SECOND_US, (T0 + 100) * SECOND_US),
        "source": LocalSource(source or store()) if isinstance(source, History | None) else source,
        "events": known(FAILED),
        "put": None,
        "token": "secret",
        "reading_needs_token": False,
        "names": frozenset(),
        "health": lambda: {"status": "ok"},
        "error_lines": lambda _: [],
        "own_metrics": list,
    }
    return Service(**given | more)


def reply(of: Service, path: str, body: Any = None, **named: Any) -> Response:
    pairs = [
        (name, str(each)) for name, value in named.items() for each in (value if isinstance(value, list) else [value])
    ]
    call = Call(QueryParams(pairs), Headers(), json.dumps(body).encode(), math.inf)
    return {**ROUTES, **PAGE_ROUTES}[path][1](of, call)


def shown(of: Service, path: str, body: Any = None, **named: Any) -> Any:
    return json.loads(bytes(reply(of, path, body, **named).body))


def curve(of: Service, **named: Any) -> Any:
    """Return the only curve of a request, or its error."""
    return shown(of, "/page/curves", [urlencode(named, doseq=True)])[0]


def asked(*metrics: str, **more: Any) -> dict[str, Any]:
    queries = [{"metric": metric, "aggregator": "none", **more} for metric in metrics]
    return {"start": T0, "end": T0 + 10, "queries": queries}


LOADS = store(*(("load", {"host": host}, [(T0 + 1, 1.5), (T0 + 11, 2.5)]) for host in "abc"))


# -- queries -----------------------------------------------------------------------------------------------------------


def test_a_query_has_its_points_and_the_first_series_the_events_of_the_range() -> None:
    first, *others = shown(service(LOADS), "/api/query", asked("load"))
    assert (first["tags"], first["dps"]) == ({"host": "a"}, {str(T0 + 1): 1.5})
    assert [note["startTime"] for note in first["globalAnnotations"]] == [T0 + 5]
    assert [each["tags"]["host"] for each in others] == ["b", "c"]
    assert not any("globalAnnotations" in each for each in others)


@pytest.mark.parametrize(
    ("named", "points"),
    [
        ({}, {str(T0 + 1): 1.5}),
        ({"arrays": "false"}, {str(T0 + 1): 1.5}),
        ({"arrays": "true"}, [[T0 + 1, 1.5]]),
        ({"arrays": ""}, [[T0 + 1, 1.5]]),
    ],
)
def test_points_are_pairs_for_clients_that_ask_for_arrays(named: dict[str, Any], points: Any) -> None:
    assert shown(service(LOADS), "/api/query", asked("load"), **named)[0]["dps"] == points


@pytest.mark.parametrize(("more", "left_out"), [(0, None), (1, "1")])
def test_series_beyond_a_limit_are_left_out_and_counted(more: int, left_out: str | None) -> None:
    one = np.zeros(1)
    answers = [Answer("x", {"rank": str(rank)}, [], one.astype(int), one) for rank in range(2000 + more)]
    found = reply(service(Nodes(Found(answers))), "/api/query", asked("x"))
    assert len(json.loads(bytes(found.body))) == 2000
    assert found.headers.get("X-Laggard-Series-Left-Out") == left_out


def test_nodes_that_did_not_answer_and_averages_are_named_in_the_headers() -> None:
    source = Nodes(Found([], ["b", "a"]), Found([], ["c"], 10 * SECOND_US), Found([], [], 60 * SECOND_US))
    headers = reply(service(source), "/api/query", asked("x", "y", "z")).headers
    assert headers["X-Laggard-Missing-Nodes"] == "a,b,c"
    assert headers["X-Laggard-Approximate"] == "1: averages of 10 s, 2: averages of 60 s"
    assert not [name for name in reply(service(LOADS), "/api/query", asked("load")).headers if name.startswith("x-")]


def test_several_answers_together_may_not_have_too_many_points() -> None:
    half = Answer("x", {}, [], np.arange(1_000_001), np.zeros(1_000_001))
    with pytest.raises(QueryTooLargeError, match="more than 2,000,000 points"):
        reply(service(Nodes(Found([half]), Found([half]))), "/api/query", asked("x", "y"))


def test_a_metric_that_nobody_has_has_no_series() -> None:
    assert shown(service(LOADS), "/api/query", asked("loss")) == []


def test_events_are_a_metric_too() -> None:
    (found,) = shown(service(LOADS), "/api/query", asked(EVENTS))
    assert (found["dps"], found["tags"]["kind"]) == ({str(T0 + 5): 1}, "failure")


def test_too_many_buckets_are_refused_even_without_data() -> None:
    with pytest.raises(QueryTooLargeError):
        reply(service(), "/api/query", {**asked("x", downsample="1ms-avg"), "end": T0 + 86_400})


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "names"),
    [
        ({"type": "metrics"}, [EVENTS, "load"]),
        ({"type": "metrics", "q": "lo"}, ["load"]),
        ({"type": "metrics", "max": 1}, [EVENTS]),
        ({"type": "tagk"}, ["host"]),
        ({"type": "tagv", "q": ""}, ["a", "b", "c"]),
        ({"type": "tagv", "max": 2}, ["a", "b"]),
        ({"type": "tagv", "max": 0}, ["a", "b", "c"]),
    ],
)
def test_names_are_suggested_by_their_beginning(named: dict[str, Any], names: list[str]) -> None:
    assert shown(service(LOADS), "/api/suggest", **named) == names


def test_25_names_are_suggested_unless_another_number_is_asked_for() -> None:
    many = service(store(*(("load", {"host": f"n{number:02}"}, [(T0, 1)]) for number in range(30))))
    assert len(shown(many, "/api/suggest", type="tagv")) == 25
    assert len(shown(many, "/api/suggest", type="tagv", max=1)) == 1
    assert len(shown(many, "/api/suggest", type="tagv", max=26)) == 26


def test_what_is_no_kind_of_name_is_refused() -> None:
    with pytest.raises(RequestError, match="must be metrics, tagk or tagv") as refusal:
        reply(service(LOADS), "/api/suggest", type="tags")
    assert refusal.value.status == 400


MIXED = store(
    ("load", {"host": "a"}, [(T0, 1)]),
    ("load", {"host": "b"}, [(T0, 1)]),
    ("util", {"host": "a", "gpu": "0"}, [(T0, 1)]),
)


@pytest.mark.parametrize(
    ("m", "found"),
    [
        ("load", ["load host=a", "load host=b"]),
        ("load{host=a}", ["load host=a"]),
        ("load{host=a|b}", ["load host=a", "load host=b"]),
        ("load{host=*}", ["load host=a", "load host=b"]),
        ("load{*=b}", ["load host=b"]),
        ("{gpu=}", ["util gpu=0 host=a"]),
        ("*{host=a,gpu=*}", ["util gpu=0 host=a"]),
        ("*{host=a}", [f"{EVENTS} host=a kind=failure", "load host=a", "util gpu=0 host=a"]),
        ("", [f"{EVENTS} host=a kind=failure", "load host=a", "load host=b", "util gpu=0 host=a"]),
        (EVENTS, [f"{EVENTS} host=a kind=failure"]),
        ("loss", []),
    ],
)
def test_series_are_looked_up_by_metric_and_tags(m: str, found: list[str]) -> None:
    answer = shown(service(MIXED), "/api/search/lookup", m=m)
    names = [" ".join([each["metric"], *(f"{k}={v}" for k, v in each["tags"].items())]) for each in answer["results"]]
    assert (names, answer["totalResults"]) == (found, len(found))


@pytest.mark.parametrize(("limit", "n_shown"), [(1, 1), (2, 2), (3, 2), (0, 2), (-1, 2)])
def test_a_lookup_shows_no_more_than_its_limit_and_counts_all(limit: int, n_shown: int) -> None:
    answer = shown(service(MIXED), "/api/search/lookup", m="load", limit=limit)
    assert (len(answer["results"]), answer["totalResults"]) == (n_shown, 2)


@pytest.mark.parametrize("m", ["load{host}", "load{host=a", "load}{"])
def test_what_is_no_lookup_is_refused(m: str) -> None:
    with pytest.raises(RequestError, match="is not <") as refusal:
        reply(service(MIXED), "/api/search/lookup", m=m)
    assert refusal.value.status == 400


# -- samples from outside ----------------------------------------------------------------------------------------------


def sample(metric: str = "loss", age_s: float = 0, **tags: str) -> dict[str, Any]:
    return {"metric": metric, "timestamp": int(time.time() - age_s), "value": 1.5, "tags": tags or {"host": "a"}}


def putting(kept: list[Batch], *, works: bool = True, ran_s: float = 3600.0) -> Service:
    def put(batch: Batch) -> bool:
        kept.append(batch)
        return works

    return service(LOADS, put=put, began_s=time.time() - ran_s)


def test_samples_are_stored_by_series_and_counted() -> None:
    kept: list[Batch] = []
    found = shown(putting(kept), "/api/put", [sample(), sample(), sample(host="b")])
    assert found == {"success": 3, "failed": 0, "errors": []}
    assert {key: len(times) for key, (times, _) in kept[0].items()} == {
        key_of("loss", {"host": "a"}): 2,
        key_of("loss", {"host": "b"}): 1,
    }
    assert shown(putting(kept), "/api/put", sample())["success"] == 1  # one alone needs no list


@pytest.mark.parametrize(("count", "status"), [(0, 400), (1, 200), (20_000, 200), (20_001, 413)])
def test_a_put_has_one_sample_or_more_up_to_a_limit(count: int, status: int) -> None:
    try:
        found = reply(putting([]), "/api/put", [sample()] * count).status_code
    except RequestError as refusal:
        found = refusal.status
    assert found == status


@pytest.mark.parametrize(
    ("age_s", "change", "reason"),
    [
        (86_500, {}, "not Unix time within this job and the last day"),
        (3700, {}, "not Unix time within this job and the last day"),
        (-90, {}, "ahead of the clock"),
        (0, {"tags": []}, "tags must be a JSON object"),
        (0, {"tags": {}}, "1 to 8 tags"),
        (0, {"tags": {f"t{number}": "x" for number in range(9)}}, "1 to 8 tags"),
        (0, {"metric": "two words"}, "not a valid name"),
        (0, {"metric": "m" * 257}, "not a valid name"),
        (0, {"timestamp": 0}, "above 0"),
        (0, {"timestamp": "soon"}, "is not a time"),
        (0, {"value": True}, "not a finite number"),
        (0, {"value": "1e999"}, "not a finite number"),
        (0, {"value": "nan"}, "not a finite number"),
    ],
)
def test_a_bad_sample_is_refused_with_its_reason_and_the_good_ones_are_stored(
    age_s: float, change: dict[str, Any], reason: str
) -> None:
    kept: list[Batch] = []
    bad = sample(age_s=age_s) | change
    found = reply(putting(kept), "/api/put", [bad, sample()])
    told = json.loads(bytes(found.body))
    assert (found.status_code, told["success"], told["failed"], len(kept)) == (400, 1, 1, 1)
    assert (told["errors"][0]["datapoint"], reason in told["errors"][0]["error"]) == (bad, True)


@pytest.mark.parametrize(
    ("age_s", "change"),
    [
        (3650, {}),
        (-30, {}),
        (0, {"tags": {f"t{number}": "x" for number in range(8)}}),
        (0, {"metric": "m" * 256}),
        (0, {"value": "1" * 63}),
        (0, {"value": "-.5e3"}),
        (0, {"value": 7}),
    ],
)
def test_a_sample_at_the_limits_is_stored(age_s: float, change: dict[str, Any]) -> None:
    good = sample(age_s=age_s) | change
    assert shown(putting([]), "/api/put", good) == {"success": 1, "failed": 0, "errors": []}


def test_by_a_clock_that_is_behind_a_sample_of_now_is_not_of_before_the_job() -> None:
    assert shown(putting([], ran_s=-300), "/api/put", sample(age_s=30))["success"] == 1


def test_without_a_good_sample_the_store_is_not_asked() -> None:
    told = shown(putting([], works=False), "/api/put", [5])
    assert (told["failed"], told["errors"][0]["error"]) == (1, "a sample must be a JSON object")


def test_nothing_can_be_added_to_a_dump_or_to_a_store_that_does_not_answer() -> None:
    for of, status in ((service(LOADS), 403), (putting([], works=False), 503)):
        with pytest.raises(RequestError) as refusal:
            reply(of, "/api/put", sample())
        assert refusal.value.status == status


# -- the newest values, and the token ----------------------------------------------------------------------------------


def test_metrics_are_the_newest_values_of_the_last_minute_and_what_the_server_knows_itself() -> None:
    now = time.time()
    series = (("load", {"host": "a"}, [(now - 40, 1), (now - 30, 2)]), ("loss", {"host": "a"}, [(now - 90, 3)]))
    own = Newest("epoch", {}, 0, 7.0)  # whatever its time
    of = service(store(*series), own_metrics=lambda: [own])
    text = bytes(reply(of, "/metrics").body).decode()
    values = [line for line in text.splitlines() if not line.startswith("#")]
    assert values == ["laggard_user_epoch 7.0", 'laggard_user_load{hostname="a"} 2.0']


def test_the_server_tells_of_its_nodes_of_slow_devices_and_of_what_has_happened() -> None:
    slow = Event(5 * SECOND_US, "verdict", "", "a", "0", severity="slow")
    node = replace(slow, host="b", gpu="", time_us=7_500_000)
    found = own_metrics({"a": NodeHealth(up=True, lag_s=0.5, clock_skew_s=0.25, dropped=3)}, [slow, node], 2, 1.5, 99)
    assert {(each.metric, *each.tags.values()): each.value for each in found} == {
        ("laggard.node_up", "a"): 1.0,
        ("laggard.node_lag", "a"): 0.5,
        ("laggard.node_clock_skew", "a"): 0.25,
        ("laggard.node_dropped", "a"): 3.0,
        ("laggard.slow_since", "a", "0"): 5.0,
        ("laggard.slow_since", "b"): 7.5,
        ("laggard.launch",): 2.0,
        ("laggard.progress",): 1.5,
    }
    assert {each.time_us for each in found} == {99}
    assert own_metrics({}, [], None, None, 99) == []
    assert [each.value for each in own_metrics({}, [], 0, 0.0, 99)] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("metric", "value", "line"),
    [
        ("load_average", 2.5, "node_load1 2.5"),
        ("used_RAM", 50.0, "laggard_node_memory_used_ratio 0.5"),
        ("cpu_percent", 50.0, "laggard_node_cpu_busy_ratio 0.5"),
        ("network_receive", 7.0, "node_network_receive_bytes_total 7.0"),
        ("DeviceUtilization", 50.0, "DCGM_FI_DEV_GPU_UTIL 50.0"),
        ("DeviceMemoryUtilization", 50.0, "laggard_gpu_memory_used_ratio 0.5"),
        ("DeviceMemoryUsed", 3.0 * 2**20, "DCGM_FI_DEV_FB_USED 3.0"),  # MiB
        ("DeviceEnergy", 2.0, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION 2000.0"),  # mJ
        ("DeviceSmActive", 50.0, "DCGM_FI_PROF_SM_ACTIVE 0.5"),
        ("DeviceSmOccupancy", 50.0, "DCGM_FI_PROF_SM_OCCUPANCY 0.5"),
        ("DeviceTensorActive", 50.0, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE 0.5"),
        ("DeviceDramActive", 50.0, "DCGM_FI_PROF_DRAM_ACTIVE 0.5"),
        ("db_size", 2.0, "laggard_store_bytes 2000000.0"),
        ("ProcessDeviceUtilization", 50.0, "laggard_process_gpu_busy_ratio 0.5"),
        ("a-b", math.inf, "laggard_user_a_b +Inf"),
        ("a-b", -math.inf, "laggard_user_a_b -Inf"),
        ("a-b", math.nan, "laggard_user_a_b NaN"),
    ],
)
def test_metrics_have_the_names_and_units_of_the_exporters(metric: str, value: float, line: str) -> None:
    of = service(own_metrics=lambda: [Newest(metric, {}, 0, value)])
    assert line in bytes(reply(of, "/metrics").body).decode().splitlines()


def basic(text: str) -> dict[str, str]:
    return {"authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


@pytest.mark.parametrize(
    ("headers", "is_allowed"),
    [
        ({"authorization": "Bearer secret"}, True),
        ({"authorization": "bearer  secret "}, True),
        ({"x-laggard-token": "secret"}, True),
        (basic("anyone:secret"), True),
        (basic(":secret"), True),
        ({}, False),
        ({"authorization": "Bearer Secret"}, False),
        ({"authorization": "Bearer"}, False),
        ({"authorization": "Digest secret"}, False),
        ({"authorization": "Basic secret!"}, False),
        ({"authorization": "Basic /w=="}, False),
        (basic("secret"), False),
        (basic("secret:"), False),
        ({"x-laggard-token": "\udcff"}, False),
        ({"x-laggard-token": "secret", "authorization": "Bearer wrong"}, False),
    ],
)
def test_a_request_shows_the_token_as_a_bearer_a_password_or_a_header(
    headers: dict[str, str], is_allowed: bool
) -> None:
    if is_allowed:
        authorize(service(), headers)
        return
    with pytest.raises(RequestError) as refusal:
        authorize(service(), headers)
    assert refusal.value.status == 401


def test_the_token_is_not_printed_with_the_service() -> None:
    assert "secret" not in repr(service())


# -- the page ----------------------------------------------------------------------------------------------------------


def page_range(start: float, end: float) -> dict[str, Any]:
    return {"start": round((T0 + start) * 1000), "end": round((T0 + end) * 1000)}


def test_the_page_of_a_running_job_says_what_there_is_to_show_in_a_range() -> None:
    verdict = Event((T0 + 20) * SECOND_US, "verdict", "slow", "a", "0", severity="slow", action="report")
    began = Event(T0 * SECOND_US, "launch", launch=0, nodes=("a", "b"))
    events = known(began, FAILED, verdict, replace(verdict, time_us=(T0 + 50) * SECOND_US, gpu="1"))
    reach = Reach("train", T0 * SECOND_US, (T0 + 60) * SECOND_US, nodes={"b", "a"}, missing=["b"])
    of = service(LOADS, events=events, reach=lambda: reach)
    found = shown(of, "/page/job", **page_range(10, 40))
    assert (found["name"], found["live"], found["state"]) == ("train", True, "Running")
    assert (found["began"], found["ended"]) == (T0 * 1000, (T0 + 60) * 1000)
    assert (found["nodes"], found["missing"]) == (["a", "b"], ["b"])
    assert [(each["kind"], each["time"]) for each in found["events"]] == [
        ("launch", T0 * 1000),  # goes on in the range
        ("verdict", (T0 + 20) * 1000),
    ]
    assert found["accused"] == [["a", "0"]]  # at the end of the range
    assert [each["number"] for each in found["launches"]] == [0]
    assert ([each["name"] for each in found["metrics"]], found["n_metrics"]) == (["load"], 1)


def test_the_page_of_a_dump_ends_with_the_job() -> None:
    reach = Reach("train", T0 * SECOND_US, (T0 + 60) * SECOND_US, (T0 + 70) * SECOND_US)
    found = shown(service(LOADS, reach=lambda: reach), "/page/job", **page_range(5, 6))
    assert (found["state"], found["live"], found["ended"]) == ("From dumps", False, (T0 + 70) * 1000)
    assert [each["kind"] for each in found["events"]] == ["failure"]  # both ends of the range are in it


@pytest.mark.parametrize(
    "named",
    [
        page_range(5, 5),
        page_range(5, 4),
        {"start": 1},
        {"start": -1, "end": 2},
        {"start": "1.5", "end": 2},
        {"start": 1, "end": "²"},
        {"start": 1, "end": "1" * 15},
    ],
)
def test_what_is_no_range_is_refused(named: dict[str, Any]) -> None:
    with pytest.raises((RequestError, BadQueryError)):
        reply(service(LOADS), "/page/job", **named)


def test_metrics_that_are_too_many_to_be_listed_are_counted() -> None:
    many = service(store(*((f"m{number}", {}, [(T0, 1)]) for number in range(501))))
    found = shown(many, "/page/job", **page_range(0, 5))
    assert (len(found["metrics"]), found["n_metrics"]) == (500, 501)


def test_the_longest_time_that_is_understood_has_14_digits() -> None:
    assert shown(service(LOADS), "/page/job", start=1, end="1" * 14)["name"] == "train"


def probed(host: str, gpu: str, *values: float, model: str = "H100", **tags: str) -> Any:
    points = [(T0 + 10 * number, value) for number, value in enumerate(values)]
    return PROBE, {"host": host, "gpu": gpu, "model": model, **tags}, points


PROBES = store(probed("a", "0", 9, 1), probed("a", "1", 9, 1), probed("b", "0", 9, 3), probed("b", "1", 5, model="T4"))


def test_the_map_shows_the_newest_reading_of_each_device_and_its_ratio_to_its_model() -> None:
    found = shown(service(PROBES), "/page/map", metric=PROBE, end=(T0 + 20) * 1000)
    assert ([found["hosts"][at] for at in found["host_of"]], found["gpus"]) == (["a", "a", "b", "b"], list("0101"))
    assert (found["values"], found["ratios"]) == ([1, 1, 3, 5], [1, 1, 3, None])


@pytest.mark.parametrize(("end", "value"), [(10, 9), (9.9, 9), (130, 9), (131, None), (150, None)])
def test_a_reading_is_on_the_map_for_two_minutes(end: float, value: float | None) -> None:
    once = service(store(probed("a", "0", 9)))
    assert shown(once, "/page/map", metric=PROBE, end=round((T0 + end) * 1000))["values"] == [value]


def test_of_several_series_of_a_device_the_map_shows_the_mean() -> None:
    ranks = service(store(*(probed("a", "0", value, rank=str(value)) for value in (1, 2, 6))))
    assert shown(ranks, "/page/map", metric=PROBE, end=(T0 + 1) * 1000)["values"] == [3]


@pytest.mark.parametrize(
    ("metric", "devices"),
    [
        (PROBE, ["a 0", "a 1", "b 0", "b 1", "c 0"]),
        ("util", ["a 0", "c 0"]),  # of devices, as some reading shows
        ("load", ["a ", "b ", "c "]),  # of nodes
        ("loss", []),
    ],
)
def test_a_device_that_the_job_has_is_on_the_map_of_a_metric_of_devices(metric: str, devices: list[str]) -> None:
    util = ("util", {"host": "a", "gpu": "0"}, [(T0, 5)])
    both = store(util, *(("load", {"host": host}, [(T0, 1)]) for host in "abc"), probed("a", "0", 9))
    known = {("a", "0"), ("c", "0")} | ({("a", "1"), ("b", "0"), ("b", "1")} if metric == PROBE else set())
    reach = Reach("train", 0, T0 * SECOND_US, devices=known)
    found = shown(service(both, reach=lambda: reach), "/page/map", metric=metric, end=(T0 + 5) * 1000)
    assert [f"{found['hosts'][at]} {gpu}" for at, gpu in zip(found["host_of"], found["gpus"], strict=True)] == devices


def test_in_a_dump_the_devices_are_those_that_ever_had_the_metric() -> None:
    found = shown(service(PROBES), "/page/map", metric=PROBE, end=(T0 + 1000) * 1000)
    assert (len(found["gpus"]), found["values"]) == (4, [None] * 4)


def test_lines_of_standard_error_are_those_of_the_range() -> None:
    lines = [ErrorLine((T0 + at_s) * SECOND_US, "node1", rank, "warned") for at_s, rank in ((1, None), (5, 3), (20, 3))]
    written = service(error_lines=lambda start_us: [line for line in lines if line.time_us >= start_us])
    assert shown(written, "/page/lines", **page_range(2, 10)) == [
        {"time": (T0 + 5) * 1000, "host": "node1", "rank": 3, "text": "warned"}
    ]


def test_a_curve_has_the_chosen_devices_and_a_band_of_their_peers() -> None:
    named: dict[str, Any] = {"metric": PROBE, "device": ["b/0"], **page_range(0, 20)}
    found = curve(service(PROBES), **named, points=2)
    assert found["times"] == [T0 * 1000, (T0 + 10) * 1000]
    assert (found["unit"], found["n_series"], found["averages_s"]) == ("s", 2, 0)  # not the T4
    assert (found["low"], found["middle"], found["high"]) == ([9, 1], [9, 1], [9, 1])
    assert found["lines"] == [{"of": ["b", "0"], "is_far": True, "values": [9, 3]}]
    assert (found["by"], found["is_percentiles"]) == (["host", "gpu"], True)


def test_a_node_stands_for_all_of_its_devices_and_one_without_readings_has_an_empty_line() -> None:
    named: dict[str, Any] = {"metric": PROBE, "device": ["a/", "z/0"], **page_range(0, 20)}
    node, nobody = curve(service(PROBES), **named, points=2)["lines"]
    assert (node["values"], nobody["values"]) == ([9, 1], [None, None])


def test_the_band_of_a_programs_own_metric_is_from_the_lowest_to_the_highest() -> None:
    ranks = service(store(*(("loss", {"rank": str(value)}, [(T0, value)]) for value in (1, 2, 6))))
    found = curve(ranks, metric="loss", **page_range(0, 10))
    assert (found["low"], found["middle"], found["high"]) == ([1], [3], [6])


def ranks_of(count: int, slow: int) -> Service:
    return service(
        store(
            *(
                (
                    "time",
                    {"host": f"n{rank // 8}", "rank": str(rank)},
                    [(T0 + at, 2 if rank == slow else 1) for at in range(9)],
                )
                for rank in range(count)
            )
        )
    )


def test_a_curve_by_rank_has_a_line_for_each_and_says_which_is_far_from_the_others() -> None:
    found = curve(ranks_of(16, 11), metric="time", by="rank", **page_range(0, 10))
    assert [line["of"] for line in found["lines"]] == [[str(rank)] for rank in range(16)]
    assert [line["of"] for line in found["lines"] if line["is_far"]] == [["11"]]
    assert (found["n_series"], found["by"]) == (0, ["rank"])


def test_of_more_than_64_lines_those_that_are_far_are_drawn_over_a_band_of_the_rest() -> None:
    found = curve(ranks_of(65, 11), metric="time", by="rank", **page_range(0, 10))
    assert [(line["of"], line["values"]) for line in found["lines"]] == [(["11"], [2] * 9)]
    assert (found["n_series"], found["low"], found["high"]) == (64, [1] * 9, [1] * 9)


def test_lines_by_a_tag_that_several_series_share_are_their_means() -> None:
    found = curve(ranks_of(16, 11), metric="time", by="host", **page_range(0, 10))
    assert [(line["of"], line["values"][0]) for line in found["lines"]] == [(["n0"], 1), (["n1"], 1.125)]


def test_the_curve_of_a_counter_is_how_fast_it_rises() -> None:
    sent = store(("network_transmit", {"host": "a"}, [(T0, 5), (T0 + 1, 25), (T0 + 2, 3), (T0 + 3, 5)]))
    found = curve(service(sent), metric="network_transmit", by="host", **page_range(0, 10))
    assert ([line["values"] for line in found["lines"]], found["unit"]) == ([[20, 2]], "bytes/s")


def test_of_a_counter_that_was_read_once_nothing_is_drawn() -> None:
    read_once = store(*(("network_transmit", {"host": host}, [(T0, 5)]) for host in "ab"))
    found = curve(service(read_once), metric="network_transmit", by="host", **page_range(0, 10))
    assert (found["lines"], found["times"]) == ([], [])


def test_a_step_is_told_to_the_last_digit() -> None:
    counted = service(store(("step", {"rank": "0"}, [(T0, 1_234_567)])))
    found = curve(counted, metric="step", by="rank", **page_range(0, 9))
    assert found["lines"][0]["values"] == [1_234_567]


def test_a_curve_without_data_is_empty_and_says_how_wide_the_averages_of_old_data_are() -> None:
    found = curve(service(LOADS), metric="loss", **page_range(0, 10))
    assert (found["times"], found["n_series"], found["lines"]) == ([], 0, [])
    old = service(Nodes(Found([], [], 60 * SECOND_US)))
    assert curve(old, metric="loss", **page_range(0, 10))["averages_s"] == 60


def test_a_curve_has_300_buckets_unless_another_number_is_asked_for_and_12_lines_at_most() -> None:
    series = store(("load", {"host": "a"}, [(T0 + at, at) for at in range(600)]))
    many: dict[str, Any] = {
        "metric": "load",
        "device": [f"n{number}/" for number in range(13)],
        **page_range(0, 599),
    }
    found = curve(service(series), **many)
    assert (len(found["times"]), len(found["lines"])) == (300, 12)
    assert len(curve(service(series), **many, points=60)["times"]) == 60


@pytest.mark.parametrize(
    ("named", "said"),
    [*(({"device": device}, "<host>/<gpu>") for device in ("a", "/0", "")), ({"metric": ""}, "missing")],
)
def test_a_curve_that_is_refused_says_why_and_does_not_keep_back_the_others(named: dict[str, str], said: str) -> None:
    good: dict[str, Any] = {"metric": PROBE, **page_range(0, 10)}
    one, other = shown(service(PROBES), "/page/curves", [urlencode(good | named), urlencode(good)])
    assert said in one["error"]["message"]
    assert other["n_series"] == 4


@pytest.mark.parametrize("body", [{}, "metric=m", [1], ["metric=m"] * 401])
def test_what_is_no_list_of_curves_is_refused(body: object) -> None:
    with pytest.raises(RequestError, match="at most 400"):
        reply(service(PROBES), "/page/curves", body)


def test_the_links_name_the_nodes_that_did_not_answer() -> None:
    source = Nodes(Found([], ["c"]), Found([], ["b"]), Found([]))
    assert reply(service(source), "/page/links").headers["X-Laggard-Missing-Nodes"] == "b,c"
    assert "X-Laggard-Missing-Nodes" not in reply(service(LOADS), "/page/links").headers


def test_the_links_of_a_launch_that_is_not_known_are_refused() -> None:
    assert shown(service(LOADS), "/page/links") == {"links": None}
    with pytest.raises(RequestError, match="launch '7' is not known") as refusal:
        reply(service(LOADS), "/page/links", launch=7)
    assert refusal.value.status == 404

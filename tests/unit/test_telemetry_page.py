"""What the page is told: who is accused, how far devices are from their peers, how wide a chart's buckets are."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from laggard.collectors.section_sender import SECTION_TIME
from laggard.kvstore.series.sample_store import key_of
from laggard.kvstore.series.timeseries import TimeSeries
from laggard.telemetry.catalogue import EVENTS
from laggard.telemetry.curves import MAX_POINTS, far_from_others, peers_of, step
from laggard.telemetry.errors import RequestError
from laggard.telemetry.events import Event
from laggard.telemetry.page import live_document
from laggard.telemetry.page.content import (
    accused,
    accused_nodes,
    accused_of,
    events_of,
    launches_of,
    map_of,
    metrics_of,
    n_series_of,
    numbers,
    ratios_to_peers,
    recorded_means,
)
from laggard.telemetry.query.engine import Span
from laggard.telemetry.query.times import SECOND_US
from laggard.telemetry.server.requests import require_own_place


def verdict(time_s: int, host: str, gpu: str, severity: str = "very slow") -> Event:
    evidence = f"{host} gpu {gpu}: 20 % slower"
    return Event(time_s * SECOND_US, "verdict", evidence, host, gpu, severity=severity, action="restart")


def test_a_device_is_accused_until_it_is_well_again_and_the_newest_comes_first() -> None:
    events = [
        verdict(1, "node1", "0"),
        verdict(2, "node2", "1"),
        verdict(3, "node1", "0", "well again"),
        Event(4 * SECOND_US, "notice", "node3 gpu 0 (slow, restart)", "node3", "0", severity="slow"),
        verdict(5, "node4", ""),
    ]

    assert list(accused(events)) == [("node4", ""), ("node2", "1")]
    assert accused_nodes(events) == ["node4"]
    assert accused_of(events)["evidence"][1] == {"time": 2000, "text": "node2 gpu 1: 20 % slower (very slow, restart)"}


@pytest.mark.parametrize(("count", "first", "left_out"), [(0, 0, 0), (2000, 0, 0), (2001, 1, 1)])
def test_the_newest_events_are_shown_and_older_ones_counted(count: int, first: int, left_out: int) -> None:
    found = events_of([verdict(number, "node1", "0") for number in range(count)])

    assert [each["time"] // 1000 for each in found["events"]] == [*range(first, count)]
    assert found["events_left_out"] == left_out


def test_a_device_is_compared_with_its_own_model_only() -> None:
    ratios = ratios_to_peers(np.array([1.0, 1.2, 1.0, 5.0, 9.0]), ["H100", "H100", "H100", "T4", "A100"])

    assert ratios[:3] == pytest.approx([1.0, 1.2, 1.0])
    assert np.isnan(ratios[3:]).all()


def test_two_devices_of_a_model_are_peers() -> None:
    assert ratios_to_peers(np.array([1.0, 3.0]), ["H100"] * 2) == pytest.approx([0.5, 1.5])


def test_where_most_read_nothing_there_is_no_ratio() -> None:
    assert np.isnan(ratios_to_peers(np.array([0.0, 0.0, 3.0]), ["H100"] * 3)).all()


def test_a_device_without_a_reading_has_a_place_on_the_map_and_is_no_peer() -> None:
    newest = {("node1", "0"): (1.0, ""), ("node1", "1"): (1.0, ""), ("node2", "0"): (3.0, "")}
    known = [("node10", "0"), ("node1", "0"), ("node2", "1")]

    found = map_of("gpu-probe-time", newest, known)

    assert [(found["hosts"][at], gpu) for at, gpu in zip(found["host_of"], found["gpus"], strict=True)] == [
        ("node1", "0"),
        ("node1", "1"),
        ("node2", "0"),
        ("node2", "1"),
        ("node10", "0"),
    ]
    assert (found["values"], found["ratios"]) == ([1, 1, 3, None, None], [1, 1, 3, None, None])
    assert map_of("gpu-probe-time", {}, known)["ratios"] == [None] * 3


def test_the_band_is_of_the_peers_of_what_is_chosen() -> None:
    times = np.zeros(1, np.int64)
    fast, other, slow = (
        TimeSeries("t", {"host": host, "model": model}, times, np.ones(1))
        for host, model in (("a", "H100"), ("b", "T4"), ("c", "H100"))
    )

    assert peers_of([fast, other, slow], [slow]) == [fast]
    assert peers_of([fast, other, slow], []) == [fast, other, slow]


@given(st.integers(1, 10**7), st.integers(-5, 10**6))
def test_a_chart_never_has_more_points_than_were_asked_for(length_s: int, points: int) -> None:
    step_s = step(Span(0, length_s * SECOND_US), points)

    assert step_s >= 1
    assert length_s / step_s <= max(1, min(points, MAX_POINTS))


def test_the_page_holds_all_that_it_runs_and_allows_nothing_else() -> None:
    page = live_document()
    html = page.html.decode()

    for tag in ("script", "style"):
        for text in re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL):
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in page.policy
    assert re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"(?!data:)[^\"]*", html) == []
    assert "style=" not in html
    assert "unsafe" not in page.policy
    assert "default-src 'none'" in page.policy


@pytest.mark.parametrize(
    "host",
    ["", "localhost", "LOCALHOST:4242", "127.0.0.1:4242", "[::1]:4242", "[::1]", "10.0.0.7", "node1.", "node1:4"],
)
def test_a_request_to_the_servers_own_name_is_answered(host: str) -> None:
    require_own_place(Headers({"host": host}), "/", {"node1"})


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:4242", "127.0.0.1.evil.example", "localhost.evil", "node2"]
)
def test_a_request_to_a_name_that_another_site_made_resolve_here_is_refused(host: str) -> None:
    with pytest.raises(RequestError, match="server_names") as refusal:
        require_own_place(Headers({"host": host}), "/", {"node1"})
    assert refusal.value.status == 421


@pytest.mark.parametrize(
    ("metric", "tags", "kind", "unit", "on_map", "is_probe"),
    [
        ("loss", {"rank": "0"}, "program", "", False, False),
        ("loss", {"host": "a"}, "program", "", True, False),
        ("loss", {"host": "a", "gpu": "0"}, "program", "", True, False),
        ("gpu-probe-time", {"host": "a", "gpu": "0"}, "device", "s", True, True),
        ("gpu-probe-time", {"host": "a"}, "program", "s", True, False),
        ("DeviceUtilization", {"host": "a", "gpu": "0"}, "device", "%", True, False),
        ("load_average", {"host": "a"}, "node", "", True, False),
        ("used_RAM", {"host": "a"}, "node", "%", True, False),
        (f"{SECTION_TIME}forward", {"host": "a", "rank": "0"}, "program", "s", True, False),
        ("step-time", {"rank": "0"}, "program", "", False, False),  # who named it knows whether it is in seconds
        ("link.send_s", {"host": "a", "peer": "b"}, "link", "s", False, False),
    ],
)
def test_a_metric_is_the_programs_or_of_nodes_devices_or_links(
    metric: str, tags: dict[str, str], kind: str, unit: str, on_map: bool, is_probe: bool
) -> None:
    assert metrics_of([key_of(metric, tags), key_of(EVENTS, {})]) == [
        {"name": metric, "kind": kind, "unit": unit, "on_map": on_map, "is_probe": is_probe, "by": []}
    ]


@pytest.mark.parametrize(
    ("tags", "by"),
    [
        ([{"host": "a", "rank": "0"}, {"host": "a", "rank": "1"}], [("rank",)]),
        ([{"host": "a", "rank": "0"}, {"host": "b", "rank": "1"}], [("rank",), ("host",)]),
        ([{"host": "a", "gpu": "0"}, {"host": "a", "gpu": "1"}], [("host", "gpu")]),
        ([{"host": "a", "gpu": "0"}, {"host": "b", "gpu": "0"}], [("host", "gpu"), ("host",)]),
        ([{"host": "a", "process": "7"}, {"host": "a", "process": "8"}], [("host", "process")]),
        ([{"host": "a", "role": "x"}, {"host": "a", "role": "y"}], [("role",)]),
        ([{"host": "a"}], []),
        ([{"of_series": "mean", "n_series": "2"}, {"of_series": "lowest", "n_series": "3"}], []),
    ],
)
def test_the_series_of_a_metric_are_told_apart_by_the_tags_that_differ(
    tags: list[dict[str, str]], by: list[tuple[str, ...]]
) -> None:
    assert metrics_of(key_of("m", each) for each in tags)[0]["by"] == by


def test_the_loss_and_the_time_of_a_step_come_first_and_utilisation_before_other_device_metrics() -> None:
    device = {"host": "a", "gpu": "0"}
    keys = [
        *(key_of(name, {}) for name in ("a", "step", "closs", "train/step_time", "tokens_per_second", "train/loss")),
        *(key_of(name, device) for name in ("DeviceEnergy", "DeviceUtilization", "zz-probe-time")),
        *(key_of(name, {"host": "a"}) for name in ("cgroup_memory", "cpu_percent", "layer10", "layer9")),
    ]
    assert [each["name"] for each in metrics_of(keys)] == [
        *("zz-probe-time", "DeviceUtilization", "DeviceEnergy", "cpu_percent", "cgroup_memory"),
        *("train/loss", "train/step_time", "tokens_per_second", "a", "closs", "layer9", "layer10", "step"),
    ]


@pytest.mark.parametrize(
    ("lines", "far"),
    [
        ([[1, 1], [1, 1], [1, 1], [1, 1]], []),
        ([[1, 1], [1.01, 1], [0.99, 1], [2, 2]], [3]),
        ([[1, 1], [1, 1], [5, 5], [2, 2], [1, 1]], [2, 3]),  # the farthest first
        ([[1, 1], [2, 2]], []),  # neither is the odd one
        ([[np.nan, np.nan], [1, 1], [1, 1], [3, 3]], [3]),
        ([[1] * 20, [1] * 20, [1] * 20, [9] + [1] * 19], [3]),  # a spike where the others have none
        ([[1] * 19 + [2], [1, 2] + [1] * 18, [2] + [1] * 19, [1, 1, 9] + [1] * 17], []),  # a larger one than theirs
        ([[1, 1.01] * 10, [1.01, 1] * 10, [1] * 20, [2] * 20, [1] * 19 + [4.6e18]], [3, 4]),  # a spike hides nothing
        ([[1] * 20, [1] * 20, [1] * 20, [9, np.nan, np.nan] + [1] * 17], [3]),  # it stands until the next
        ([[np.nan]], []),
        ([[4.6e18], [4.6e18], [4.6e18 + 1024]], []),  # the last digit
    ],
)
def test_a_line_is_far_if_it_is_much_farther_from_the_middle_than_lines_usually_are(
    lines: list[list[float]], far: list[int]
) -> None:
    assert far_from_others(np.array(lines, float)) == far


def test_many_losses_of_parts_come_after_the_loss_and_the_time_of_a_step() -> None:
    parts = [f"head{number}/loss" for number in range(20)]
    first = [
        each["name"]
        for each in metrics_of([key_of(name, {}) for name in ("aux_loss", *parts, "time_per_step", "loss")])
    ]
    assert first == ["loss", "time_per_step", "aux_loss", *parts]


def test_of_many_metrics_the_first_500_by_name_are_listed() -> None:
    found = metrics_of(key_of(f"m{number:03}", {}) for number in reversed(range(501)))
    assert [each["name"] for each in found] == [f"m{number:03}" for number in range(500)]


@pytest.mark.parametrize(
    ("tags", "count"),
    [
        ({"of_series": "mean", "n_series": "12"}, 12),
        ({"of_series": "mean", "n_series": "999999999"}, 999_999_999),
        ({"of_series": "mean", "n_series": "1000000000"}, 1),
        ({"of_series": "mean", "n_series": "x"}, 1),
        ({"of_series": "mean"}, 1),
        ({"n_series": "12"}, 1),  # a tag of the program's own
    ],
)
def test_a_series_of_a_record_stands_for_as_many_as_it_says(tags: dict[str, str], count: int) -> None:
    assert n_series_of(tags) == count


def test_the_mean_of_a_record_is_shown_and_all_series_of_a_running_job() -> None:
    times, one = np.zeros(1, np.int64), np.ones(1)
    low, mean = (TimeSeries("m", {"of_series": which, "n_series": "8"}, times, one) for which in ("min", "mean"))
    running = TimeSeries("m", {"rank": "0"}, times, one)
    assert recorded_means([low, mean]) == ([mean], 8)
    assert recorded_means([running, running]) == ([running, running], 2)
    assert recorded_means([low]) == ([low], 8)
    assert recorded_means([]) == ([], 0)


def test_numbers_have_five_digits_and_what_is_not_finite_is_none() -> None:
    values = np.array([1.234567, 123456.7, 0.0, np.nan, np.inf, -np.inf])
    assert numbers(values) == [1.2346, 123460.0, 0.0, None, None, None]


def test_a_launch_does_without_the_nodes_that_were_there_before_and_ends_with_its_own_end() -> None:
    found = launches_of(
        [
            Event(0, "launch-end", launch=0),
            Event(1_500_000, "launch", launch=0, nodes=("a", "b"), reserve=("c",)),
            Event(2_500_000, "launch-end", launch=0),
            Event(3_000_000, "launch", launch=1, nodes=("a", "c")),
            Event(3_500_000, "launch-end", launch=0),
            Event(4_000_000, "launch", launch=2, nodes=("a", "b"), reserve=("c",)),
        ]
    )
    assert [(each["number"], each["excluded"]) for each in found] == [(0, []), (1, ["b"]), (2, [])]
    assert [(each["began"], each["ended"]) for each in found] == [(1500, 2500), (3000, None), (4000, None)]


@pytest.mark.parametrize(
    ("length_s", "points", "step_s"),
    [(300, 300, 1), (301, 300, 2), (600, 300, 2), (3000, 300, 10), (3001, 300, 20), (300, 5000, 1), (300, 0, 300)],
)
def test_a_chart_has_the_narrowest_buckets_that_are_few_enough(length_s: int, points: int, step_s: int) -> None:
    assert step(Span(0, length_s * SECOND_US), points) == step_s


def test_a_chart_of_years_has_buckets_of_more_than_a_day() -> None:
    assert step(Span(0, 86_400 * 1000 * SECOND_US), 1000) == 86_400
    assert step(Span(0, 86_400 * 1001 * SECOND_US), 1000) == 86_487
    assert step(Span(0, 2000 * SECOND_US), 2000) == 2  # never more than a thousand points


def test_the_page_is_short_enough_to_do_without_a_build_step() -> None:
    own = [
        each
        for each in resources.files("laggard.telemetry.page").iterdir()
        if each.name.endswith((".js", ".css", ".html"))
    ]
    assert len(own) > 10
    assert sum(len(each.read_text().splitlines()) for each in own) <= 2_500

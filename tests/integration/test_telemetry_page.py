"""The page at the printed address, in a real browser: looked at, clicked and read."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.control import Control, LaunchRecord, NodeRecord
from laggard.kvstore.series.sample_store import key_of
from laggard.kvstore.series.timeseries import TimeSeries
from laggard.kvstore.server.process import StateServer
from laggard.resilience.decision.failure import Failure
from laggard.resilience.record.entries import FailureFound
from laggard.resilience.record.journal import Journal
from laggard.telemetry.course import JobBegan
from laggard.telemetry.dumps.writing import write_dump
from laggard.telemetry.error_lines import ErrorLine, publish
from laggard.telemetry.events import Event, series_of_events
from tests.browser import Browser, browser, find_browser
from tests.integration.serving import SECOND_US, Served, serve
from tests.integration.test_telemetry_replay import served as replayed
from tests.waiting import DEADLINE_S

T0 = 1_700_000_000
N = 60
SCRIPT = "<script>alert(1)</script>"
VERY_SLOW: Any = {"severity": "very slow", "action": "restart"}
HOSTILE = "<img src=x onerror=alert(1)> $\\frac{ \x1b[31m"
needs_browser = pytest.mark.skipif(find_browser() is None, reason="there is no Chromium")


def device_series(times_us: Any, nodes: int, gpus: int, slow: tuple[str, str]) -> Iterator[TimeSeries]:
    for node in range(1, nodes + 1):
        for gpu in range(gpus):
            tags = {"host": f"node{node}", "gpu": str(gpu)}
            seconds = np.full(len(times_us), 0.01) + 1e-5 * gpu
            if (tags["host"], tags["gpu"]) == slow:
                seconds[len(seconds) // 2 :] *= 1.5
            yield TimeSeries("gpu-probe-time", tags, times_us, seconds)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the dumps of a job of 125 nodes of 8 devices, one of which became slow."""
    folder = tmp_path_factory.mktemp("dumps")
    times_us = T0 * SECOND_US + np.arange(N, dtype=np.int64) * 5 * SECOND_US
    events = [
        Event(T0 * SECOND_US, "launch", launch=0, nodes=("node1", "node2"), reserve=("node3",)),
        Event((T0 + 200) * SECOND_US, "verdict", f"node7 gpu 3: {HOSTILE}", "node7", "3", **VERY_SLOW),
        Event((T0 + 220) * SECOND_US, "failure", "rank 1 on node2 failed", "node2"),
    ]
    own = [
        TimeSeries("loss", {"host": "node1", "rank": str(rank)}, times_us, np.linspace(2, 1 + rank, N))
        for rank in (0, 1)
    ]
    load = [TimeSeries("load_average", {"host": f"node{node}"}, times_us, np.full(N, float(node))) for node in (1, 2)]
    split = TimeSeries("a|b", {"host": "node1"}, times_us, np.full(N, 7.5))
    hostile = TimeSeries(HOSTILE, {"host": "node1"}, times_us, np.ones(N))
    named = TimeSeries(SCRIPT, {"host": SCRIPT}, times_us, np.ones(N))
    series = [
        *device_series(times_us, 125, 8, ("node7", "3")),
        *own,
        *load,
        split,
        hostile,
        named,
        *series_of_events(events),
    ]
    write_dump(str(folder), "all", float(T0 + 300), series)
    return folder


@pytest.fixture(scope="module")
def replay(dump: Path) -> Iterator[str]:
    with replayed("-m", "laggard.telemetry.server", "--port", "0", "--dump", dump) as port:
        yield f"http://127.0.0.1:{port}/"


def text(tab: Browser, selector: str) -> str:
    return str(tab.measure(f"document.querySelector({json.dumps(selector)}).textContent"))


def place(tab: Browser, selector: str) -> list[float]:
    """Return where an element begins, and how wide it is."""
    box = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
    return list(tab.measure(f"(({{x, y, width}}) => [x, y, width])({box})"))


def open_page(tab: Browser, address: str, width: int, height: int = 900) -> None:
    tab.open(address, width, height)
    tab.wait_for("document.documentElement.dataset.loaded !== undefined")


@needs_browser
def test_the_page_of_a_dump_can_be_read_at_three_widths(replay: str, tmp_path: Path) -> None:
    program = find_browser()
    assert program is not None
    with browser(program, tmp_path / "profile") as tab:
        for width in (390, 1280, 2560):
            open_page(tab, replay, width, 4000)
            assert tab.measure("document.documentElement.scrollWidth") <= width
            assert "From dumps" in text(tab, "#state")
            assert "5 min" in text(tab, "#range-text"), "it opens on the dump's own range"
            assert "1,000 devices" in text(tab, "#map-legend")
            assert tab.measure("document.querySelectorAll('#lane canvas, #peers canvas, #curves canvas').length") == 6
            assert "node7 gpu 3" in text(tab, "#peers .values")
            assert "median of 999" in text(tab, "#peers .values")
            assert "rank 1 on node2 failed" in text(tab, "#events")
            assert text(tab, "#lane-legend") == "full bar: in use · thin bar: in reserve"
            evidence = text(tab, "#evidence")
            assert evidence.startswith("node7 gpu 3 ")
            assert evidence.endswith(": " + HOSTILE.replace("\x1b", "\ufffd") + " (very slow, restart)")
            assert tab.measure("document.querySelectorAll('img, #events script').length") == 0
            assert HOSTILE.replace("\x1b", "\ufffd") in text(tab, "#events"), "names are shown, and never obeyed"
            assert HOSTILE.replace("\x1b", "\ufffd") in text(tab, "#curves")
            assert SCRIPT in text(tab, "#curves"), "a metric's name"
            assert SCRIPT in text(tab, "#map-metric")
            assert "a|b" in text(tab, "#curves"), "one metric, not two"
            assert "No value of" not in text(tab, "#curves")
        tab.measure(f"document.querySelector('#map-metric').value = {json.dumps(SCRIPT)}")
        tab.measure("document.querySelector('#map-metric').dispatchEvent(new Event('change'))")
        tab.wait_for("document.querySelector('#map-legend').textContent.includes('1 node')")
        tab.measure("document.querySelector('#map').focus()")
        tab.press("ArrowRight")
        assert text(tab, "#map-text") == f"{SCRIPT}: 1", "a node's name"
        assert text(tab, "#map-title") == "Nodes"
        tab.measure("document.querySelector('#map-metric').value = 'a|b'")
        tab.measure("document.querySelector('#map-metric').dispatchEvent(new Event('change'))")
        tab.wait_for("document.querySelector('#map-legend').textContent.includes('7.5')")
        assert tab.measure("[...document.scripts].filter((each) => each.textContent === 'alert(1)').length") == 0
        assert tab.complaints == []
        assert [address for address in tab.fetched if not address.startswith((replay, "data:"))] == []


@needs_browser
def test_the_page_is_worked_with_pointer_and_keys(replay: str, tmp_path: Path) -> None:
    program = find_browser()
    assert program is not None
    with browser(program, tmp_path / "profile") as tab:
        open_page(tab, replay, 1280)
        box = place(tab, "#map canvas")

        tab.click(box[0] + 5, box[1] + 5)
        tab.wait_for("document.querySelector('#peers .values').textContent.includes('node1 gpu 0')")
        assert text(tab, "#map-text").startswith("node1 gpu 0: 10 ms")

        tab.measure("document.querySelector('#map').focus()")
        tab.press("ArrowRight")
        assert text(tab, "#map-text").startswith("node1 gpu 1")
        tab.press("Enter")
        tab.wait_for("document.querySelector('#peers .values').textContent.includes('node1 gpu 1')")
        tab.press("Escape")
        tab.wait_for("!document.querySelector('#peers .values').textContent.includes('node1 gpu 1')")

        tab.measure("document.activeElement.blur()")
        tab.press("/")
        assert tab.measure("document.activeElement.id") == "search"
        tab.call("Input.insertText", text="node7 gpu 3")
        assert text(tab, "#map-text").startswith("node7 gpu 3: 15")
        assert "found slow" in text(tab, "#map-text")
        assert text(tab, "#events-text").startswith("1 event, with")

        tab.measure("document.activeElement.blur()")
        before = text(tab, "#range-text")
        tab.press("+")
        tab.wait_for(f"document.querySelector('#range-text').textContent !== {json.dumps(before)}")
        tab.press("a")
        tab.wait_for(f"document.querySelector('#range-text').textContent === {json.dumps(before)}")

        lane = tab.measure(
            "(({x, y, width}) => [x, y, width])(document.querySelector('#lane .u-over').getBoundingClientRect())"
        )
        for kind, share in (("mousePressed", 0.5), ("mouseMoved", 0.6), ("mouseMoved", 0.75), ("mouseReleased", 0.75)):
            x = lane[0] + share * lane[2]
            tab.call("Input.dispatchMouseEvent", type=kind, x=x, y=lane[1] + 8, button="left", buttons=1, clickCount=1)
        tab.wait_for("/, 7\\d s,/.test(document.querySelector('#range-text').textContent)")

        tab.press("a")
        tab.wait_for(f"document.querySelector('#range-text').textContent === {json.dumps(before)}")
        with urllib.request.urlopen(f"{replay}page/job?start=0&end=1", timeout=DEADLINE_S) as answer:  # noqa: S310
            told = json.load(answer)
        x = lane[0] + lane[2] * ((T0 + 200) * 1000 - told["began"]) / (told["ended"] - told["began"])
        # Of six rows the second: launches, verdicts, failures, and the three nodes of the launch.
        y = lane[1] + 0.3 * tab.measure("document.querySelector('#lane .u-over').clientHeight")
        tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        tab.wait_for("document.querySelector('#lane-text').textContent.includes('verdict: node7 gpu 3: <img')")

        tab.measure("Object.assign(document.querySelector('#map-metric'), {value: 'load_average'})")
        tab.measure("document.querySelector('#map-metric').dispatchEvent(new Event('change'))")
        tab.wait_for("document.querySelector('#map-legend').textContent.includes('2 nodes')")
        tab.measure("document.querySelector('#map').focus()")
        tab.press("ArrowRight")
        tab.press("ArrowRight")
        assert text(tab, "#map-text") == "node2: 2"

        tab.press("?", "?")
        assert tab.measure("document.querySelector('#help').open")
        assert tab.complaints == []


@pytest.fixture(scope="module")
def job(state_server: StateServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("node1")
    endpoint = state_server.endpoint
    client = endpoint.connect()
    begin_launch(client, endpoint, 0)
    nodes = tuple(NodeRecord(f"node{i}", "127.0.0.1", ("0", "1")) for i in (1, 2))
    reserve = NodeRecord("node3", "127.0.0.1", ("0", "1"))
    Control(client, endpoint, 0).write_launch(LaunchRecord(0, nodes, (reserve,), ()))
    journal = Journal(None)
    journal.write(JobBegan("train", "x1", (), (), 0, 0))
    quote = "RuntimeError: out of memory"
    journal.write(FailureFound(Failure("node2", 1, 7, 1, 1, 0.0, 9.0, quote, "", "unknown", "")))
    journal.publish(client, endpoint)
    with serve(state_server, directory, settings="reading_needs_token: true\n") as server:
        yield server


@needs_browser
def test_the_page_of_a_running_job_asks_for_the_token_and_is_live(job: Served, tmp_path: Path) -> None:

    program = find_browser()
    assert program is not None
    with browser(program, tmp_path / "profile") as tab:
        tab.open(f"http://127.0.0.1:{job.port}/", 1280, 900)
        tab.wait_for("!document.querySelector('#token-form').hidden")
        assert "train" not in tab.measure("document.body.innerText"), (
            "without the token the page says nothing of the job"
        )

        tab.measure("document.querySelector('#token').focus()")
        tab.call("Input.insertText", text=job.token)
        tab.press("Enter", "\r")
        tab.wait_for("document.querySelector('#name').textContent === 'train'")
        tab.wait_for("document.querySelector('#state').textContent.includes('2 nodes in use; no answer from node2')")
        assert "rank 1 on node2 exited with 1 after 9.0 s: RuntimeError: out of memory" in text(tab, "#events")

        now_us = round(time.time() * SECOND_US)
        for series in device_series(now_us - np.arange(20, dtype=np.int64)[::-1] * SECOND_US, 2, 2, ("node2", "1")):
            job.node.store.extend(key_of(series.metric, series.tags), series.times_us, series.values)
        tab.wait_for("document.querySelector('#map-legend').textContent.includes('6 devices')")
        tab.measure("document.querySelector('#map').focus()")
        for _ in range(6):
            tab.press("ArrowRight")
        assert text(tab, "#map-text") == "node3 gpu 1: no reading, not in use"


@needs_browser
@pytest.mark.usefixtures("job")
def test_standard_error_is_shown_with_the_token_and_found_by_its_words(
    state_server: StateServer, tmp_path: Path
) -> None:
    program, now_us = find_browser(), round(time.time() * SECOND_US)
    assert program is not None
    lines = [ErrorLine(now_us, "node2", rank, words) for rank, words in ((None, "all is well"), (3, SCRIPT))]
    publish(state_server.endpoint.connect(), state_server.endpoint, lines)
    directory = tmp_path / "node1"
    directory.mkdir()
    with serve(state_server, directory, has_node=False) as server, browser(program, tmp_path / "profile") as tab:
        open_page(tab, f"http://127.0.0.1:{server.port}/", 1280)
        assert "is shown with the job's token" in text(tab, "#lines-panel")
        assert SCRIPT not in text(tab, "#lines-panel")

        tab.call("Emulation.setDeviceMetricsOverride", width=1280, height=500, deviceScaleFactor=1, mobile=False)
        tab.measure("document.querySelector('#lines-ask').click()")
        assert tab.measure("document.activeElement.id") == "token"
        tab.call("Input.insertText", text=server.token)
        tab.press("Enter", "\r")
        tab.wait_for("document.querySelectorAll('#lines li').length === 2")
        assert text(tab, "#lines li").endswith(" node2 all is well")
        assert text(tab, "#lines li:last-child").endswith(f" node2 rank 3 {SCRIPT}")
        assert tab.measure("document.querySelector('#token-form').hidden")
        place = "document.querySelector('#lines-panel').getBoundingClientRect()"
        assert tab.measure(f"{place}.bottom > 0 && {place}.top < innerHeight"), "who asked for the lines sees them"

        for height in (500, 720, 900):
            tab.call("Emulation.setDeviceMetricsOverride", width=1280, height=height, deviceScaleFactor=1, mobile=False)
            for share in (0, 0.5, 1):
                tab.measure(f"window.scrollTo(0, {share} * document.documentElement.scrollHeight)")
                assert tab.measure(_COVERED) == [], "nothing lies behind the lines"

        tab.measure("document.querySelector('#search').focus()")
        tab.call("Input.insertText", text="rank 3")
        tab.wait_for("document.querySelectorAll('#lines li').length === 1")
        assert tab.complaints == []


# What the panel with the lines lies upon.
_COVERED = """(() => {
    const lines = document.querySelector("#lines-panel").getBoundingClientRect();
    const others = [...document.querySelectorAll("main > section:not(#lines-panel):not([hidden])")];
    return others.filter((each) => {
        const box = each.getBoundingClientRect();
        return box.top < lines.bottom && lines.top < box.bottom;
    }).map((each) => each.innerText);
})()"""

_ANSWERED = """(() => {
    const ask = window.fetch;
    window.fetch = async (...question) => {
        const answer = await ask(...question);
        if (!String(question[0]).startsWith("page/curve")) return answer;
        return Response.json((await answer.json()).map((each) => ({ ...each, averages_s: 60 })));
    };
})()"""


@needs_browser
def test_the_page_says_beside_a_chart_that_it_is_approximate(replay: str, tmp_path: Path) -> None:
    program = find_browser()
    assert program is not None
    with browser(program, tmp_path / "profile") as tab:
        open_page(tab, replay, 1280, 4000)
        assert "averages" not in text(tab, "main")
        tab.measure(_ANSWERED)
        tab.press("a")
        tab.wait_for("document.querySelector('#peers-text').textContent.includes('from averages of 60 s')")
        tab.wait_for("document.querySelector('#curves .note').textContent.startsWith('from averages of 60 s')")


@needs_browser
def test_a_device_without_peers_has_its_reading_and_is_not_said_to_have_none(tmp_path: Path) -> None:
    times_us = T0 * SECOND_US + np.arange(N, dtype=np.int64) * 5 * SECOND_US
    write_dump(str(tmp_path / "dumps"), "all", float(T0 + 300), device_series(times_us, 1, 1, ("", "")))
    program = find_browser()
    assert program is not None
    with (
        replayed("-m", "laggard.telemetry.server", "--port", "0", "--dump", tmp_path / "dumps") as port,
        browser(program, tmp_path / "profile") as tab,
    ):
        open_page(tab, f"http://127.0.0.1:{port}/", 1280)
        assert text(tab, "#map-legend") == "1 device · no peers to compare with"
        tab.measure("document.querySelector('#map').focus()")
        tab.press("ArrowRight")
        assert text(tab, "#map-text") == "node1 gpu 0: 10 ms"


def test_another_name_than_the_servers_own_is_refused(job: Served) -> None:
    status, _, content = job.request("/", headers={"Host": "evil.example:4242"})

    assert status == 421
    assert b"evil.example" in content


def test_what_the_page_asks_for_is_checked(replay: str) -> None:
    bad = (
        "job?start=1",
        "job?start=-1&end=2",
        "job?start=5&end=5",
        "map?end=5",
        "curves",
    )
    for question in bad:
        body = b"{}" if question == "curves" else None
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(f"{replay}page/{question}", body, timeout=30)  # noqa: S310 - a server of this test
        with refusal.value as answer:
            assert answer.code == 400
            assert json.loads(answer.read())["error"]["message"]


def test_the_map_has_devices_without_a_reading_too(replay: str) -> None:
    for metric, n_squares in (("gpu-probe-time", 1000), ("load_average", 0)):
        address = f"{replay}page/map?metric={metric}&end={(T0 - 1) * 1000}"
        with urllib.request.urlopen(address, timeout=DEADLINE_S) as answer:  # noqa: S310
            assert json.load(answer)["values"] == [None] * n_squares

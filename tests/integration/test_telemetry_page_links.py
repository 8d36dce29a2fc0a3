"""The matrix of links at the printed address and in a report, in a real browser: looked at, pointed at, and read."""

from __future__ import annotations

import time
import urllib.error
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.series.sample_store import key_of
from laggard.kvstore.series.timeseries import TimeSeries
from laggard.kvstore.server.process import StateServer
from laggard.resilience.record.journal import JOURNAL_FILE, Journal
from laggard.resilience.report.inputs import read_inputs
from laggard.resilience.report.page import write_report
from laggard.telemetry.course import JobBegan, LaunchBegan
from laggard.telemetry.dumps.writing import write_dump
from laggard.telemetry.events import Event, series_of_events
from laggard.telemetry.link_matrix import LEAF, SEND_TIME, TRANSFER_BYTES
from tests.browser import Browser, browser, find_browser
from tests.integration.serving import SECOND_US, serve
from tests.integration.test_telemetry_page import open_page, place, text
from tests.integration.test_telemetry_replay import get
from tests.integration.test_telemetry_replay import served as replayed
from tests.made_up_job import LENGTH_S, RELAUNCHED_S, write_record
from tests.made_up_job import T0 as BEGAN_S

T0 = 1_700_000_000
HOSTILE = "<img src=x onerror=alert(1)>\u202e"
SLOW = "node2"
needs_browser = pytest.mark.skipif(find_browser() is None, reason="there is no Chromium")
Links = Mapping[tuple[str, str], float]


def links_of(names: list[str], steps: range | None = None) -> Links:
    """Return a time for each link of each node to those that follow it."""
    count = len(names)
    return {
        (name, names[(at + step) % count]): 0.31 if name == SLOW else 0.031
        for at, name in enumerate(names)
        for step in (steps or range(1, count))
    }


def series_of(links: Links, at_s: float, leaves: Mapping[str, str] | None = None) -> Iterator[TimeSeries]:
    times_us = np.array([round(at_s * SECOND_US)])
    for (sender, receiver), seconds in links.items():
        yield TimeSeries(SEND_TIME, {"host": sender, "peer": receiver}, times_us, np.array([seconds]))
    for host, leaf in (leaves or {}).items():
        yield TimeSeries(LEAF, {"host": host, "leaf": leaf}, times_us, np.ones(1))
    yield TimeSeries(TRANSFER_BYTES, {"host": SLOW}, times_us, np.array([2.0**25]))


def write(folder: Path, links: Links, leaves: Mapping[str, str] | None = None) -> Path:
    folder.mkdir()
    evidence = f"{SLOW} sends 10.0 times as slow as its peers"
    events = [Event((T0 + 60) * SECOND_US, "verdict", evidence, SLOW, severity="very slow", action="restart")]
    write_dump(str(folder), "all", T0 + 120.0, [*series_of(links, T0 + 50, leaves), *series_of_events(events)])
    return folder


def readings(tab: Browser) -> list[str]:
    """Return what the squares say to whoever walks through them with the keys, there and back, row by row."""
    tab.measure("document.querySelector('#links').focus()")
    tab.measure("document.querySelector('#links').dispatchEvent(new PointerEvent('pointerleave'))")
    found: list[str] = []
    for key in [*["ArrowRight"] * 4, *["ArrowDown", *["ArrowLeft"] * 4, "ArrowDown", *["ArrowRight"] * 4] * 2]:
        tab.press(key)
        found += [text(tab, "#links-text")]
    return found


def pointed(tab: Browser) -> str:
    """Return what the first square says that the pointer meets on its way along the matrix's last row."""
    tab.measure("document.querySelector('#links').scrollIntoView()")
    x, y, width = place(tab, "#links canvas")
    last_row = y + tab.measure("document.querySelector('#links canvas').clientHeight") - 20
    for across in range(0, round(width), 8):
        tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + across, y=last_row)
        if found := text(tab, "#links-text"):
            return found
    raise AssertionError("no square")


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[Browser]:
    program = find_browser()
    assert program is not None
    with browser(program, tmp_path / "profile") as opened:
        yield opened
    assert opened.complaints == []


_PIXELS_OF_EDGES = """(() => {
    const canvas = document.querySelector("#links canvas");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const soft = getComputedStyle(document.querySelector("#links-legend .legend")).color.match(/\\d+/g).join();
    let count = 0;
    for (let i = 0; i < data.length; i += 4) count += data.slice(i, i + 3).join() === soft;
    return count;
})()"""


@needs_browser
def test_the_darkest_squares_have_an_edge_in_the_dark_and_only_there(tab: Browser, tmp_path: Path) -> None:
    links = {**links_of(["node1", SLOW, "node3", "node4"]), ("node3", "node4"): 0.31}
    folder = write(tmp_path / "dump", links)
    with replayed("-m", "laggard.telemetry.server", "--port", "0", "--dump", folder) as port:
        for theme, has_edges in (("light", False), ("dark", True)):
            tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
            tab.open("about:blank", 1280, 900)
            open_page(tab, f"http://127.0.0.1:{port}/", 1280)
            assert (tab.measure(_PIXELS_OF_EDGES) > 50) == has_edges


def choose_launch(tab: Browser, number: int) -> None:
    tab.measure(f"document.querySelector('#links-launch').value = '{number}'")
    tab.measure("document.querySelector('#links-launch').dispatchEvent(new Event('change'))")


@needs_browser
def test_the_matrix_of_a_dump_is_read_with_pointer_and_keys_at_three_widths(tab: Browser, tmp_path: Path) -> None:
    links = {**links_of(["node1", SLOW, "node3"]), ("node1", HOSTILE): 0.031}
    with replayed("-m", "laggard.telemetry.server", "--port", "0", "--dump", write(tmp_path / "dump", links)) as port:
        for width in (390, 1280, 2560):
            open_page(tab, f"http://127.0.0.1:{port}/", width)
            tab.wait_for("document.querySelector('#links-legend').textContent.includes('7 links, median 31 ms')")
            assert tab.measure("document.documentElement.scrollWidth") <= width
            assert tab.measure("document.querySelector('#links canvas').clientWidth") <= width
            assert "dot: never met" in text(tab, "#links-legend")
            assert "found slow" in text(tab, "#links-legend")
            assert pointed(tab) == "node3 → <img src=x onerror=alert(1)>\ufffd: never met"
            said = readings(tab)
            assert said[0] == "<img src=x onerror=alert(1)>\ufffd → node1: never met", "the first square"
            assert f"{SLOW} → node3: 310 ms, 10 times the median; {SLOW} was found slow" in said
            assert tab.measure("document.querySelectorAll('img').length") == 0
            assert SEND_TIME not in text(tab, "#map-metric"), "it has the matrix"
            assert SEND_TIME not in text(tab, "#curves")


@needs_browser
@pytest.mark.parametrize("knows_leaves", [True, False])
def test_of_more_than_64_nodes_there_are_the_leaves_or_else_the_slowest(
    tab: Browser, tmp_path: Path, knows_leaves: bool
) -> None:
    names = [f"node{number}" for number in range(1, 101)]
    leaves = {name: f"leaf{at % 4}" for at, name in enumerate(names)} if knows_leaves else {}
    links = links_of(names, range(1, 9))
    dump = write(tmp_path / "dump", links, leaves)
    with replayed("-m", "laggard.telemetry.server", "--port", "0", "--dump", dump) as port:
        open_page(tab, f"http://127.0.0.1:{port}/", 390)
        tab.wait_for("document.querySelector('#links-legend').textContent.includes('800 links')")
        assert tab.measure("document.documentElement.scrollWidth") <= 390
        if knows_leaves:
            said = readings(tab)
            assert said[0] == "below leaf0: 31 ms, the median"
            assert said[1] == f"leaf0 → leaf1: 31 ms, the median; {SLOW} was found slow", "a node below it"
            assert "left out" not in text(tab, "#links-legend")
        else:
            assert "36 nodes left out" in text(tab, "#links-legend")
            assert f"{SLOW} → " in readings(tab)[0], "the slowest comes first"


@needs_browser
def test_a_report_has_the_matrix_of_each_launch_and_shows_the_one_with_the_verdict(
    tab: Browser, tmp_path: Path
) -> None:
    folder = write_record(tmp_path / "job", 4)
    journal = folder / JOURNAL_FILE
    journal.write_text(journal.read_text().replace('"gpu": "0", "slowdown"', '"gpu": null, "slowdown"'))
    before = series_of(links_of(["node1", SLOW, "node3"]), BEGAN_S + RELAUNCHED_S - 10)
    after = series_of(links_of(["node1", "node3", "node4"]), BEGAN_S + LENGTH_S - 10)
    write_dump(str(folder), "links", BEGAN_S + LENGTH_S, [*before, *after])
    page = write_report(read_inputs(folder), folder)

    tab.open(page, 1280, 900)
    tab.wait_for("document.querySelector('#links-legend').textContent.includes('6 links')")

    assert tab.measure("document.querySelector('#links-launch').value") == "0"
    assert f"{SLOW} → node1: 310 ms, 10 times the median; {SLOW} was found slow" in readings(tab)
    choose_launch(tab, 1)
    tab.wait_for("!document.querySelector('#links-text').textContent.includes('node2')")
    said = readings(tab)
    assert "node1 → node4: 31 ms, the median" in said
    assert not any(SLOW in each for each in said)
    assert [address for address in tab.fetched if not address.startswith(("file:", "data:"))] == []


@needs_browser
def test_the_matrix_of_a_running_job_appears_with_the_first_round_and_is_that_of_its_launch(
    tab: Browser, state_server: StateServer, tmp_path: Path
) -> None:
    with state_server.endpoint.connect() as client:
        begin_launch(client, state_server.endpoint, 0)
        journal = Journal(None)
        journal.write(JobBegan("train", "x1", (), (), 0, 0))
        journal.write(LaunchBegan(0, ("node1", SLOW), ("node3",), "node1"))
        journal.publish(client, state_server.endpoint)
        (directory := tmp_path / "node1").mkdir()
        with serve(state_server, directory) as server:
            open_page(tab, f"http://127.0.0.1:{server.port}/", 1280)
            assert tab.measure("document.querySelector('#links-panel').hidden")
            for series in series_of(links_of(["node1", SLOW]), time.time()):
                server.node.store.extend(key_of(series.metric, series.tags), series.times_us, series.values)
            tab.wait_for("document.querySelector('#links-legend').textContent.includes('2 links')")
            journal.write(LaunchBegan(1, ("node1", "node3"), (), "node1"))
            journal.publish(client, state_server.endpoint)
            tab.wait_for("document.querySelector('#links-text').textContent.startsWith('No link was measured yet')")
            choose_launch(tab, 0)
            tab.wait_for("document.querySelector('#links-legend').textContent.includes('2 links')")


@needs_browser
def test_without_links_there_is_no_empty_panel(tab: Browser, tmp_path: Path) -> None:
    folder = write_record(tmp_path / "job")
    tab.open(write_report(read_inputs(folder), folder), 1280, 900)
    tab.wait_for("document.documentElement.dataset.loaded !== undefined")
    assert tab.measure("document.querySelector('#links-panel').hidden")


def test_a_server_answers_for_a_launch_that_it_knows(tmp_path: Path) -> None:
    links = links_of(["node1", SLOW])
    with replayed("-m", "laggard.telemetry.server", "--port", "0", "--dump", write(tmp_path / "dump", links)) as port:
        found = get(port, "/page/links")["links"]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(port, "/page/links?launch=7")

    assert found == {
        "kind": "nodes",
        "names": ["node1", SLOW],
        "seconds": [None, 0.031, 0.31, None],
        "median": pytest.approx(0.1705),
        "n_links": 2,
        "left_out": 0,
        "accused": {SLOW: [SLOW]},
    }

"""The page's charts of metrics in a real browser: every rank's line, along time, steps and launches, found and kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laggard.kvstore.series.timeseries import TimeSeries
from laggard.telemetry.dumps.writing import write_dump
from laggard.telemetry.events import Event, series_of_events
from tests.browser import Browser, browser, find_browser
from tests.integration.serving import SECOND_US
from tests.integration.test_telemetry_replay import served as replayed

T0 = 1_700_000_000
RANKS = 64
ODD = 17
LAUNCHES = ((0, 0, 100), (1, 130, 230))  # number, first and last second
METRICS = 300
pytestmark = pytest.mark.skipif(find_browser() is None, reason="there is no Chromium")


def metric(name: str, value: Any, *, ranks: int = RANKS, every_s: int = 2) -> Iterator[TimeSeries]:
    """Yield a metric of every rank in both launches; ``value`` is given the steps and the rank."""
    for _, began_s, ended_s in LAUNCHES:
        times_s = np.arange(began_s + 1, ended_s, every_s)
        # The second launch goes on from step 60 of the 100 that the first had taken.
        steps = times_s - began_s + (60 if began_s else 0)
        for rank in range(ranks):
            tags = {"host": f"node{rank // 8 + 1}", "rank": str(rank)}
            values = np.broadcast_to(value(steps.astype(float), rank), steps.shape)
            yield TimeSeries(name, tags, (T0 + times_s.astype(np.int64)) * SECOND_US, values)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a job of 300 metrics and 64 ranks, one of which differs."""
    folder = tmp_path_factory.mktemp("dumps")
    events = [
        *(
            Event((T0 + began_s) * SECOND_US, "launch", launch=n, nodes=("node1", "node2"))
            for n, began_s, _ in LAUNCHES
        ),
        *(Event((T0 + ended_s) * SECOND_US, "launch-end", "end", launch=n) for n, _, ended_s in LAUNCHES),
    ]
    others = (
        each
        for number in range(METRICS - 3)
        for each in metric(f"layer{number}", lambda steps, _: steps * 0 + 4.6e18, every_s=50)
    )
    series = [
        *metric("loss", lambda steps, rank: 100 - steps + (50 if rank == ODD else rank / 1000)),
        *metric("train/step-time", lambda steps, _: 0.2 + steps * 0),
        *metric("step", lambda steps, _: steps),
        *others,
        *(TimeSeries("cpu_percent", {"host": f"node{n}"}, np.array([T0 * SECOND_US]), np.array([n])) for n in (1, 2)),
        *series_of_events(events),
    ]
    write_dump(str(folder), "all", float(T0 + 230), series)
    with replayed("-m", "laggard.telemetry.server", "--port", "0", "--dump", folder) as port:
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    assert program is not None
    with browser(program, tmp_path_factory.mktemp("profile")) as opened:
        yield opened
        assert opened.complaints == []


TITLES = "[...document.querySelectorAll('#curves .chart-title')].map((each) => each.firstChild.data)"
WORDS = """[...document.querySelectorAll('#curves .values')].map((each) =>
    [...each.children].map((row) => row.textContent.trim()).join('; '))"""


def show(tab: Browser, address: str, view: str = "", width: int = 1280) -> None:
    tab.open("about:blank", width, 900)  # else only what is after the # would change
    tab.open(f"{address}#{view}", width, 900)
    tab.wait_for("document.documentElement.dataset.loaded !== undefined")


def choose(tab: Browser, selector: str, value: str) -> None:
    found = f"document.querySelector({json.dumps(selector)})"
    tab.measure(f"{found}.value = {json.dumps(value)}; {found}.dispatchEvent(new Event('input'))")


def test_the_rank_that_differs_is_named_and_the_loss_and_the_time_of_a_step_come_first(page: str, tab: Browser) -> None:
    show(tab, page)
    assert tab.measure(TITLES)[:3] == ["loss", "train/step-time", "layer0"]
    assert tab.measure(WORDS)[0] == "newest; rank 17 -9; 63 others -59 (rank 0) to -58.94 (rank 63)"
    assert tab.measure("document.querySelector('#curves-text').textContent") == "12 of 300 metrics"
    assert "4.6 E" in tab.measure(WORDS)[2]


def test_a_metric_is_found_by_a_part_of_its_name_and_pinned_ahead_of_all(page: str, tab: Browser) -> None:
    show(tab, page)
    choose(tab, "#curve-search", "layer 29")
    tab.wait_for("document.querySelector('#curves-text').textContent.startsWith('10 of 10')")
    tab.measure("document.querySelector('#curves button[title=\"Keep it first\"]').click()")
    tab.wait_for("location.hash.includes('pin=layer29')")
    choose(tab, "#curve-search", "loss")
    tab.wait_for(f"{TITLES}.join() === 'layer29,loss'")
    tab.measure("document.querySelectorAll('#curves button[title=\"Keep it first\"]')[1].click()")
    tab.wait_for("location.hash.includes('pin=layer29&pin=loss')")
    tab.measure("document.querySelectorAll('#curves button[title=\"One place ahead\"]')[1].click()")
    tab.wait_for("location.hash.includes('pin=loss&pin=layer29')")

    show(tab, page, tab.measure("location.hash.slice(1)"))
    assert tab.measure(TITLES) == ["loss", "layer29"], "the address holds it"


def test_what_is_looked_for_is_found_among_the_metrics_of_all_kinds(page: str, tab: Browser) -> None:
    show(tab, page, "metric=cpu")
    assert tab.measure(TITLES) == ["cpu_percent"]
    choose(tab, "#curve-search", "nothing <i>")
    tab.wait_for("document.querySelector('#curves-text').textContent === 'None has “nothing <i>” in its name.'")


def test_charts_lie_side_by_side_where_there_is_room(page: str, tab: Browser) -> None:
    columns = "new Set([...document.querySelectorAll('#curves > div')].map((each) => each.offsetLeft)).size"
    for width, expected in ((390, 1), (1280, 2), (2560, 4)):
        show(tab, page, width=width)
        assert tab.measure(columns) == expected
        assert tab.measure("document.documentElement.scrollWidth") <= width


def test_only_charts_that_are_in_the_window_are_asked_for_and_all_of_them_at_once(page: str, tab: Browser) -> None:
    tab.open("about:blank", 1280, 900)
    tab.fetched.clear()  # with all that the last page asked for
    show(tab, page, "span=all")
    requests, drawn = (sum("page/curves" in each for each in tab.fetched), f"{WORDS}.filter((each) => each).length")
    assert requests < tab.measure(drawn) < 12
    tab.measure("document.querySelector('#curve-more').scrollIntoView()")
    tab.wait_for(f"{WORDS}.at(-1) !== ''")


def test_along_steps_what_was_done_again_counts_once_and_launches_lie_over_one_another(page: str, tab: Browser) -> None:
    show(tab, page, "x=step&metric=loss")
    chart = "document.querySelector('#curves .plot')"
    tab.measure(f"{chart}.focus()")
    read: dict[int, str] = {}
    for _ in range(200):
        tab.press("ArrowRight")
        words = tab.measure(WORDS)[0]
        read[int(words.partition(";")[0].removeprefix("step "))] = words
        if "-59" in words:
            break
    assert [*read] == sorted(read), "each step once, in order"
    assert min(read) <= 3
    assert max(read) == 159

    choose(tab, "#curve-axis", "launch")
    tab.wait_for(f"{WORDS}[0].includes('launch 0') && {WORDS}[0].includes('launch 1')")
    tab.wait_for("location.hash.includes('x=launch')")


def test_a_part_of_the_steps_is_drawn_large_and_kept_in_the_address(page: str, tab: Browser) -> None:
    show(tab, page, "x=step&metric=loss")
    tab.measure("document.querySelector('#curves').scrollIntoView()")
    over = "document.querySelector('#curves .u-over')"
    left, top, width = tab.measure(f"(({{x, y, width}}) => [x, y, width])({over}.getBoundingClientRect())")
    for kind, share in (("mousePressed", 0.25), ("mouseMoved", 0.3), ("mouseMoved", 0.5), ("mouseReleased", 0.5)):
        x = left + share * width
        tab.call("Input.dispatchMouseEvent", type=kind, x=x, y=top + 9, button="left", buttons=1, clickCount=1)
    tab.wait_for("/from=[34]\\d.*&to=[789]\\d/.test(location.hash)")
    seen = tab.measure("location.hash")
    show(tab, page, seen[1:])
    assert tab.measure("location.hash") == seen


def test_what_the_address_says_wrongly_is_passed_over(page: str, tab: Browser) -> None:
    show(
        tab,
        page,
        "x=__proto__&by=bad{&kind=toString&device=/&span=-1&smooth=7&start=5&end=2&map=nope&from=9&to=x&pin=<i>",
    )
    assert tab.measure("location.hash") == "#map=cpu_percent&span=all&pin=%3Ci%3E"
    assert len(tab.measure(TITLES)) == 12


def test_a_chart_is_read_by_keys_and_saved_as_numbers_and_as_a_picture(page: str, tab: Browser) -> None:
    show(tab, page, "metric=loss")
    tab.measure("window.kept = []; URL.createObjectURL = (blob) => (window.kept.push(blob), 'data:,')")
    tab.measure("document.querySelector('#curves .plot').focus()")
    tab.press("Home")
    assert "rank 17 149" in tab.measure(WORDS)[0]
    assert tab.measure("document.querySelector('#curves .values').getAttribute('aria-live')") == "polite"
    for what in ("numbers", "a picture"):
        tab.measure(f"document.querySelector('#curves button[title$=\"{what}\"]').click()")
    lines = tab.measure("window.kept[0].text()").split("\r\n")
    assert len(lines[0].split(",")) == RANKS + 1
    assert lines[0].startswith('"time","rank 0"')
    when_there = "new Promise((done) => (function look() { kept[1] ? done(kept[1].size) : setTimeout(look, 20); })())"
    assert tab.measure(when_there) > 5000


def test_values_that_are_read_by_keys_are_brought_into_the_window(page: str, tab: Browser) -> None:
    show(tab, page, "metric=loss")
    tab.measure("document.querySelector('#curves .plot').scrollIntoView({block: 'end'})")
    tab.measure("document.querySelector('#curves .plot').focus({preventScroll: true})")
    words = "document.querySelector('#curves .values').getBoundingClientRect()"
    assert tab.measure(f"{words}.top >= window.innerHeight"), "as where Tab leaves a chart at the edge"
    tab.press("Home")
    assert "rank 17 149" in tab.measure(WORDS)[0]
    assert tab.measure(f"{words}.bottom <= window.innerHeight")


def numbers(tab: Browser) -> list[list[float | None]]:
    """Return the rows of the first chart, as its button saves them."""
    tab.measure("window.kept = []; URL.createObjectURL = (blob) => (window.kept.push(blob), 'data:,')")
    tab.measure("document.querySelector('#curves button[title$=\"numbers\"]').click()")
    rows = tab.measure("window.kept[0].text()").split("\r\n")[1:]
    return [[float(cell) if cell else None for cell in row.split(",")] for row in rows]


def test_between_two_launches_the_lines_have_a_gap_and_nowhere_else(page: str, tab: Browser) -> None:
    show(tab, page, "metric=loss")
    gaps = [row[0] for row in numbers(tab) if row[1:] == [None] * RANKS]
    assert len(gaps) == 1
    assert T0 + 99 < (gaps[0] or 0) < T0 + 131


def test_a_logarithmic_axis_has_no_values_of_0_or_below_and_smoothed_lines_lag(page: str, tab: Browser) -> None:
    show(tab, page, "metric=loss")
    raw = numbers(tab)
    show(tab, page, "metric=loss&log=1")
    assert min(value for row in numbers(tab) for value in row[1:] if value is not None) > 0
    assert min(value for row in raw for value in row[1:] if value is not None) < -50
    show(tab, page, "metric=loss&smooth=0.9")
    smooth = numbers(tab)
    assert smooth[0][1:] == pytest.approx(raw[0][1:])
    assert all((late or 0) > (value or 0) + 5 for late, value in zip(smooth[-1][1:], raw[-1][1:], strict=True))


def test_what_has_no_value_above_0_says_so_on_a_logarithmic_axis(tmp_path: Path, tab: Browser) -> None:
    write_dump(str(tmp_path), "all", float(T0 + 230), metric("reward", lambda steps, rank: -steps - rank, ranks=2))
    with replayed("-m", "laggard.telemetry.server", "--port", "0", "--dump", tmp_path) as port:
        show(tab, f"http://127.0.0.1:{port}/", "log=1")
        assert tab.measure(WORDS) == [""]
        assert (
            tab.measure("document.querySelector('#curves .plot').textContent")
            == "No value of reward above 0 in this range."
        )
        tab.measure("document.querySelector('#curve-log').click()")
        tab.wait_for(f"{WORDS}[0].startsWith('newest; rank 0 -')")


def test_metrics_of_nodes_are_charts_with_a_line_for_each_node(page: str, tab: Browser) -> None:
    show(tab, page, "kind=node")
    assert tab.measure(TITLES) == ["cpu_percent"]
    assert tab.measure(WORDS) == ["newest; node1 1 %; node2 2 %"]


def test_the_signs_beside_names_have_the_dashes_of_their_lines_since_colours_may_look_alike(
    page: str, tab: Browser
) -> None:
    show(tab, page, "kind=node")
    signs = "[...document.querySelectorAll('#curves .sign')].map((each) => getComputedStyle(each).backgroundImage)"
    assert tab.measure(f"{signs}.map((each) => each.match(/\\d+px/g))") == [None, ["0px", "8px", "8px", "12px"]]
    looks = "[...document.querySelectorAll('#curves .sign')].map((each) => each.offsetWidth * each.offsetHeight)"
    assert tab.measure(looks) == [90, 90]


DRAWN = """(() => {
    const draw = CanvasRenderingContext2D.prototype.fillText;
    window.drawn = [];
    CanvasRenderingContext2D.prototype.fillText = function (...given) {
        window.drawn.push(given[0]);
        return draw.apply(this, given);
    };
})()"""


def test_values_beside_an_axis_have_as_many_digits_as_tell_them_apart(tmp_path: Path, tab: Browser) -> None:
    write_dump(str(tmp_path), "all", float(T0 + 230), metric("rate", lambda steps, _: 1.2e6 + steps, ranks=1))
    with replayed("-m", "laggard.telemetry.server", "--port", "0", "--dump", tmp_path) as port:
        script = tab.call("Page.addScriptToEvaluateOnNewDocument", source=DRAWN)["identifier"]
        show(tab, f"http://127.0.0.1:{port}/")
        tab.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
    beside = {each for each in tab.measure("drawn") if each.startswith("1.2")}
    assert beside == {"1.2 M", "1.20005 M", "1.2001 M", "1.20015 M", "1.2002 M"}


HELD = """(() => {
    const ask = window.fetch;
    const held = new Promise((release) => { window.release = release; });
    const map = new Promise((release) => { window.releaseMap = release; });
    const seen = Object.assign(document.documentElement.dataset, { curves: 0, answered: 0 });
    window.fetch = async (...question) => {
        if (String(question[0]).startsWith("page/map")) await map;
        if (!String(question[0]).startsWith("page/curves")) return ask(...question);
        seen.curves = Number(seen.curves) + 1;
        if (seen.curves === "1") await held;
        const answer = await ask(...question);
        seen.answered = Number(seen.answered) + 1;
        return answer;
    };
})()"""


def test_what_is_asked_for_by_scrolling_while_the_rest_is_loaded_is_waited_for(page: str, tab: Browser) -> None:
    show(tab, page)
    loaded = int(tab.measure("document.documentElement.dataset.loaded"))
    tab.measure(HELD)
    tab.press("+")
    tab.measure("window.dispatchEvent(new Event('resize'))")
    tab.wait_for("document.documentElement.dataset.curves === '1'")
    tab.measure("releaseMap()")
    tab.wait_for("document.documentElement.dataset.answered === '1'")
    tab.measure("new Promise((done) => setTimeout(() => requestAnimationFrame(done)))")
    assert int(tab.measure("document.documentElement.dataset.loaded")) == loaded
    tab.measure("release()")
    tab.wait_for(f"Number(document.documentElement.dataset.loaded) > {loaded}")

"""The page of a job in headless Chromium: how soon it is drawn, how it moves, and what it keeps of an hour.

    python -m benchmarks page
    python -m benchmarks page --in-use

The page's own scripts mark when the map of all devices and when everything else is drawn; the times are from the end of
the document's load event. Frames are counted by ``requestAnimationFrame`` while a pointer moves through a chart, and
while keys zoom. For the hour, the page polls without its pauses, and each answer ends two seconds after the one before.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.machine import description
from benchmarks.tables import table
from laggard.kvstore.series.timeseries import TimeSeries
from laggard.resilience.report.inputs import read_inputs
from laggard.resilience.report.page import write_report
from laggard.telemetry.dumps.writing import write_dump
from tests.browser import Browser, browser, find_browser
from tests.made_up_job import LENGTH_S, T0, series, write_record

GPUS = 8
DEADLINE_S = 60.0
_MARKS = (
    "['devices drawn', 'all drawn'].map((name) => performance.getEntriesByName(name)[0].startTime"
    " - performance.getEntriesByType('navigation')[0].loadEventEnd)"
)


@contextmanager
def replayed(dump: Path) -> Iterator[str]:
    """Serve a dump; return its address."""
    command = [sys.executable, "-P", "-m", "laggard.telemetry.server", "--port", "0", "--dump", str(dump)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            found = (re.match(r"ssh command: ssh -NL localhost:(\d+):", line) for line in server.stdout or ())
            port = next(match[1] for match in found if match is not None)
            yield f"http://127.0.0.1:{port}/"
        finally:
            server.terminate()
            server.wait(DEADLINE_S)


def drawn_ms(tab: Browser, page: Path | str, repeats: int) -> list[list[float]]:
    """Return the times of each opening: until the devices and until everything is drawn; 0: with the document."""
    found = []
    for _ in range(repeats):
        tab.open(page, 1280, 900)
        tab.wait_for("document.documentElement.dataset.loaded !== undefined")
        found.append([max(0.0, ms) for ms in tab.measure(_MARKS)])
    return found


def row(what: str, n_devices: int, size: int, found: Sequence[Sequence[float]]) -> list[str]:
    """Return a row of the table."""
    devices, everything = zip(*found, strict=True)
    times = (f"{statistics.median(each):.0f} ({max(each):.0f})" for each in (devices, everything))
    return [what, f"{n_devices:,}", f"{size / 1e6:.2f}" if size else "", *times]


# The server's dump stands still: the page is told that it runs, and that it ends two seconds later at each poll.
_SIMULATED = """(() => {
    const [wait, ask] = [window.setTimeout, window.fetch];
    window.polls = 0;
    window.setTimeout = (act, ms, ...rest) => wait(act, ms === 2000 ? 0 : ms, ...rest);
    window.fetch = async (...question) => {
        const answer = await ask(...question);
        if (!String(question[0]).startsWith("page/job")) return answer;
        const job = await answer.json();
        window.polls += 1;
        const half = (job.ended - job.began) / 2;
        return Response.json({ ...job, live: true, ended: job.began + half + (2000 * window.polls) % half });
    };
})()"""
_FRAMES = """(() => {
    window.frames = [];
    const count = (time) => { window.frames.push(time); window.counting = requestAnimationFrame(count); };
    window.counting = requestAnimationFrame(count);
})()"""


def frames(tab: Browser, act: Callable[[int], None], repeats: int) -> list[float]:
    """Return how many frames a second there were while something was done so often, and the longest in ms."""
    tab.measure(_FRAMES)
    for number in range(repeats):
        act(number)
    times = tab.measure("(cancelAnimationFrame(window.counting), window.frames)")
    gaps = [after - before for before, after in pairwise(times)]
    return [1000 * len(gaps) / sum(gaps), max(gaps)]


def hovered(tab: Browser, selector: str) -> Callable[[int], None]:
    """Return what moves the pointer one step further through an element."""
    section = selector.split(maxsplit=1)[0]
    tab.measure(f"document.querySelector('{section}').scrollIntoView({{block: 'center'}})")
    tab.wait_for(f"document.querySelector('{selector}') !== null")  # a chart is drawn once it is near
    box = f"document.querySelector('{selector}').getBoundingClientRect()"
    left, top, width, height = tab.measure(f"(({{x, y, width, height}}) => [x, y, width, height])({box})")

    def move(number: int) -> None:
        x, y = left + width * (0.05 + 0.9 * (number % 100) / 100), top + height / 2
        tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    return move


def zoomed(tab: Browser) -> Callable[[int], None]:
    """Return what zooms in and out, and waits until that is drawn, or until the server says that it cannot in time."""

    def zoom(number: int) -> None:
        asked = int(tab.measure("document.documentElement.dataset.loaded"))
        tab.press("+" if number % 2 == 0 else "-")
        loaded = "document.documentElement.dataset.loaded"
        tab.wait_for(f"Number({loaded}) > {asked} || document.querySelector('#state.bad')")

    return zoom


def movement(tab: Browser, address: Path | str, what: str, repeats: int) -> list[list[str]]:
    """Return rows of the table of movements."""
    drawn_ms(tab, address, 1)
    moves = {
        "pointer on the map": (hovered(tab, "#map canvas"), 20 * repeats),
        "pointer in a chart": (hovered(tab, "#curves .u-over"), 20 * repeats),
        "zoom": (zoomed(tab), 2 * repeats),
    }
    measured = {name: frames(tab, *move) for name, move in moves.items()}
    return [[what, name, f"{rate:.0f}", f"{longest:.0f}"] for name, (rate, longest) in measured.items()]


def hour(tab: Browser, address: str, polls: int) -> list[list[str]]:
    """Return rows of the table of memory, after a tenth, a half and all of so many polls."""
    script = tab.call("Page.addScriptToEvaluateOnNewDocument", source=_SIMULATED)["identifier"]
    tab.open("about:blank", 1280, 900)
    tab.open(address, 1280, 900)
    rows = []
    for until in (polls // 10, polls // 2, polls):
        while (done := tab.measure("window.polls")) < until:
            tab.wait_for(f"window.polls > {done}")
        tab.call("HeapProfiler.collectGarbage")
        counters = tab.call("Memory.getDOMCounters")
        used = tab.call("Runtime.getHeapUsage")["usedSize"]
        rows.append([f"{done:,}", f"{used / 1e6:.1f}", f"{counters['nodes']:,}", f"{counters['jsEventListeners']:,}"])
    tab.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
    return rows


def many_metrics(metrics: int, ranks: int) -> Iterator[TimeSeries]:
    """Yield the series of a program with so many metrics of so many ranks."""
    times_us = np.arange(60, dtype=np.int64) * 5_000_000 + round(T0 * 1e6)
    noise = np.random.default_rng(1)
    for metric in range(metrics):
        for rank in range(ranks):
            tags = {"host": f"node{rank // GPUS + 1}", "rank": str(rank)}
            yield TimeSeries(f"layer{metric}", tags, times_us, noise.normal(1.0, 0.1, len(times_us)))


def found(tab: Browser, repeats: int) -> list[float]:
    """Return how long it takes to find metrics by name and to draw them, in ms."""
    times = []
    for number in range(repeats):
        asked = int(tab.measure("document.documentElement.dataset.loaded"))
        begun_s = time.monotonic()
        field = "document.querySelector('#curve-search')"
        tab.measure(f"{field}.value = 'layer{10 + number}'; {field}.dispatchEvent(new Event('input'))")
        tab.wait_for(f"Number(document.documentElement.dataset.loaded) > {asked}")
        times.append(1000 * (time.monotonic() - begun_s))
    return times


def in_use(tab: Browser, folder: Path, given: argparse.Namespace) -> None:
    """Print what moves, what stays in memory, and how very many metrics are looked through."""
    rows: list[list[str]] = []
    for n_nodes in map(int, given.nodes.split(",")):
        report = reported(folder / f"job-{n_nodes}", n_nodes)
        rows += movement(tab, report, f"report of {n_nodes * GPUS:,} devices", given.repeats)
    with served(folder / "metrics", many_metrics(given.metrics, given.ranks)) as address:
        times = drawn_ms(tab, address, given.repeats)
        rows += movement(tab, address, f"server, {given.metrics} metrics of {given.ranks} ranks", given.repeats)
        looked = found(tab, given.repeats)
    print("\n".join(["", *table(["page", "what is done", "frames a second", "longest frame, ms"], rows)]))
    drawn = statistics.median(everything for _, everything in times)
    print(f"\n{given.metrics} metrics of {given.ranks} ranks: all drawn after {drawn:.0f} ms;", end=" ")
    print(f"found by name and drawn in {statistics.median(looked):.0f} ms (slowest {max(looked):.0f})", flush=True)
    with served(folder / "hour", [*series(2, GPUS), *many_metrics(10, 2 * GPUS)]) as address:
        polled = hour(tab, address, given.polls)
    print(f"\n{2 * GPUS} devices, 10 metrics of as many ranks:")
    print("\n".join(["", *table(["polls", "JavaScript's memory, MB", "nodes of the document", "listeners"], polled)]))


def reported(folder: Path, n_nodes: int) -> Path:
    """Write the report of a job."""
    write_record(folder, n_nodes, GPUS)
    return write_report(read_inputs(folder), folder)


@contextmanager
def served(folder: Path, made: Iterable[TimeSeries]) -> Iterator[str]:
    """Serve these series from a dump; return the address."""
    folder.mkdir()
    write_dump(str(folder), "all", T0 + LENGTH_S, made)
    with replayed(folder) as address:
        yield address


def how_soon(tab: Browser, folder: Path, given: argparse.Namespace) -> None:
    """Print how soon the page and the report of jobs of several sizes are drawn."""
    rows = []
    for n_nodes in map(int, given.nodes.split(",")):
        report = reported(folder / f"job-{n_nodes}", n_nodes)
        with served(folder / f"dump-{n_nodes}", series(n_nodes, GPUS)) as address:
            live = drawn_ms(tab, address, given.repeats)
        frozen = drawn_ms(tab, report, given.repeats)
        rows.append(row("from a server", n_nodes * GPUS, 0, live))
        rows.append(row("report", n_nodes * GPUS, report.stat().st_size, frozen))
    head = ["page", "devices", "MB", "devices drawn after load, ms (slowest)", "everything drawn, ms (slowest)"]
    print("\n".join(["", *table(head, rows)]))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks page", description=__doc__)
    parser.add_argument("--nodes", default="125,1250", help="numbers of nodes of 8 devices (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="how often each page is opened (default: %(default)s)")
    parser.add_argument("--in-use", action="store_true", help="measure frames, memory and very many metrics")
    parser.add_argument("--polls", type=int, default=1800, help="one in two seconds (default: an hour of them)")
    parser.add_argument("--metrics", type=int, default=300, help="of the program (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=64, help="of each metric (default: %(default)s)")
    given = parser.parse_args(arguments)
    program = find_browser()
    if program is None:
        print("there is no Chromium: install the package 'chromium'", file=sys.stderr)
        return 1
    print(description())
    with tempfile.TemporaryDirectory() as folder, browser(program, Path(folder) / "profile") as tab:
        (in_use if given.in_use else how_soon)(tab, Path(folder), given)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

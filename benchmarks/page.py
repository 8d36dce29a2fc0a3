"""The page of a job in headless Chromium: how soon its devices are drawn, from a server and in a report.

    python -m benchmarks page

The page's own scripts mark when the map of all devices and when everything else is drawn; the times are from the end of
the document's load event.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.machine import description
from benchmarks.tables import table
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


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks page", description=__doc__)
    parser.add_argument("--nodes", default="125,1250", help="numbers of nodes of 8 devices (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="how often each page is opened (default: %(default)s)")
    given = parser.parse_args(arguments)
    program = find_browser()
    if program is None:
        print("there is no Chromium: install the package 'chromium'", file=sys.stderr)
        return 1
    print(description())
    rows = []
    with tempfile.TemporaryDirectory() as folder, browser(program, Path(folder) / "profile") as tab:
        for n_nodes in map(int, given.nodes.split(",")):
            job = Path(folder) / f"job-{n_nodes}"
            write_record(job, n_nodes, GPUS)
            report = write_report(read_inputs(job), job)
            dump = Path(folder) / f"dump-{n_nodes}"
            dump.mkdir()
            write_dump(str(dump), "all", T0 + LENGTH_S, series(n_nodes, GPUS))
            with replayed(dump) as address:
                live = drawn_ms(tab, address, given.repeats)
            frozen = drawn_ms(tab, report, given.repeats)
            rows.append(row("from a server", n_nodes * GPUS, 0, live))
            rows.append(row("report", n_nodes * GPUS, report.stat().st_size, frozen))
    head = ["page", "devices", "MB", "devices drawn after load, ms (slowest)", "everything drawn, ms (slowest)"]
    print("\n".join(["", *table(head, rows)]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

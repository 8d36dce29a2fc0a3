"""What ``laggard top`` costs: the processor time of a session on a terminal, beside a job of many devices."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import pty
import random
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import psutil

from laggard.collectors.probe_metrics import PROBE_TIME
from laggard.kvstore.series.streams import Sample, Series
from laggard.resilience.record.running_jobs import choose, running_jobs
from laggard.resilience.views.snapshot import DEVICE_READINGS
from laggard.resilience.views.source import LiveSource
from laggard.resilience.views.top import Top
from tests.made_up_job import running_job

__all__ = ["main"]

_COLUMNS, _LINES, _GPUS = 120, 40, 8
_STARTED_S = 10.0  # by then it is drawn


def main(arguments: list[str]) -> int:
    """Print the share of a processor core that a session takes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks top", description=__doc__)
    parser.add_argument("--nodes", type=int, default=16, help="number of nodes of eight devices (default: %(default)s)")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the screen into an SVG file instead")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to measure (default: %(default)s)")
    options = parser.parse_args(arguments)
    metrics = [each.metric for each in DEVICE_READINGS]
    with tempfile.TemporaryDirectory() as root:
        os.environ["LAGGARD_RUNTIME_ROOT"] = root
        with (
            running_job(Path(root), options.nodes, _GPUS, metrics=metrics, of_nodes=True) as server,
            server.endpoint.connect() as client,
        ):
            if options.picture is not None:
                options.picture.write_text(asyncio.run(_picture()))
                print(f"the screen is in {options.picture}")
                return 0
            series = [Series(client, server.endpoint, 1, f"node{node + 1}") for node in range(options.nodes)]
            share = _measured(series, options.seconds)
    print("| devices | refreshed every | processor | load of the machine |\n|---|---|---|---|")
    print(f"| {_GPUS * options.nodes} | 1 s | {100 * share:.1f} % of a core | {os.getloadavg()[0]:.1f} |")
    return 0


async def _picture() -> str:
    """Return what the screen shows once it is drawn."""
    job = choose(running_jobs(), None)
    with LiveSource(job) as source:
        app = Top(source, job.has_ended, 1.0)
        async with app.run_test(size=(_COLUMNS, _LINES)) as pilot:
            await pilot.pause(_STARTED_S)
            return app.export_screenshot(title="laggard top")


def _measured(nodes: list[Series], length_s: float) -> float:
    """Return the share of a core that a session takes while every device is probed every second."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, _COLUMNS, 0, 0))
    command = [sys.executable, "-m", "laggard", "top", "--interval=1"]
    environment = {**os.environ, "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        _work(nodes, ours, _STARTED_S)
        session = psutil.Process(process.pid)
        before, began_s = session.cpu_times(), time.monotonic()
        _work(nodes, ours, length_s)
        after, taken_s = session.cpu_times(), time.monotonic() - began_s
        os.write(ours, b"q")
        _work([], ours, 1.0)
    return (after.user + after.system - before.user - before.system) / taken_s


def _work(nodes: list[Series], terminal: int, length_s: float) -> None:
    """Read what the terminal is sent, and add a sample of each device every second."""
    until_s, due_s = time.monotonic() + length_s, time.monotonic()
    while (now_s := time.monotonic()) < until_s:
        if now_s >= due_s:
            due_s = now_s + 1.0
            for number, node in enumerate(nodes, 1):
                tags = [{"host": f"node{number}", "gpu": str(gpu), "model": "H100"} for gpu in range(_GPUS)]
                node.add([Sample(PROBE_TIME, time.time(), (0.01 * random.uniform(0.99, 1.01),), each) for each in tags])
        if select.select([terminal], [], [], 0.2)[0]:
            os.read(terminal, 1 << 16)

"""``laggard demo``."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import webbrowser
from contextlib import suppress
from pathlib import Path

import click

from laggard.resilience.command.kept_jobs import kept_job
from laggard.resilience.record.effective_time import SHOWN_FROM_S, effective_time
from laggard.resilience.record.job_record import REPORT_FILE
from laggard.resilience.record.journal import JOURNAL_FILE, read_journal
from laggard.resilience.record.timeline import Timeline, timeline_of_entries
from laggard.resilience.text import duration, wrapped
from laggard.system.ports import free_port, port_is_taken
from laggard.telemetry.settings import TelemetrySettings

PROGRAM = "laggard.demo"
OPTIONS = (
    *("--local-nodes=3", "--nodes=2", "--virtual-gpus=2", "--telemetry-level=3", "--resilient", "--report"),
    *("--detect=slow-gpu", "--detect-interval=1", "--restart-cost=0", "--per-device"),
)
INTRODUCTION = (
    "Four ranks of a program are about to run on virtual nodes of this machine: two on node1, two on node2, each with "
    "a virtual GPU of its own; node3 waits in reserve. After some seconds something else loads a GPU of node2. laggard "
    "should say which one is slow, go on with node3 in place of node2, and lose nothing. It takes about a minute.",
    "To see it in a browser: {page}",
)
NEXT = f"laggard explain {PROGRAM}; then your own: laggard --resilient --detect=slow-gpu --per-node YOUR_PROGRAM"
MAX_COLUMNS = 120
LOOPBACK = "127.0.0.1"
PAGE_DEADLINE_S = 30.0
DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")


@click.command(short_help="See laggard at work, on this machine, without a GPU.")
def demo() -> int:
    """See laggard at work, in a minute, on this machine, without a GPU: a slow device is found and left behind."""
    port = TelemetrySettings().aggregator_port
    port = free_port(LOOPBACK) if port_is_taken(port) else port
    page = f"http://{LOOPBACK}:{port}"
    width = min(MAX_COLUMNS, shutil.get_terminal_size((MAX_COLUMNS, 0)).columns)
    for sentences in INTRODUCTION:
        click.echo(wrapped(sentences.format(page=page), width, 0))
    click.echo()
    with tempfile.NamedTemporaryFile("w", prefix="laggard-demo-", suffix=".yaml") as settings:
        settings.write(f"aggregator_port: {port}\n")
        settings.flush()
        options = (*OPTIONS, f"--telemetry-config={settings.name}", "--module", PROGRAM)
        signal.signal(signal.SIGINT, lambda *_: None)  # the terminal tells the job, too, which ends in its own time
        # A process of its own, or a browser that is started here would end with the job.
        job = subprocess.Popen([sys.executable, "-P", "-m", "laggard", "run", *options])
        signal.signal(signal.SIGTERM, lambda signum, _: job.send_signal(signum))
        if any(map(os.environ.get, DISPLAYS)):
            _open(page, port, job)
        exit_code = job.wait()
    if exit_code == 0:
        record = kept_job(PROGRAM)
        timeline = timeline_of_entries(read_journal(record / JOURNAL_FILE))
        click.echo()
        for word, text in last_lines(timeline, record).items():
            click.echo(f"{word:<8}{wrapped(text, width, 8)}")
    return exit_code


def last_lines(timeline: Timeline, record: Path) -> dict[str, str]:
    """Return what the demonstration's job has found, what that cost, where its report is, and what to try next."""
    found = [verdict.of for verdict in map(timeline.verdict_that_ended, timeline.launches) if verdict is not None]
    parts = effective_time(timeline).parts
    lost_s = parts.lost_s + parts.repeated_s
    cost = f"{duration(parts.slow_s)} at the pace of the slow GPU, {duration(parts.relaunch_s)} for the relaunch, "
    cost += f"{duration(lost_s)} of lost work" if lost_s >= SHOWN_FROM_S else "no work lost"
    return {
        "found": "; ".join(str(of.evidence) for of in found) or "no slow GPU: try again while the machine is less busy",
        "cost": cost if found else "nothing",
        "report": str(record / REPORT_FILE),
        "next": NEXT,
    }


def _open(page: str, port: int, job: subprocess.Popen[bytes]) -> None:
    """Open the page once it is there."""
    until_s = time.monotonic() + PAGE_DEADLINE_S
    while time.monotonic() < until_s and job.poll() is None:
        with suppress(OSError), socket.create_connection((LOOPBACK, port), PAGE_DEADLINE_S):
            webbrowser.open(page)
            return
        with suppress(subprocess.TimeoutExpired):
            job.wait(0.2)

"""``laggard status`` and ``laggard top``."""

from __future__ import annotations

import json
import os
import sys

import click
import redis
from rich.console import Console
from rich.text import Text

from laggard.resilience.errors import UsageError
from laggard.resilience.record import wording
from laggard.resilience.record.running_jobs import RunningJob, choose, running_jobs
from laggard.resilience.views.screen import header
from laggard.resilience.views.snapshot import Snapshot
from laggard.resilience.views.source import LiveSource
from laggard.resilience.views.tables import device_table, launch_table, metric_table, node_table, sorted_devices
from laggard.telemetry.errors import NodeError

MAX_ROWS = 20
NEEDS_LEVEL_3 = "run with --telemetry-level=3 to see utilisation, power, temperature and clocks"


@click.command()
@click.argument("job", required=False, metavar="[JOB]")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
@click.option("--all", "show_all", is_flag=True, help=f"Show all devices and nodes, not just the {MAX_ROWS} worst.")
def status(job: str | None, *, as_json: bool, show_all: bool) -> int:
    """Show the status of a running job, once."""
    # Shows its launches, its nodes and its devices, the worst first, with their utilisation, power, temperature, clock,
    # newest probe time and its ratio to the peers' median, and verdict; then the program's own metrics.
    # JOB is the name of the job, needed only if several jobs of yours are running. Works on any node of the job.
    # 'laggard top' shows the same live.
    running = choose(running_jobs(), job)
    snapshot = _snapshot(running)
    if as_json:
        click.echo(json.dumps(snapshot.to_json(), allow_nan=False))
    else:
        print_status(snapshot, Console(highlight=False), None if show_all else MAX_ROWS)
    return 0


@click.command()
@click.argument("job", required=False, metavar="[JOB]")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.2, max=3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to update.",
)
def top(job: str | None, interval_s: float) -> int:
    """Show the status of a running job, live."""
    #  d devices, the worst first up, down, PgUp, PgDn, Home, End move n nodes Enter details of a device, Esc back h
    # history s next sort order m the program's own metrics q quit; the job keeps running
    # JOB is the name of the job, needed only if several jobs of yours are running. Works on any node of the job, also
    # over ssh.
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") == "dumb":
        raise UsageError("top needs an interactive terminal that can move its cursor: use 'laggard status' instead")
    from laggard.resilience.views.top import run_top

    running, console = choose(running_jobs(), job), Console(highlight=False)
    _snapshot(running)
    with LiveSource(running) as source:
        try:
            ended = run_top(source.snapshot, running.has_ended, interval_s, console)
        except KeyboardInterrupt:
            ended = ""
    if ended:
        click.echo(f"{ended}; 'laggard report {running.full_name}' shows what happened")
    return 0


def _snapshot(running: RunningJob) -> Snapshot:
    try:
        with LiveSource(running) as source:
            return source.snapshot()
    except (redis.RedisError, NodeError) as error:
        raise UsageError(
            f"{running.full_name} does not answer as expected ({error}): unless it has just ended, try again in seconds"
        ) from error


def print_status(snapshot: Snapshot, console: Console, max_rows: int | None) -> None:
    """Print what ``laggard status`` shows; at most so many devices and nodes, None: all."""
    width = console.width
    for line in header(snapshot, width):
        console.print(line)
    if snapshot.timeline.launches:
        console.print(Text(f"   {wording.effective_time(snapshot.times)}", "dim"))
    console.print(Text("\nlaunches", "bold"))
    console.print(launch_table(snapshot))
    console.print(Text(f"\nnodes{_of(len(snapshot.nodes), max_rows)}", "bold"))
    console.print(node_table(snapshot.nodes[:max_rows]))
    worst = f", the worst first{_of(len(snapshot.devices), max_rows)}"
    console.print(Text(f"\ndevices{worst}", "bold"))
    console.print(device_table(sorted_devices(snapshot.devices, "worst")[:max_rows], width, None, snapshot))
    if snapshot.level < 3:
        console.print(Text(NEEDS_LEVEL_3, "dim"))
    if snapshot.metrics or snapshot.level:
        console.print(Text("\nthe program's metrics", "bold"))
        console.print(metric_table(snapshot.metrics[:max_rows], snapshot.level))


def _of(total: int, max_rows: int | None) -> str:
    return f" ({max_rows} of {total:,}; --all shows all)" if max_rows is not None and total > max_rows else ""

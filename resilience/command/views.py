"""``laggard status`` and ``laggard top``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Literal

import click
import redis
from rich.console import Console
from rich.table import Table
from rich.text import Text

from laggard.resilience.errors import UsageError
from laggard.resilience.record import wording
from laggard.resilience.record.account import fill_with_launches
from laggard.resilience.record.running_jobs import RunningJob, choose, running_jobs
from laggard.resilience.views.lines import header
from laggard.resilience.views.listing import Column, fitted
from laggard.resilience.views.snapshot import Snapshot
from laggard.resilience.views.source import LiveSource
from laggard.resilience.views.tables import device_columns, metric_columns, node_columns, sorted_devices
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
    from laggard.resilience.views.top import Chooser, Top

    found = running_jobs()
    if job is None and len(found) > 1 and (job := Chooser([each.full_name for each in found]).run()) is None:
        return 0
    running = choose(found, job)
    _snapshot(running)
    with LiveSource(running) as source:
        ended = Top(source, running.has_ended, interval_s).run()
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
    timeline = snapshot.timeline
    console.print(fill_with_launches(_table(), timeline.launches, timeline.began_s, snapshot.taken_s))
    console.print(Text(f"\nnodes{_of(len(snapshot.nodes), max_rows)}", "bold"))
    console.print(_filled(node_columns(snapshot.nodes[:max_rows]), width))
    worst = f", the worst first{_of(len(snapshot.devices), max_rows)}"
    console.print(Text(f"\ndevices{worst}", "bold"))
    console.print(_filled(device_columns(sorted_devices(snapshot.devices, "worst")[:max_rows]), width))
    if snapshot.level < 3:
        console.print(Text(NEEDS_LEVEL_3, "dim"))
    if snapshot.metrics or snapshot.level:
        console.print(Text("\nthe program's metrics", "bold"))
        console.print(_filled(metric_columns(snapshot.metrics[:max_rows], snapshot.level), width))


def _filled(columns: Sequence[Column], width: int) -> Table:
    """Return those columns that fit, as a table."""
    table, shown = _table(), fitted(columns, width)
    for column in shown:
        right: Literal["left", "right"] = "right" if column.right else "left"
        table.add_column(column.heading, justify=right, no_wrap=True, overflow="ellipsis", max_width=column.width)
    for row in zip(*(column.cells for column in shown), strict=True):
        table.add_row(*(Text(cell.text, cell.style) for cell in row))
    return table


def _table() -> Table:
    return Table(box=None, pad_edge=False, header_style="bold underline", padding=(0, 1, 0, 0))


def _of(total: int, max_rows: int | None) -> str:
    return f" ({max_rows} of {total:,}; --all shows all)" if max_rows is not None and total > max_rows else ""

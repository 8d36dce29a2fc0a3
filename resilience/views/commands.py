"""``laggard status`` and ``laggard top``."""

from __future__ import annotations

import json
import os
import sys

import click
import redis
from rich.console import Console
from rich.text import Text

from resilience.options import UsageError
from resilience.views.discovery import RunningJob, choose, running_jobs
from resilience.views.screen import header
from resilience.views.snapshot import Snapshot
from resilience.views.source import LiveSource
from resilience.views.tables import device_table, launch_table, metric_table, node_table, sorted_devices
from telemetry.bus import NodeError

__all__ = ["status", "top"]

SHOWN_ROWS = 20
NO_LEVEL = "utilisation, power, temperature and clocks: run with --telemetry-level=3 to see them"


@click.command()
@click.argument("job", required=False, metavar="[JOB]")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object, for programs.")
@click.option("--all", "everything", is_flag=True, help=f"All devices and nodes, not only the {SHOWN_ROWS} worst.")
def status(job: str | None, *, as_json: bool, everything: bool) -> int:
    """Tell how a running job stands, once.

    Shows its launches so far, its nodes, and its devices, the worst first: utilisation, power, temperature, clock,
    the newest probe time and how many times its peers' median that is, and verdicts; then the program's own metrics.

    JOB is the job's name, needed only where several of yours run. Works on any node of the job. 'laggard top' shows
    the same live.
    """
    running = choose(running_jobs(), job)
    snapshot = _snapshot(running)
    if as_json:
        click.echo(json.dumps(snapshot.to_json(), allow_nan=False))
    else:
        _print(snapshot, Console(highlight=False), None if everything else SHOWN_ROWS)
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
    help="From one look at the job to the next.",
)
def top(job: str | None, interval_s: float) -> int:
    """Show a running job live, in this terminal.

    \b
    d  devices, the worst first      up, down, PgUp, PgDn, Home, End  move
    n  nodes                         Enter  one device in depth, Esc back
    h  history                       s  next order, r  the other way round
    m  the program's own metrics     q  leave; the job goes on

    JOB is the job's name, needed only where several of yours run. Works on any node of the job, over ssh too.
    """  # noqa: D301 - the backspace is for click: it keeps the lines as they are
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") == "dumb":
        raise UsageError("top needs a terminal that can move its cursor: use 'laggard status' here")
    from resilience.views.top import run_top

    running, console = choose(running_jobs(), job), Console(highlight=False)
    _snapshot(running)
    with LiveSource(running) as source:
        try:
            farewell = run_top(source.snapshot, running.has_ended, interval_s, console)
        except KeyboardInterrupt:
            farewell = ""
    if farewell:
        click.echo(f"{farewell}; 'laggard report {running.full_name}' tells of it")
    return 0


def _snapshot(running: RunningJob) -> Snapshot:
    try:
        with LiveSource(running) as source:
            return source.snapshot()
    except (redis.RedisError, NodeError) as error:
        raise UsageError(
            f"{running.full_name} does not answer as it should ({error}): it has just ended, or try again in seconds"
        ) from error


def _print(snapshot: Snapshot, console: Console, at_most: int | None) -> None:
    width = console.width
    for line in header(snapshot, width):
        console.print(line)
    console.print(Text("\nlaunches", "bold"))
    console.print(launch_table(snapshot))
    console.print(Text(f"\nnodes{_of(len(snapshot.nodes), at_most)}", "bold"))
    console.print(node_table(snapshot.nodes[:at_most]))
    worst = f", the worst first{_of(len(snapshot.devices), at_most)}"
    console.print(Text(f"\ndevices{worst}", "bold"))
    console.print(device_table(sorted_devices(snapshot.devices, "worst")[:at_most], width, None, snapshot))
    if snapshot.level < 3:
        console.print(Text(NO_LEVEL, "dim"))
    if snapshot.metrics or snapshot.level:
        console.print(Text("\nthe program's metrics", "bold"))
        console.print(metric_table(snapshot.metrics[:at_most], snapshot.level))


def _of(total: int, at_most: int | None) -> str:
    return f" ({at_most} of {total:,}; --all shows all)" if at_most is not None and total > at_most else ""

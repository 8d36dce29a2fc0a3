"""``laggard nodes``: what the site remembers of its nodes."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from typing import Any, cast

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from laggard.resilience.command.options import JobOptions
from laggard.resilience.command.run_options import HISTORY_OPTIONS, options_of_run
from laggard.resilience.command.state import node_history, site_access
from laggard.resilience.decision.site import Kind, Sighting, Standing, standings
from laggard.resilience.errors import UsageError
from laggard.resilience.record import wording
from laggard.system.user import user_name

OPERATOR = "operator"


@click.command(short_help="Show what the site remembers about its nodes.")
@options_of_run(*HISTORY_OPTIONS)
@click.option("--all", "show_all", is_flag=True, help="Also show nodes with nothing against them.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--clear", metavar="NODE", help="Forget the evidence against a node, for instance after a repair.")
@click.option("--pin", metavar="NODE", help="Keep a node a suspect until it is cleared.")
@click.option("--why", default="", metavar="TEXT", help="Why it is cleared or pinned.")
def nodes(
    *, show_all: bool, as_json: bool, clear: str | None, pin: str | None, why: str, **history_options: Any
) -> None:
    """Show which nodes are suspects, from what jobs recorded in the last four weeks.

    Only the folder's owner and root can clear or pin a node, or whoever the server's access list lets.
    """
    options = JobOptions(**history_options)
    history, now_s = node_history(options, site_access(options, os.environ)), time.time()
    if history is None:
        raise UsageError("--node-history", "is missing", "name the folder or server that jobs were given")
    name, said = f"{OPERATOR}-{user_name()}", {"cleared": clear, "pinned": pin}
    added = [Sighting(host, now_s, cast("Kind", kind), name, why) for kind, host in said.items() if host]
    history.add(name, *added)
    noted = history.read()
    if added and not any((each.job, each.time_s) == (name, now_s) for each in noted):
        raise UsageError("--clear and --pin", "have no effect here", "they are for the folder's owner and root")
    found = [each for each in standings(noted, now_s) if show_all or each.failures]
    if as_json:
        click.echo(json.dumps([asdict(each) | {"chance": each.chance, "suspect": each.is_suspect} for each in found]))
    elif found:
        Console(highlight=False).print(_table(found))
    else:
        click.echo("nothing speaks against any node")


def _table(found: list[Standing]) -> Table:
    table = Table()
    for column in ("node", "suspect", "likely bad", "failures", "hours of use", "newest"):
        table.add_column(column, justify="right" if column in {"likely bad", "failures", "hours of use"} else "left")
    for each in found:
        newest = Text(wording.newest_failure(each))
        suspect = "yes" if each.is_suspect else ""
        table.add_row(each.host, suspect, wording.chance_of(each), str(len(each.failures)), f"{each.hours:.0f}", newest)
    return table

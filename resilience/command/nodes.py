"""``laggard nodes``: what the site remembers of its nodes."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from laggard.resilience.command.run import check_folders
from laggard.resilience.decision.site import Sighting, Standing, standings
from laggard.resilience.record import wording
from laggard.resilience.record.node_history import NodeHistory
from laggard.system.user import user_name

OPERATOR = "operator"


@click.command(short_help="Show what the site remembers about its nodes.")
@click.option(
    "--node-history",
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    envvar="LAGGARD_NODE_HISTORY",
    required=True,
    metavar="DIR",
    help="The folder that jobs were given as --node-history.  [also: LAGGARD_NODE_HISTORY]",
)
@click.option("--all", "show_all", is_flag=True, help="Also show nodes with nothing against them.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--clear", metavar="NODE", help="Forget the evidence against a node, for instance after a repair.")
@click.option("--pin", metavar="NODE", help="Keep a node a suspect until it is cleared.")
@click.option("--why", default="", metavar="TEXT", help="Why it is cleared or pinned.")
def nodes(*, folder: Path, show_all: bool, as_json: bool, clear: str | None, pin: str | None, why: str) -> None:
    """Show which nodes are suspects, from what jobs recorded in the last four weeks.

    Only the folder's owner and root can clear or pin a node.
    """
    history, now_s = NodeHistory(folder), time.time()
    if clear or pin:
        check_folders(node_history=folder)
        name = f"{OPERATOR}-{user_name()}"
        history.add(name, [Sighting(host, now_s, "cleared", name, why) for host in filter(None, [clear])])
        history.add(name, [Sighting(host, now_s, "pinned", name, why) for host in filter(None, [pin])])
    found = [each for each in standings(history.read(), now_s) if show_all or each.failures]
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

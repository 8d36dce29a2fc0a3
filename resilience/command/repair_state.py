"""``laggard repair-state``."""

from __future__ import annotations

import time
from pathlib import Path

import click

from laggard.kvstore.state.repair import Repair, repair
from laggard.resilience.text import counted


@click.command("repair-state", short_help="Repair the damaged log of a state directory.")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option("--backup", is_flag=True, help="Go back to the last backup instead of the log's last good commit.")
def repair_state(directory: Path, backup: bool) -> int:
    """Repair the log in DIRECTORY, the --state-dir of a job that has ended, to its last good commit."""
    # What comes after the first damage is left out, since later commits may build on what is lost. Nothing is
    # destroyed: the damaged log is moved to a folder beside the repaired one. Without damage, nothing is changed.
    # A running job takes a backup of State once an hour. It is the way back if the log is damaged at its beginning.
    done = repair(directory, backup=backup, tell=lambda text: click.echo(text, err=True))
    for line in _lines(done, directory):
        click.echo(line)
    return 0


def _lines(done: Repair, directory: Path) -> list[str]:
    found = "there is no damage in the log" if done.damage is None else f"the log is repaired: {done.damage}"
    lost = f"; {done.lost_bytes} bytes are left out" if done.damage is not None else ""
    when = "" if done.committed_at_s is None else f" of {_clock(done.committed_at_s)}"
    lines = [f"{found}{lost}", f"State is as of commit {done.commits}{when}: {counted(done.keys, 'key', 'keys')}"]
    if done.kept is not None:
        lines.append(f"the damaged log is in {done.kept}; delete that folder when you no longer need it")
    if done.newer_backup_s is not None:
        lines.append(
            f"a backup of {_clock(done.newer_backup_s)} is newer: `laggard repair-state --backup {directory}` "
            "goes there"
        )
    return lines


def _clock(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))

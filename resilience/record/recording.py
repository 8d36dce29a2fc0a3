"""One job's record, from its beginning to its report."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kvstore.control import NodeRecord
from kvstore.endpoint import Endpoint
from resilience.account import Account
from resilience.record.journal import FORMAT, Journal
from resilience.record.places import make_record
from resilience.record.recorder import Recorder

__all__ = ["JobCard", "recorded"]

REPORT_COMMAND = (sys.executable, "-m", "resilience.report")
REPORT_DEADLINE_S = 30.0
REPORT_FILE = "report.html"


@dataclass(frozen=True, slots=True)
class JobCard:
    """What a job is.

    Attributes
    ----------
    name
        Of the program.
    id
        Keeps apart jobs of the same name.
    command
        The program's command line.
    nodes
        All of the allocation.
    level, port
        Of the telemetry.
    """

    name: str
    id: str
    command: Sequence[str]
    nodes: Sequence[NodeRecord]
    level: int
    port: int


@contextlib.contextmanager
def recorded(card: JobCard, endpoint: Endpoint, account: Account, parent: Path | None, *, kept: bool) -> Iterator[None]:
    """Record a job for as long as the ``with`` block lasts, then make its report, however the block ended.

    Parameters
    ----------
    card
        What the job is.
    endpoint
        Its state server, where those who look at the job find the journal.
    account
        What it tells goes into the journal.
    parent
        Where the record's folder is made; ``None``: in the user's folder for state.
    kept
        Whether there is a folder, and a report, at all.
    """
    folder, trouble = _folder(card, parent) if kept else (None, None)
    journal = Journal(folder)
    fields = asdict(card) | {"pid": os.getpid(), "machine": socket.gethostname()}
    journal.write("job", format=FORMAT, **fields, folder=None if folder is None else str(folder))
    account.take_note = journal.write
    try:
        with Recorder(endpoint, journal, folder, card.level):
            yield
    finally:
        trouble = trouble or journal.trouble
        at_once = isinstance(sys.exception(), SystemExit)
        if folder is not None and trouble is None and not at_once:
            trouble = _made_in_child(folder)
            if trouble is None:
                account.tell("report", str(folder / REPORT_FILE))
        if trouble is not None:
            account.tell("report", trouble, "bold yellow")


def _folder(card: JobCard, parent: Path | None) -> tuple[Path | None, str | None]:
    """Make the record's folder; return it, or what went wrong."""
    try:
        return make_record(f"{card.name}-{card.id}", parent), None
    except OSError as error:
        return None, f"none: {error.filename}: {error.strerror}; name a folder that can be written with --report-dir"


def _made_in_child(folder: Path) -> str | None:
    """Make the report; return what went wrong."""
    try:
        made = subprocess.run(
            [*REPORT_COMMAND, str(folder)], stdin=subprocess.DEVNULL, capture_output=True, timeout=REPORT_DEADLINE_S
        )
    except subprocess.TimeoutExpired:
        return f"not made within {REPORT_DEADLINE_S:g} s; 'laggard report {folder}' makes it"
    if made.returncode:
        words = made.stderr.decode(errors="replace").strip().splitlines()
        return f"not made: {words[-1] if words else f'exit code {made.returncode}'}"
    return None

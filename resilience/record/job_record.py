"""The record of a job, from its start to its report, and the folder in which the records of all jobs lie.

That folder is ``$XDG_STATE_HOME/laggard``, by default ``~/.local/state/laggard`` (XDG base directory specification),
and holds the newest jobs only. It is not the working directory, which belongs to the user and the program, nor the
job's temporary folder, which is removed when the job ends well.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from laggard.kvstore.client.connection import Endpoint
from laggard.resilience.record.account import Account
from laggard.resilience.record.entries import GaveUp
from laggard.resilience.record.error_log import ErrorLog
from laggard.resilience.record.journal import JOURNAL_FILE, Journal
from laggard.resilience.record.progress_log import ProgressLog
from laggard.resilience.record.recorder import Recorder
from laggard.system.user import state_home
from laggard.telemetry.course import JobBegan

KEPT_JOBS = 20
REPORT_DEADLINE_S = 30.0
REPORT_FILE = "report.html"


def make_record(name: str, parent: Path | None = None) -> Path:
    """Make the folder of a new job's record; in the user's folder, also remove the oldest records."""
    home = (state_home() if parent is None else parent).absolute()  # viewers may have another working directory
    folder = home / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if parent is None:
        for old in records(home)[KEPT_JOBS:]:
            shutil.rmtree(old, ignore_errors=True)
    return folder


def records(home: Path) -> list[Path]:
    """Return the folders that hold a job's record, the newest first."""
    # By the folder's time, not the journal's: a long job without events still saves its samples.
    return sorted((file.parent for file in home.glob(f"*/{JOURNAL_FILE}")), key=_modified_s, reverse=True)


def _modified_s(folder: Path) -> float:
    return folder.stat().st_mtime


@contextlib.contextmanager
def recorded(
    job: JobBegan,
    endpoint: Endpoint,
    account: Account,
    parent: Path | None,
    *,
    kept: bool,
    make_report: Callable[[Path], object],
) -> Iterator[Path | None]:
    """Record a job for the length of a ``with`` block, then make its report, however the block ended."""
    # Yields the folder of the record; None if there is none.
    folder, trouble = _folder(job, parent) if kept else (None, None)
    journal = Journal(folder)
    kept_in = None if folder is None else str(folder)
    journal.write(replace(job, pid=os.getpid(), machine=socket.gethostname(), folder=kept_in))
    progress = ProgressLog(journal.write, journal.clock.now_s)
    errors = ErrorLog()
    account.take_note, account.see_progress, account.take_errors = journal.write, progress.see, errors.take
    try:
        with Recorder(endpoint, journal, progress, errors, folder, job.level, partial(account.tell, "notice")):
            yield folder
    except Exception as error:
        journal.write(GaveUp(str(error)))
        raise
    finally:
        trouble = trouble or journal.trouble
        ends_at_once = isinstance(sys.exception(), SystemExit)
        if folder is not None and trouble is None and not ends_at_once:
            trouble = _reported(folder, make_report)
            if trouble is None:
                account.tell("report", str(folder / REPORT_FILE))
        if trouble is not None:
            account.tell("report", trouble, "bold yellow")


def _folder(job: JobBegan, parent: Path | None) -> tuple[Path | None, str | None]:
    """Make the record's folder; return it, or what is wrong."""
    try:
        return make_record(f"{job.name}-{job.id}", parent), None
    except OSError as error:
        return None, f"none: {error.filename}: {error.strerror}; name a writable folder with --report-dir"


def _reported(folder: Path, make_report: Callable[[Path], object]) -> str | None:
    """Make the report within its deadline; return what went wrong, if anything did."""
    trouble: list[str] = []

    def make() -> None:
        try:
            make_report(folder)
        except OSError as error:
            trouble.append(f"not made: {error.filename or folder}: {error.strerror or error}")
        except Exception as error:  # noqa: BLE001 - the job is over: its exit code must not depend on its report
            trouble.append(f"not made: {type(error).__name__}: {error}")

    # A thread rather than a process: what it needs is loaded here already, and a short job ends at once.
    thread = threading.Thread(target=make, name="report", daemon=True)
    thread.start()
    thread.join(REPORT_DEADLINE_S)
    if thread.is_alive():
        return f"not made within {REPORT_DEADLINE_S:g} s; 'laggard report {folder}' makes it"
    return trouble[0] if trouble else None

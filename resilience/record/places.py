"""Where the records of jobs are: one private folder a job, in the user's folder for state, or where the user says.

Not in the working directory, which is the program's and the user's own; not in the job's temporary folder, which is
gone when it has ended well. The folder for state is ``$XDG_STATE_HOME/laggard``, by default ``~/.local/state/laggard``
(XDG base directory specification), and holds the newest jobs only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from resilience.record.journal import JOURNAL_FILE

__all__ = ["KEPT_JOBS", "make_record", "records", "state_home"]

KEPT_JOBS = 20


def state_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the user's folder for records."""
    home = environ.get("XDG_STATE_HOME", "")
    return (Path(home) if Path(home).is_absolute() else Path.home() / ".local" / "state") / "laggard"


def make_record(name: str, parent: Path | None = None) -> Path:
    """Make the folder of a new job's record, and let go of the oldest jobs' where it is the user's folder for state.

    Parameters
    ----------
    name
        Of the job, with its id.
    parent
        Where to; ``None``: the user's folder for state.

    Raises
    ------
    OSError
        If it cannot be made.
    """
    home = (state_home() if parent is None else parent).absolute()  # those who look may stand elsewhere
    folder = home / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if parent is None:
        for old in records(home)[KEPT_JOBS:]:
            shutil.rmtree(old, ignore_errors=True)
    return folder


def records(home: Path) -> list[Path]:
    """Return the folders with a job's record, the newest first."""
    # The folder's time, not the journal's: a long job without news still saves its samples.
    return sorted((file.parent for file in home.glob(f"*/{JOURNAL_FILE}")), key=_changed_s, reverse=True)


def _changed_s(folder: Path) -> float:
    return folder.stat().st_mtime

"""The private folder of a job, and removing the folders of jobs that were killed.

Each job holds a lock on a file in its folder for as long as it lives. The kernel releases the lock however the job
ends, so a folder whose lock is free is stale.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from laggard.resilience.errors import UsageError

# Ray creates sockets below this folder, and the path of a socket has at most 107 characters. So $TMPDIR, which may be
# long, is not used.
RUNTIME_ROOT_VARIABLE = "LAGGARD_RUNTIME_ROOT"
RUNTIME_ROOT = "/tmp"  # noqa: S108 - mkdtemp creates a private folder in it
PREFIX = "laggard-"
"""Prefix of the name of a job's private folder; the rest is the job's id."""
LOCK = "owner"


@dataclass
class Folders:
    """The folders of a job."""

    runtime: Path  # private folder of the job's processes
    state: Path  # folder of State
    keep_state: bool = False  # whether the folder of State is kept at the end although it is in the private folder

    @property
    def id(self) -> str:
        """Id that tells jobs of the same name apart."""
        return self.runtime.name.removeprefix(PREFIX)


def runtime_root() -> Path:
    """Return the folder that holds the private folders of all jobs."""
    return Path(os.environ.get(RUNTIME_ROOT_VARIABLE, RUNTIME_ROOT))


@contextlib.contextmanager
def job_folders(state_dir: Path | None) -> Iterator[Folders]:
    """Create a job's folders and remove them at the end; remove those that killed jobs of this user have left."""
    # The State of a killed job is kept: it may be all that is left of days of work.
    root = runtime_root()
    remove_stale_folders(root)
    try:
        runtime = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
    except OSError as error:
        problem = f"cannot hold the private folder of the job ({error.strerror})"
        raise UsageError(str(root), problem, f"name another place with {RUNTIME_ROOT_VARIABLE}") from error
    folders = Folders(runtime, state_dir or runtime / "state")
    with lock_folder(runtime):
        try:
            yield folders
        finally:
            _remove_contents(runtime, kept=folders.state if folders.keep_state else None)


def lock_folder(folder: Path) -> IO[str]:
    """Lock a folder for as long as the returned file stays open."""
    lock = (folder / LOCK).open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def remove_stale_folders(root: Path) -> None:
    """Remove the folders whose lock is free; one that was just created and has no lock file yet is left alone."""
    for folder in root.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if _is_ours(folder):
                with (folder / LOCK).open("r+") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove_contents(folder, kept=folder / "state")


def _is_ours(folder: Path) -> bool:
    found = folder.lstat()  # somebody may have put a link there that leads anywhere
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _remove_contents(folder: Path, kept: Path | None) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and entry != kept:
            shutil.rmtree(entry, ignore_errors=True)
    (folder / LOCK).unlink()
    if not any(folder.iterdir()):
        folder.rmdir()

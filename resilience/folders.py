"""Where a job keeps its files, and sweeping up after jobs that were killed.

Each job locks a file in its folder for as long as it lives, however it ends: a folder whose lock is free has no owner.
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

from resilience.options import UsageError

__all__ = ["PREFIX", "RUNTIME_ROOT_VARIABLE", "Folders", "claim", "job_folders", "runtime_root", "sweep"]

# Ray makes sockets below this folder, and a socket's path may have 107 characters: so not $TMPDIR, which may be long.
RUNTIME_ROOT_VARIABLE = "LAGGARD_RUNTIME_ROOT"
RUNTIME_ROOT = "/tmp"  # noqa: S108 - mkdtemp makes a private folder in it
PREFIX = "laggard-"
"""What the name of a job's private folder begins with; the rest is the job's id."""
LOCK = "owner"


@dataclass
class Folders:
    """Where a job keeps its files: those of its processes, and its state.

    Attributes
    ----------
    runtime
        Private folder of the job's processes.
    state
        Folder of State.
    keep_state
        Whether it is to be kept where it lies in the private folder.
    """

    runtime: Path
    state: Path
    keep_state: bool = False

    @property
    def id(self) -> str:
        """What keeps apart jobs of the same name."""
        return self.runtime.name.removeprefix(PREFIX)


def runtime_root() -> Path:
    """Return the folder in which each job has its private one."""
    return Path(os.environ.get(RUNTIME_ROOT_VARIABLE, RUNTIME_ROOT))


@contextlib.contextmanager
def job_folders(state_dir: Path | None) -> Iterator[Folders]:
    """Make a job's folders, and remove them at the end; also those of this user's jobs that were killed.

    A killed job's State is kept: it may be all that is left of days of work.

    Parameters
    ----------
    state_dir
        Where the user wants State; ``None``: in the private folder.

    Raises
    ------
    UsageError
        If there is no such place.
    """
    root = runtime_root()
    sweep(root)
    try:
        runtime = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
    except OSError as error:
        raise UsageError(
            f"no private folder can be made in {root}: {error.strerror}; "
            f"name another place with {RUNTIME_ROOT_VARIABLE}"
        ) from error
    folders = Folders(runtime, state_dir or runtime / "state")
    with claim(runtime):
        try:
            yield folders
        finally:
            _clear(runtime, kept=folders.state if folders.keep_state else None)


def claim(folder: Path) -> IO[str]:
    """Own a folder for as long as the file that is returned stays open."""
    lock = (folder / LOCK).open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def sweep(root: Path) -> None:
    """Clear folders without an owner; one that is just being made, and has no lock yet, is left alone."""
    for folder in root.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if _is_ours(folder):
                with (folder / LOCK).open("r+") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _clear(folder, kept=folder / "state")


def _is_ours(folder: Path) -> bool:
    found = folder.lstat()  # a link that somebody put there may lead anywhere
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _clear(folder: Path, kept: Path | None) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and entry != kept:
            shutil.rmtree(entry, ignore_errors=True)
    (folder / LOCK).unlink()
    if not any(folder.iterdir()):
        folder.rmdir()

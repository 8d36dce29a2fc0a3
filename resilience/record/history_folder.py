"""A shared folder of what jobs have noted about a site's nodes: one file for each job.

The folder's permissions say who may add to it. The files of this user, of the folder's owner and of root count; those
of others only if the owner lets the folder's group write, and nobody else: then the group is trusted. The owner and
root are the operators.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from laggard.resilience.decision.roster import MEMORY_S
from laggard.resilience.record.node_history import Lines

_log = logging.getLogger("laggard.nodes")

MAX_FILES = 5_000
MAX_BYTES = 256 << 10  # of a file
_SUFFIX = ".jsonl"
_ROOT = 0


class HistoryFolder:
    """Reads the newest files, removes this user's old ones, and adds to a job's."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder  # on a file system that the site's nodes share
        self._clock = clock  # returns Unix time in seconds

    def read(self) -> Iterator[Lines]:
        """Yield the lines that count."""
        about = self._folder.stat()
        operators = {about.st_uid, _ROOT}
        trusts_group = bool(about.st_mode & stat.S_IWGRP) and not about.st_mode & stat.S_IWOTH
        for path, owner in self._files():
            if trusts_group or owner in {*operators, os.getuid()}:
                try:
                    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                        text = file.read(MAX_BYTES).decode(errors="replace")
                except OSError as error:
                    _log.info("left out %s: %s", path, error.strerror)
                else:
                    yield Lines(text, str(path), owner in operators)

    def add(self, name: str, text: str, *, by_operator: bool) -> None:  # noqa: ARG002 - the file's owner says that
        """Add to the file of a job."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        with os.fdopen(os.open(self._folder / (name + _SUFFIX), flags, 0o644), "w", encoding="utf-8") as file:
            file.write(text)

    def _files(self) -> Iterator[tuple[Path, int]]:
        """Yield the newest files that may count, and their owners."""
        with os.scandir(self._folder) as entries:
            files = [
                (entry.stat(follow_symlinks=False), Path(entry.path))
                for entry in entries
                if entry.name.endswith(_SUFFIX) and entry.is_file(follow_symlinks=False)
            ]
        files.sort(key=lambda each: -each[0].st_mtime)
        for number, (about, path) in enumerate(files):
            if about.st_mtime >= self._clock() - MEMORY_S:
                if number < MAX_FILES:
                    yield path, about.st_uid
            elif about.st_uid == os.getuid():
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)

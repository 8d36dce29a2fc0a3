"""A site's folder of what jobs have noted about its nodes: one file of JSON lines for each job.

The folder's permissions say who may add to it. The files of this user, of the folder's owner and of root count; those
of others only if the owner lets the folder's group write, and nobody else: then the group is trusted. What is not valid
is left out, and only a bounded part of a file or folder is read.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from laggard.records import plain, record_of
from laggard.resilience.decision.roster import MEMORY_S
from laggard.resilience.decision.site import Sighting
from laggard.resilience.text import printable

_log = logging.getLogger("laggard.nodes")

MAX_FILES = 5_000
MAX_BYTES = 256 << 10
MAX_WORDS = 300  # characters of a reason
_SUFFIX = ".jsonl"
_ROOT = 0
_MOST_HOURS = MEMORY_S / 3600


class NodeHistory:
    """Reads what jobs have noted, and adds to it."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder  # on a file system that the site's nodes share
        self._clock = clock  # returns Unix time in seconds

    def read(self) -> list[Sighting]:
        """Return what counts."""
        about = self._folder.stat()
        masters = {about.st_uid, _ROOT}
        trusts_group = bool(about.st_mode & stat.S_IWGRP) and not about.st_mode & stat.S_IWOTH
        found = []
        for path, owner in self._files():
            if trusts_group or owner in {*masters, os.getuid()}:
                noted = _sightings(path)
                # Only who keeps the folder speaks for the site.
                found += [each for each in noted if each.kind in ("failed", "ran") or owner in masters]
        return found

    def add(self, name: str, sightings: Iterable[Sighting]) -> None:
        """Add what a job of this name has noted to its file."""
        lines = [json.dumps(plain(replace(each, why=each.why[:MAX_WORDS]))) + "\n" for each in sightings]
        if lines:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            with os.fdopen(os.open(self._folder / (name + _SUFFIX), flags, 0o644), "w", encoding="utf-8") as file:
                file.write("".join(lines))

    def remove_old(self) -> None:
        """Remove this user's files that no longer count."""
        for path in self._folder.glob("*" + _SUFFIX):
            about = path.lstat()
            if about.st_uid == os.getuid() and about.st_mtime < self._clock() - MEMORY_S:
                path.unlink(missing_ok=True)

    def _files(self) -> Iterator[tuple[Path, int]]:
        """Yield the newest files that may count, and their owners."""
        with os.scandir(self._folder) as entries:
            files = [
                (entry.stat(follow_symlinks=False), Path(entry.path))
                for entry in entries
                if entry.name.endswith(_SUFFIX) and entry.is_file(follow_symlinks=False)
            ]
        files.sort(key=lambda each: -each[0].st_mtime)
        for about, path in files[:MAX_FILES]:
            if about.st_mtime >= self._clock() - MEMORY_S:
                yield path, about.st_uid


def _sightings(path: Path) -> list[Sighting]:
    found, wrong = [], 0
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), encoding="utf-8", errors="replace") as file:
            lines = file.read(MAX_BYTES).splitlines()
    except OSError as error:
        _log.info("left out %s: %s", path, error.strerror)
        return []
    for line in lines:
        try:
            sighting = record_of(Sighting, json.loads(line), printable)
            found.append(
                replace(sighting, why=sighting.why[:MAX_WORDS], hours=min(max(0.0, sighting.hours), _MOST_HOURS))
            )
        except (ValueError, TypeError, AttributeError):
            wrong += 1
    if wrong:
        _log.warning("%s has %d lines that are not valid; they do not count", path, wrong)
    return found

"""The node's private folder, and the environment of what is started there."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from laggard.logs import last_line, log_to_file
from laggard.resilience.agent.hook import hook_variables
from laggard.resilience.folders import lock_folder, remove_stale_folders
from laggard.resilience.wire.node import SetUp


class NodeFolder:
    """Known once the agent has been told; ``variables`` are those of the node, beside the agent's own."""

    def __init__(self) -> None:
        self.path = Path()
        self.variables: Mapping[str, str] = {}
        self._created: list[Path] = []
        self._lock: IO[str] | None = None

    def set_up(self, command: SetUp) -> None:
        """Make the folder, and write its files."""
        self.path = Path(command.directory)
        parent = self.path.parent
        self._created = [folder for folder in (parent, self.path) if _create_private(folder)]
        if parent in self._created:  # we are on a machine of our own
            remove_stale_folders(parent.parent)
            self._lock = lock_folder(parent)
        self.write(command.files)
        self.variables = command.environment
        log_to_file(self.path / "agent.log")

    def write(self, files: Mapping[str, str]) -> None:
        """Write private files, by name; an OSError names the file."""
        for name, content in files.items():
            path = self.path / name
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                with os.fdopen(descriptor, "w") as file:
                    file.write(content)
            except OSError as error:
                error.filename = str(path)  # which the system does not name when a disk is full
                raise

    def environment(self, own: Mapping[str, str], *, writes_stacks: bool = False) -> dict[str, str]:
        """Return all variables of a process that has some of its own."""
        environment = {**os.environ, **self.variables, **own}
        return environment | (hook_variables(environment) if writes_stacks else {})

    def log_of(self, name: str) -> Path:
        """Return where a process's output goes."""
        return self.path / f"{name}.log"

    def last_line_of(self, name: str) -> str:
        """Return the last line of it."""
        return last_line(self.log_of(name))

    def remove(self) -> None:
        """Remove what was made here."""
        for folder in self._created:
            shutil.rmtree(folder, ignore_errors=True)


def _create_private(folder: Path) -> bool:
    """Create a folder that only we can use; return False if there is one already."""
    # Raises PermissionError if others can use it: its name is not secret, so somebody may have created it before us.
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(f"{folder} exists and others can use it") from None
        return False
    return True

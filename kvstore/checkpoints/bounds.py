"""How much of a machine's memory shards may use, and where."""

from __future__ import annotations

import os
from pathlib import Path

from laggard.system.memory import memory_available_bytes, memory_limit_bytes

MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 - the files in it have no names
# Of the memory file system's size, and of the machine's: the program and others need some too.
_SHARE_OF_FOLDER = 0.8
_SHARE_OF_MACHINE = 0.5
# Containers often have one of 64 MB, which is of no use here.
_LEAST_FOLDER = 0.1
# Spare memory is for speed only: this share of the machine stays for those who need it.
_SHARE_LEFT = 0.05


def default_memory(folder: Path, sharers: int) -> tuple[Path | None, int]:
    """Return where to have shards, and how much of it to use, if several nodes share this machine."""
    machine_bytes = memory_limit_bytes()
    whole = os.statvfs(folder)
    folder_bytes = whole.f_blocks * whole.f_frsize
    if folder_bytes < _LEAST_FOLDER * machine_bytes:
        return None, int(_SHARE_OF_MACHINE * machine_bytes / sharers)
    return folder, int(min(_SHARE_OF_FOLDER * folder_bytes, _SHARE_OF_MACHINE * machine_bytes) / sharers)


def memory_to_spare_bytes() -> int:
    """Return how much of this machine's memory could be used for speed only; below 0 if it is short of memory."""
    return memory_available_bytes() - int(_SHARE_LEFT * memory_limit_bytes())

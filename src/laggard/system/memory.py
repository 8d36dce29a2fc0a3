"""The memory that this process's group or machine has, and how often the kernel ended a process for want of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_GROUPS = "sys/fs/cgroup"
_SHARED = "dev/shm"


class _Files(NamedTuple):
    """What a version of control groups calls its files and its counters."""

    limit: str
    used: str
    cached: tuple[str, str]


_VERSION_2 = _Files("memory.max", "memory.current", ("inactive_file", "active_file"))
_VERSION_1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))


def memory_limit_bytes(root: Path = Path("/")) -> int:
    """Return the memory of this machine, or less if a control group that this process is in has less."""
    limits = []
    for folder, of in _groups(root):
        with contextlib.suppress(OSError, ValueError):  # "max": no limit
            limits.append(int((folder / of.limit).read_text()))
    return min([_machine_bytes(root, "MemTotal:"), *limits])


def memory_available_bytes(root: Path = Path("/")) -> int:
    """Return how much memory can still be had on this machine, or in the control groups that this process is in."""
    left = []
    for folder, of in _groups(root):
        with contextlib.suppress(OSError, ValueError):
            statistics = (folder / "memory.stat").read_text()
            cached = sum(int(_value(statistics, name)) for name in of.cached)  # read from files: can be had again
            left.append(int((folder / of.limit).read_text()) - int((folder / of.used).read_text()) + cached)
    return min([_machine_bytes(root, "MemAvailable:"), *left])


def shared_memory_bytes(root: Path = Path("/")) -> int:
    """Return the size of the file system for shared memory; 0 if there is none."""
    try:
        shared = os.statvfs(root / _SHARED)
    except OSError:
        return 0
    return shared.f_blocks * shared.f_frsize


def oom_kills(root: Path = Path("/")) -> int:
    """Return how many processes of this node's memory group, or of the machine, were killed for want of memory."""
    with contextlib.suppress(OSError, ValueError):
        return int(_value((_group(root) / "memory.events").read_text(), "oom_kill"))
    with contextlib.suppress(OSError, ValueError):
        return int(_value((root / "proc/vmstat").read_text(), "oom_kill"))
    return 0


def _machine_bytes(root: Path, name: str) -> int:
    return int(_value((root / "proc/meminfo").read_text(), name).split()[0]) << 10


def _groups(root: Path) -> Iterator[tuple[Path, _Files]]:
    """Yield the folders of the control groups that this process is in, each with the names of its files."""
    yield from ((folder, _VERSION_2) for folder in own_groups(root))
    # The first version of control groups, where the group itself is what is mounted in a container.
    yield root / _GROUPS / "memory", _VERSION_1


def own_groups(root: Path) -> list[Path]:
    """Return the folders of the control groups, of the second version, that this process is in."""
    with contextlib.suppress(OSError):
        group = _group(root)
        # A parent's limits count too.
        return [folder for folder in (group, *group.parents) if folder.is_relative_to(root / _GROUPS)]
    return []


def _group(root: Path) -> Path:
    """Return the folder of this process's control group, of the second version."""
    return root / _GROUPS / (root / "proc/self/cgroup").read_text().partition("0::/")[2].strip()


def _value(text: str, name: str) -> str:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return value.strip()
    raise ValueError(f"no {name}")

"""The memory that this process's group or machine has, and how often the kernel ended a process for want of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

_GROUPS = "sys/fs/cgroup"


def memory_limit_bytes(root: Path = Path("/")) -> int:
    """Return the memory of this machine, or less if a control group that this process is in has less."""
    kib = _value((root / "proc/meminfo").read_text(), "MemTotal:").split()[0]
    return min([int(kib) << 10, *_group_limits(root)])


def memory_available_bytes(root: Path = Path("/")) -> int:
    """Return how much memory can still be had on this machine, or in the control groups that this process is in."""
    kib = _value((root / "proc/meminfo").read_text(), "MemAvailable:").split()[0]
    return min([int(kib) << 10, *_left_in_groups(root)])


def oom_kills(root: Path = Path("/")) -> int:
    """Return how many processes of this node's memory group, or of the machine, were killed for want of memory."""
    with contextlib.suppress(OSError, ValueError):
        return int(_value((_group(root) / "memory.events").read_text(), "oom_kill"))
    with contextlib.suppress(OSError, ValueError):
        return int(_value((root / "proc/vmstat").read_text(), "oom_kill"))
    return 0


def _group_limits(root: Path) -> Iterator[int]:
    with contextlib.suppress(OSError, ValueError):
        group = _group(root)
        for folder in (group, *group.parents):  # a parent's limit counts too
            with contextlib.suppress(OSError, ValueError):  # "max": none
                yield int((folder / "memory.max").read_text())
            if folder == root / _GROUPS:
                break
    # The first version of control groups, where the group itself is what is mounted in a container.
    with contextlib.suppress(OSError, ValueError):
        yield int((root / _GROUPS / "memory/memory.limit_in_bytes").read_text())


def _left_in_groups(root: Path) -> Iterator[int]:
    """Yield what each group has left; what it has read from files can be had again."""
    with contextlib.suppress(OSError, ValueError):
        group = _group(root)
        for folder in (group, *group.parents):
            with contextlib.suppress(OSError, ValueError):  # "max": no limit
                yield _left(folder, "memory.max", "memory.current", "")
            if folder == root / _GROUPS:
                break
    with contextlib.suppress(OSError, ValueError):
        yield _left(root / _GROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")


def _left(folder: Path, limit: str, used: str, prefix: str) -> int:
    statistics = (folder / "memory.stat").read_text()
    cached = sum(int(_value(statistics, f"{prefix}{name}_file")) for name in ("inactive", "active"))
    return int((folder / limit).read_text()) - int((folder / used).read_text()) + cached


def _group(root: Path) -> Path:
    """Return the folder of this process's control group, of the second version."""
    return root / _GROUPS / (root / "proc/self/cgroup").read_text().partition("0::/")[2].strip()


def _value(text: str, name: str) -> str:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return value.strip()
    raise ValueError(f"no {name}")

"""How many processors this process may use."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from laggard.system.memory import own_groups

_QUOTA, _PERIOD = "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "sys/fs/cgroup/cpu/cpu.cfs_period_us"


def usable_processors(root: Path = Path("/")) -> int:
    """Return how many it may run on, or fewer if a control group that it is in gives it less of their time."""
    counts = [len(os.sched_getaffinity(0))]
    for group in own_groups(root):
        with suppress(OSError, ValueError):  # "max 100000": no limit
            counts.append(_count(*(group / "cpu.max").read_text().split()))
    with suppress(OSError, ValueError):  # the first version of control groups
        counts.append(_count((root / _QUOTA).read_text(), (root / _PERIOD).read_text()))
    return max(1, min(counts))


def _count(quota_us: str, period_us: str) -> int:
    """Return how many processors a quota is worth; raises ValueError if it is none."""
    if int(quota_us) < 0:
        raise ValueError("there is no limit")
    return int(quota_us) // int(period_us)

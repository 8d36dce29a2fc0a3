"""The machine that a benchmark ran on, for the head of its tables."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

import psutil


def description() -> str:
    """Return one line: processor, cores, memory, system, Python and Ray."""
    models = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory_gib = psutil.virtual_memory().total / 2**30
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{models[0] if models else platform.processor()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}, Ray {version('ray')}; "
        f"load average at the start {load}"
    )


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()

"""Description of the machine that a benchmark ran on, printed above its tables."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import pynvml as nvml


def description() -> str:
    """Return one line: CPU, cores, memory, GPUs and driver if any, system, Python, and Ray if it is installed."""
    models = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    parts = [
        models[0] if models else platform.processor(),
        f"{os.cpu_count()} cores",
        f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        *_gpus(),
        f"{platform.system()} {platform.release()}",
        f"Python {platform.python_version()}",
        *_ray(),
    ]
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{', '.join(parts)}; load average at the start {load}"


def _gpus() -> list[str]:
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
        names = [nvml.nvmlDeviceGetName(handle) for handle in handles]
        driver = nvml.nvmlSystemGetDriverVersion()
    except nvml.NVMLError:
        return []
    return [*(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)), f"driver {driver}"]


def _ray() -> list[str]:
    try:
        return [f"Ray {version('ray')}"]
    except PackageNotFoundError:
        return []


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()

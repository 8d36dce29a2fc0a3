"""Readings of a node: processors, memory, processes, network, disks, the job's control group, pressure.

What this kernel does not provide is left out.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from laggard.collectors.metrics.reading_loop import Reading


class NodeReader:
    """Reads one node."""

    def __init__(
        self,
        proc: Path = Path("/proc"),
        control_group: Path | None = None,
        *,
        counters: Any = psutil,
        user: int | None = None,
    ) -> None:
        self._proc = proc  # where the proc file system is mounted
        self._group = control_group
        self._counters = counters  # psutil
        self._user = os.getuid() if user is None else user  # whose processes are counted
        counters.cpu_percent()  # the first call only starts the measurement

    def read(self) -> Iterator[Reading]:
        """Yield the node's readings."""
        memory = self._counters.virtual_memory()
        yield Reading("load_average", self._counters.getloadavg()[0])
        yield Reading("used_RAM", memory.percent)
        yield Reading("memory_available", memory.available)
        yield Reading("cpu_percent", self._counters.cpu_percent())
        yield Reading("num_running_processes", self._processes())
        yield from self._network()
        yield from self._disks()
        yield from self._pressure()
        if self._group is not None:
            yield from _read_group(self._group)

    def _processes(self) -> int:
        count = 0
        with os.scandir(self._proc) as entries:
            for entry in entries:
                try:
                    count += entry.name.isdigit() and entry.stat().st_uid == self._user
                except OSError:  # the process has ended
                    continue
        return count

    def _network(self) -> Iterator[Reading]:
        counters = [each for name, each in self._counters.net_io_counters(pernic=True).items() if name != "lo"]
        if counters:
            yield Reading("network_receive", sum(each.bytes_recv for each in counters))
            yield Reading("network_transmit", sum(each.bytes_sent for each in counters))
            lost = sum(each.errin + each.errout + each.dropin + each.dropout for each in counters)
            yield Reading("network_errors", lost)

    def _disks(self) -> Iterator[Reading]:
        with contextlib.suppress(OSError, RuntimeError, NotImplementedError):  # containers may hide the disks
            if counters := self._counters.disk_io_counters():
                yield Reading("disk_read", counters.read_bytes)
                yield Reading("disk_written", counters.write_bytes)

    def _pressure(self) -> Iterator[Reading]:
        for what in ("cpu", "memory", "io"):
            with contextlib.suppress(OSError, ValueError):
                text = (self._proc / "pressure" / what).read_text()
                yield Reading(f"pressure_{what}", int(text.splitlines()[0].rpartition("total=")[2]) / 1e6)


def control_group_of(proc: Path = Path("/proc"), root: Path = Path("/sys/fs/cgroup")) -> Path | None:
    """Return the directory of this process's control group; None if version 2 is not mounted."""
    with contextlib.suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            number, _, path = line.split(":", 2)
            folder = root / path.lstrip("/")
            if number == "0" and (folder / "cgroup.controllers").exists():
                return folder
    return None


def _read_group(group: Path) -> Iterator[Reading]:
    if (used := _number(group / "memory.current")) is not None:
        yield Reading("cgroup_memory", used)
    if (limit := _number(group / "memory.max")) is not None:
        yield Reading("cgroup_memory_limit", limit)
    with contextlib.suppress(OSError, ValueError):  # "max 100000": no limit
        quota_us, period_us = (group / "cpu.max").read_text().split()
        yield Reading("cgroup_cpu_limit", int(quota_us) / int(period_us))
    if (throttled_us := _field(group / "cpu.stat", "throttled_usec")) is not None:
        yield Reading("cgroup_throttled", throttled_us / 1e6)
    if (kills := _field(group / "memory.events", "oom_kill")) is not None:
        yield Reading("cgroup_oom_kills", kills)


def _number(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):  # "max": no limit
        return int(path.read_text())
    return None


def _field(path: Path, name: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return None

"""Readings of a node's devices of any kind: NVIDIA through NVML, or virtual."""

from __future__ import annotations

import logging
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import psutil

from laggard.collectors.device import VIRTUAL_DEVICE_DIR, VIRTUAL_DEVICES
from laggard.collectors.metrics.nvml import nvml_readers
from laggard.collectors.metrics.reading_loop import Reading

_log = logging.getLogger("laggard.collectors")

OPEN_DEADLINE_S = 15.0


class DeviceReader(Protocol):
    """Reads one device. A field that the device does not have is left out, never reported as 0."""

    @property
    def gpu(self) -> str:
        """The device's name on its node."""

    def read(self) -> Iterator[Reading]:
        """Yield the device's readings."""

    def processes(self) -> Iterator[Reading]:
        """Yield each process's use of the device, with the tag ``pid``."""


class VirtualReader:
    """Reads a virtual device's clock: how long kernels have run on it.

    It has no sensors. Power and temperature are simulated, so that there is something to see: 60 W and 35 °C when idle,
    300 W and 65 °C when busy.
    """

    def __init__(self, gpu: str, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.gpu = gpu
        self._path = directory / f"device-{gpu}.clock"
        self._clock = clock
        self._last = clock(), self._busy_s()

    def read(self) -> Iterator[Reading]:
        """Yield the device's readings."""
        last_s, last_busy_s = self._last
        now_s, busy_s = self._last = self._clock(), self._busy_s()
        # A kernel's time is added when it ends, so a long one counts all at once.
        busy = min(1.0, max(0.0, (busy_s - last_busy_s) / (now_s - last_s))) if now_s > last_s else 0.0
        yield Reading("DeviceUtilization", round(100 * busy, 1))
        yield Reading("DeviceMemoryUtilization", psutil.virtual_memory().percent)
        yield Reading("DevicePowerUsage", round(60 + 240 * busy, 1))
        yield Reading("DeviceTemperature", round(35 + 30 * busy))

    def processes(self) -> Iterator[Reading]:
        """Yield nothing: a virtual device does not know which processes use it."""
        return iter(())

    def _busy_s(self) -> float:
        try:
            return float(struct.unpack("<d", self._path.read_bytes())[0])
        except (FileNotFoundError, struct.error):
            return 0.0  # no kernel has run on it


def device_readers(
    names: Sequence[str] | None,
    on_xid: Callable[[str, int], None],
    environ: Mapping[str, str] = os.environ,
    nvidia: Callable[..., Sequence[DeviceReader]] = nvml_readers,
    deadline_s: float = OPEN_DEADLINE_S,
) -> list[DeviceReader]:
    """Return a reader for each device of this node that the job uses.

    Parameters
    ----------
    names
        Devices by their CUDA names; None: all.
    on_xid
        Called with a device's name and the number of each XID error that its driver reports.
    environ
        Says how many virtual devices there are.
    nvidia
        Opens NVIDIA's devices.
    deadline_s
        How long that may take.
    """
    if n_virtual := int(environ.get(VIRTUAL_DEVICES, "0")):
        directory = Path(environ[VIRTUAL_DEVICE_DIR])
        return [VirtualReader(str(gpu), directory) for gpu in range(n_virtual)]
    return _within_deadline(lambda: nvidia(names, on_xid), deadline_s)


def _within_deadline(opening: Callable[[], Sequence[DeviceReader]], deadline_s: float) -> list[DeviceReader]:
    """Open the driver in a separate thread: with a faulty device this may never return."""
    found: list[DeviceReader] = []
    thread = threading.Thread(target=lambda: found.extend(opening()), name="open-driver", daemon=True)
    thread.start()
    thread.join(deadline_s)
    if thread.is_alive():
        _log.warning("no device metrics: the driver did not answer within %g s", deadline_s)
        return []
    return found

"""Boards: a machine's GPUs as NVIDIA's driver lists them, and what it says is wrong with each.

``python -m laggard.collectors.boards`` prints how many there are and whether these are all, then a line of JSON for
each. It needs no CuPy, so that what the driver knows is told whether or not a device can be probed.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml as nvml

from laggard.collectors.device import listed_devices
from laggard.collectors.errors import DriverUnavailableError
from laggard.collectors.faults import faults_of
from laggard.collectors.metrics.nvml import nvml_handle
from laggard.collectors.missing_gpus import gpus_on_bus
from laggard.collectors.symptoms import SymptomReader, link_states
from laggard.records import plain


@dataclass(frozen=True, slots=True)
class Board:
    """A whole GPU."""

    name: str  # its model and its place on the bus; its number, if the driver says no more
    uuid: str = ""  # empty if the driver cannot say, or it is not ours to use
    # How many of its NVLinks are active; None if it has none, is cut into MIG slices, or is not ours to use
    n_links: int | None = None
    faults: tuple[str, ...] = ()  # what is wrong with it, whatever the probes measure
    is_hidden: bool = False  # whether this process may not open it


@dataclass(frozen=True, slots=True)
class Boards:
    """A machine's GPUs."""

    found: tuple[Board, ...] = ()  # in the driver's order
    # Whether a GPU that is not among them is not in the machine, rather than hidden from this process
    is_all: bool = False
    failure: str = ""  # why they could not be read, which says nothing about them; empty if they were


def read_board(number: int, names: Sequence[str] | None) -> Board:
    """Read a board by the driver's number of it."""
    unnamed = f"gpu {number} of the driver"
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        uuid = str(nvml.nvmlDeviceGetUUID(handle))
        name = f"{nvml.nvmlDeviceGetName(handle)} at {nvml.nvmlDeviceGetPciInfo(handle).busId}"
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_NO_PERMISSION:
            return Board(unnamed, is_hidden=True)
        return Board(unnamed, faults=(str(error),))
    if names is not None and not any(_is_of_board(name, number, uuid) for name in names):
        return Board(name, uuid)
    try:
        status = SymptomReader(uuid).status()
    except DriverUnavailableError as error:
        return Board(name, uuid, faults=(error.reason,))
    links = [] if _is_sliced(handle) else link_states(handle)
    faults = faults_of(status.values, status.links_down)
    return Board(name, uuid, sum(links) if links else None, faults)


def _is_sliced(handle: Any) -> bool:
    with contextlib.suppress(nvml.NVMLError):
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    return False


def _is_of_board(name: str, number: int, uuid: str) -> bool:
    """Tell whether a name in ``CUDA_VISIBLE_DEVICES`` is that of a board, or of a MIG slice of it."""
    if name.isdigit():
        return int(name) == number
    if uuid.startswith(name):  # CUDA takes the beginning of a UUID
        return True
    with contextlib.suppress(nvml.NVMLError):
        parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvml_handle(name))
        return str(nvml.nvmlDeviceGetUUID(parent)) == uuid
    return False


def main(environ: Mapping[str, str], root: Path = Path("/"), driver: Any = nvml) -> int:
    """Print the list and each board of it."""
    count, answers = _count(driver)
    names = listed_devices(environ)
    # The bus shows a container all GPUs of its machine; and whoever asks for none misses none.
    is_all = answers and names != [] and len(gpus_on_bus(root)) <= count
    print(json.dumps([count, is_all]), flush=True)
    for number in range(count):
        print(json.dumps(plain(read_board(number, names))), flush=True)
    return 0


def _count(driver: Any) -> tuple[int, bool]:
    """Return how many boards the driver lists, and whether it could be asked."""
    try:
        driver.nvmlInit()
        return int(driver.nvmlDeviceGetCount()), True
    except nvml.NVMLError as error:
        return 0, error.value == nvml.NVML_ERROR_DRIVER_NOT_LOADED


if __name__ == "__main__":
    sys.exit(main(os.environ))

"""Copies from GPU to GPU within a node, and what joins the two: NVLinks, a PCIe switch or more, as NVML says it.

One copy at a time, each direction by itself, timed by the sender's events.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import pynvml as nvml

from laggard.collectors.device import GpuDevice, device_makers
from laggard.collectors.errors import NoDeviceError
from laggard.collectors.links.reading import PeerReading
from laggard.collectors.links.schedule import Pair
from laggard.collectors.metrics.nvml import nvml_handle

# By NVML's level of the nearest thing on the bus that two GPUs share.
_SHARED: Mapping[int, str] = {
    nvml.NVML_TOPOLOGY_INTERNAL: "one board",
    nvml.NVML_TOPOLOGY_SINGLE: "one PCIe switch",
    nvml.NVML_TOPOLOGY_MULTIPLE: "PCIe switches",
    nvml.NVML_TOPOLOGY_HOSTBRIDGE: "one host bridge",
    nvml.NVML_TOPOLOGY_NODE: "one NUMA node",
    nvml.NVML_TOPOLOGY_SYSTEM: "both sockets",
}
NVLINK = "NVLink"


def path_between(one: str, other: str) -> str:
    """Return what joins two GPUs, given their PCI addresses; pairs with the same path are peers. Empty: not known."""
    try:
        nvml.nvmlInit()
        handle, to = nvml_handle(one), nvml_handle(other)
    except nvml.NVMLError:
        return ""
    if count := _links_to(handle, other):
        return f"{count} {NVLINK}s" if count > 1 else f"1 {NVLINK}"
    with contextlib.suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetP2PStatus(handle, to, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == 0:
            return f"{NVLINK} and its switches"
    with contextlib.suppress(nvml.NVMLError):
        return _SHARED.get(nvml.nvmlDeviceGetTopologyCommonAncestor(handle, to), "")
    return ""


def _links_to(handle: Any, other: str) -> int:
    """Return how many links lead to another GPU directly; 0 behind an NVSwitch."""
    count = 0
    with contextlib.suppress(nvml.NVMLError):  # the first missing link ends the list
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            nvml.nvmlDeviceGetNvLinkState(handle, link)
            count += _is_at_end(handle, link, other)
    return count


def _is_at_end(handle: Any, link: int, other: str) -> bool:
    with contextlib.suppress(nvml.NVMLError):  # a link that is down leads nowhere
        remote = nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId
        text = remote.decode() if isinstance(remote, bytes) else str(remote)
        return _short(text) == _short(other)
    return False


def _short(address: str) -> str:
    """Return a PCI address as CUDA writes it: NVML's domain has eight digits, CUDA's four."""
    return address.lower()[-12:]


_log = logging.getLogger("laggard.collectors.links")

REPEATS = 3  # the fastest counts
BUFFER_BYTES = 32 << 20
"""What one copy carries, and what each GPU gives up of its memory."""
TRANSFER_S = 0.001  # far above the time that a launch takes
_MOST_COPIES = 8  # of which one is too short to be timed


class PeerCopies:
    """The buffers of a node's GPUs.

    A transfer is one copy of 32 MiB, or as many as take about a millisecond, eight at most: 256 MiB over NVLink 4, one
    copy over a bus.
    """

    def __init__(self, devices: Sequence[GpuDevice]) -> None:
        self._devices = {device.gpu: device for device in devices}  # the GPUs, two or more
        self._buffers: dict[str, Any] = {device.gpu: device.run(_buffer_of(device)) for device in devices}

    def run(self, pairs: Iterable[Pair]) -> list[PeerReading]:
        """Copy between the GPUs of each pair, first one way and then back, one pair after another."""
        return [self._reading(way) for pair in pairs for way in (pair, pair[::-1])]

    def _reading(self, way: Pair) -> PeerReading:
        copies = self._copies_of(way)
        duration_s = min(self._transfer_s(way, copies) for _ in range(REPEATS))
        path = path_between(*(self._devices[gpu].bus_address for gpu in way))
        return PeerReading(*way, duration_s, copies * BUFFER_BYTES, path)

    def _copies_of(self, way: Pair) -> int:
        self._transfer_s(way, 1)  # the first one sets up the access
        once_s = self._transfer_s(way, 1)
        return max(1, min(_MOST_COPIES, round(TRANSFER_S / max(once_s, 1e-9))))

    def _transfer_s(self, way: Pair, copies: int) -> float:
        source, target = (self._buffers[gpu].data for gpu in way)

        def copy() -> None:
            for _ in range(copies):
                # CuPy enables the access; where there is none, the driver stages the copy through the host.
                target.copy_from_device_async(source, BUFFER_BYTES)

        return self._devices[way[0]].timing(copy).seconds


def _buffer_of(device: GpuDevice) -> Callable[[], Any]:
    cupy: Any = device.array_module
    return lambda: cupy.empty(BUFFER_BYTES, np.uint8)


def gpus_here(names: Collection[str] | None = None) -> list[GpuDevice]:
    """Return the GPUs that this process may copy between, those of some names or all; none without CuPy."""
    if find_spec("cupy") is None:
        _log.info("links between GPUs are not measured: CuPy is not installed")
        return []
    try:
        makers = device_makers()
    except NoDeviceError:
        return []
    devices = [make() for name, make in makers.items() if names is None or name in names]
    return [device for device in devices if isinstance(device, GpuDevice)]

"""What NVML says of the links of one GPU: what they lead to, and what they carried.

What a board or its driver does not report is left out; without a driver, nothing is known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import pynvml as nvml

from laggard.collectors.metrics.nvml import ALL_LINKS, field_values, nvml_handle

_KIB = 1024
_HEADERS = 1.08  # a link counts more than the bytes of a copy
_SEEN = 0.5  # of a copy's bytes: with fewer, the counter is one that is not updated in time
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


class NvLinks:
    """The NVLinks of one GPU."""

    def __init__(self, bus_address: str) -> None:
        self.handle: Any = None
        self.bus_address = bus_address  # the PCI address of the GPU
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlInit()
            self.handle = nvml_handle(bus_address)

    def sent_bytes(self) -> float | None:
        """Return how many bytes of data all links have sent so far; ``None`` if that is not counted."""
        return self._carried(nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX)

    def received_bytes(self) -> float | None:
        """Return how many bytes of data all links have received so far; ``None`` if that is not counted."""
        return self._carried(nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX)

    def count_to(self, other: NvLinks) -> int:
        """Return how many links lead to another GPU directly; 0 behind an NVSwitch."""
        count = 0
        with contextlib.suppress(nvml.NVMLError):  # the first missing link ends the list
            for link in range(nvml.NVML_NVLINK_MAX_LINKS if self.handle else 0):
                count += self._is_at_end(link, other)
        return count

    def _carried(self, field: int) -> float | None:
        if self.handle is None:
            return None
        with contextlib.suppress(nvml.NVMLError):
            return next((value * _KIB for _, value in field_values(self.handle, [(field, ALL_LINKS)])), None)
        return None

    def _is_at_end(self, link: int, other: NvLinks) -> bool:
        nvml.nvmlDeviceGetNvLinkState(self.handle, link)
        with contextlib.suppress(nvml.NVMLError):  # a link that is down leads nowhere
            remote = nvml.nvmlDeviceGetNvLinkRemotePciInfo(self.handle, link).busId
            text = remote.decode() if isinstance(remote, bytes) else str(remote)
            return _short(text) == _short(other.bus_address)
        return False


def path_between(one: NvLinks, other: NvLinks) -> str:
    """Return what joins two GPUs, in words; pairs with the same path are peers. Empty if no driver says."""
    if one.handle is None or other.handle is None:
        return ""
    if count := one.count_to(other):
        return f"{count} {NVLINK}s" if count > 1 else f"1 {NVLINK}"
    with contextlib.suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetP2PStatus(one.handle, other.handle, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == 0:
            return f"{NVLINK} and its switches"
    with contextlib.suppress(nvml.NVMLError):
        return _SHARED.get(nvml.nvmlDeviceGetTopologyCommonAncestor(one.handle, other.handle), "")
    return ""


def foreign_share(before: float | None, after: float | None, own_bytes: float) -> float:
    """Return how many bytes others carried on a GPU's NVLinks, over those of our copies; 0 if the counters do not tell.

    Parameters
    ----------
    before, after
        What the links had carried before and after the copies.
    own_bytes
        What the copies carried.
    """
    if before is None or after is None or after - before < _SEEN * own_bytes:
        return 0.0
    return max(0.0, (after - before) / own_bytes - _HEADERS)


def _short(address: str) -> str:
    """Return a PCI address as CUDA writes it: NVML's domain has eight digits, CUDA's four."""
    return address.lower()[-12:]

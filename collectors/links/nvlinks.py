"""What joins two GPUs, as NVML says. What a board or its driver does not report is left out."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import pynvml as nvml

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

"""Faults: what a driver reports that is wrong with a device however fast it is. Pure functions.

The rules are those that fail a device in the health checks of NVIDIA's DCGM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def faults_of(values: Mapping[str, float], links_down: Sequence[int]) -> tuple[str, ...]:
    """Return a sentence for each fault."""
    # A narrow bus is not among them, since only a bus that was just in use has its full width: see narrow_link.
    found = repair_fault(values), _uncorrectable(values), links_fault(links_down)
    return tuple(sentence for sentence in found if sentence)


def repair_fault(values: Mapping[str, float]) -> str:
    """Return in which way memory needs repair; empty if it does not."""
    if values.get("remap_failed"):
        return "memory: a row could not be remapped; the GPU should be replaced"
    if values.get("remap_pending") or values.get("pages_retiring"):
        return "memory: a repair is pending until the GPU is reset"
    return ""


def _uncorrectable(values: Mapping[str, float]) -> str:
    errors = values.get("ecc_uncorrected", 0.0)
    return f"memory: {errors:.0f} uncorrectable ECC errors since the driver was loaded" if errors else ""


def links_fault(links_down: Sequence[int]) -> str:
    """Return which NVLinks are down; empty if none is."""
    if not links_down:
        return ""
    return f"NVLink: link {', '.join(map(str, links_down))} is down"


def narrow_link(values: Mapping[str, float], what: str) -> str:
    """Return by how much the bus's ``width`` or ``generation`` is below what slot and board can do, or nothing."""
    is_now, could_be = values.get(f"pcie_{what}", 0.0), values.get(f"pcie_{what}_max", 0.0)
    if not 0 < is_now < could_be:
        return ""
    return f"PCIe: the link's {what} is {is_now:.0f}, but {could_be:.0f} is possible"

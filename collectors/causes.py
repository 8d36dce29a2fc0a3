"""Causes: a table of rules that turn symptoms into a sentence. The first rule that holds gives the cause.

The most certain rules come first: hardware that reports a fault, then a clock that was held back, then other users of
the device.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from laggard.collectors import wording
from laggard.collectors.faults import links_fault, narrow_link, repair_fault

if TYPE_CHECKING:
    from laggard.collectors.symptoms import Symptoms


@dataclass(frozen=True, slots=True)
class Cause:
    """The likely cause of a slowness."""

    kind: str
    detail: str = ""  # the cause with its numbers

    def __str__(self) -> str:
        return wording.cause(self)

    @property
    def is_known(self) -> bool:
        """Whether a rule holds."""
        return self.kind != UNKNOWN.kind

    def to_tag(self) -> str:
        """Return the value of the tag ``cause`` of a sample."""
        return json.dumps([self.kind, self.detail])

    @classmethod
    def of_tags(cls, tags: Mapping[str, str]) -> Cause:
        """Return the cause that a sample's tags give, which may be any."""
        if "cause" not in tags:
            return UNKNOWN
        import orjson  # which where devices are only probed may be missing

        match orjson.loads(tags["cause"]):
            case [str() as kind, str() as detail]:
                return cls(kind, detail[:_LONGEST])
        raise ValueError("its cause is not two texts")


UNKNOWN = Cause("unknown")
UTILISATION, TEMPERATURE, WARMED = "utilisation", "temperature", "warmed"
"""Tags of a probe's samples: how busy the device was before it, in percent; how hot, in °C; whether it had to be warmed
up."""
_LONGEST = 300  # characters
HELD_SHARE = 0.05  # of the time: below this, a clock that was held back does not explain a slowdown worth a verdict
LOWERED_LIMIT = 0.98  # of the default power limit: a smaller difference is rounding

# NVIDIA, "XID Errors": memory that is being repaired or cannot be, and a GPU that has fallen off the bus.
MEMORY_XIDS = frozenset({48, 63, 64, 92, 94, 95})
LOST_XIDS = frozenset({79, 119, 120})
NVLINK_XIDS = frozenset({74})

_NVML = "NVIDIA, NVML API Reference: "
_MEMORY = "NVIDIA, GPU Memory Error Management: "
_XIDS = "NVIDIA, XID Errors: "


@dataclass(frozen=True)
class Rule:
    """One cause."""

    name: str  # the cause in a word or two
    source: str  # the document that gives the symptoms this meaning
    sentence: Callable[[Symptoms], str | None]  # returns the cause with its numbers, or None if the rule does not hold


def cause_of(symptoms: Symptoms) -> Cause:
    """Return the likely cause of a device's slowness."""
    return next((Cause(rule.name, found) for rule in RULES if (found := rule.sentence(symptoms))), UNKNOWN)


def _memory(symptoms: Symptoms) -> str | None:
    now, risen = symptoms.now, symptoms.risen
    if fault := repair_fault(now):
        return fault
    if found := sorted(MEMORY_XIDS.intersection(symptoms.xids)):
        return f"memory: the driver reported XID {found[0]}"
    if errors := risen.get("ecc_uncorrected"):
        return f"memory: {errors:.0f} uncorrectable ECC errors during the round"
    if errors := risen.get("ecc_corrected"):
        return f"memory: {errors:.0f} corrected ECC errors during the round"
    return None


def _lost(symptoms: Symptoms) -> str | None:
    found = sorted(LOST_XIDS.intersection(symptoms.xids))
    return (
        f"GPU: the driver reported XID {found[0]}; the GPU has fallen off the bus or does not answer" if found else None
    )


def _nvlink(symptoms: Symptoms) -> str | None:
    if fault := links_fault(symptoms.links_down):
        return fault
    if found := sorted(NVLINK_XIDS.intersection(symptoms.xids)):
        return f"NVLink: the driver reported XID {found[0]}"
    names = {"nvlink_recoveries": "recoveries", "nvlink_replays": "replays", "nvlink_crc_errors": "CRC errors"}
    counts = [f"{symptoms.risen[name]:.0f} {what}" for name, what in names.items() if symptoms.risen.get(name)]
    return f"NVLink: {', '.join(counts)} during the round" if counts else None


def _cooling(symptoms: Symptoms) -> str | None:
    share = symptoms.held_share("held_by_heat_ns", "held_by_heat_hardware_ns")
    if share < HELD_SHARE:
        return None
    at = symptoms.now.get("temperature_c")
    return f"cooling: the clock was held back by heat for {share:.0%} of the round" + (
        f", at {at:.0f} °C" if at else ""
    )


def _power_brake(symptoms: Symptoms) -> str | None:
    share = symptoms.held_share("held_by_power_brake_ns")
    return f"power supply: the power brake was on for {share:.0%} of the round" if share >= HELD_SHARE else None


def _lowered_limit(symptoms: Symptoms) -> str | None:
    limit_w, default_w = (symptoms.now.get(name, 0.0) for name in ("power_limit_w", "power_limit_default_w"))
    if not 0 < limit_w < LOWERED_LIMIT * default_w:
        return None
    return f"power cap: the limit was set to {limit_w:.0f} W, the board's default is {default_w:.0f} W"


def _pcie(symptoms: Symptoms) -> str | None:
    for what in ("width", "generation"):
        if fault := narrow_link(symptoms.now, what):
            return fault
    replays = symptoms.risen.get("pcie_replays")
    return f"PCIe: {replays:.0f} replays during the round" if replays else None


def _neighbour(symptoms: Symptoms) -> str | None:
    if not symptoms.foreign_pids:
        return None
    pids = ", ".join(map(str, symptoms.foreign_pids[:3])) + (", ..." if len(symptoms.foreign_pids) > 3 else "")
    return f"a neighbour: process {pids} of another job runs on the device; the hardware is not to blame"


def _power_cap(symptoms: Symptoms) -> str | None:
    share = symptoms.held_share("held_by_power_cap_ns")
    if share < HELD_SHARE:
        return None
    at = symptoms.now.get("power_w")
    return f"power cap: the clock was held back for {share:.0%} of the round" + (f", at {at:.0f} W" if at else "")


RULES: tuple[Rule, ...] = (
    Rule("memory", _MEMORY + "row remapping, page retirement; " + _XIDS + "48, 63, 64, 92, 94, 95", _memory),
    Rule("lost", _XIDS + "79, 119, 120", _lost),
    Rule("NVLink", _NVML + "NvLink methods; " + _XIDS + "74", _nvlink),
    Rule("cooling", _NVML + "clocks event reasons, software and hardware thermal slowdown", _cooling),
    Rule("power brake", _NVML + "clocks event reasons, hardware power brake slowdown", _power_brake),
    Rule("lowered power limit", _NVML + "enforced and default power management limit", _lowered_limit),
    Rule("PCIe", _NVML + "current and maximum PCIe link width and generation, replay counter", _pcie),
    Rule("neighbour", _NVML + "running compute processes", _neighbour),
    Rule("power cap", _NVML + "clocks event reasons, software power cap", _power_cap),
)

"""What a probe is: a short test kernel with a purpose, whose time tells how fast one part of a device is now."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from collectors.device import Device

__all__ = ["Probe", "ProbeUnavailableError"]


class ProbeUnavailableError(RuntimeError):
    """The device cannot run the probe: its memory is short, or it has no such part."""


class Probe(ABC):
    """One test kernel on one device.

    A subclass's docstring says what the probe is for, and its ``operations``, ``bytes_moved`` and floor time a repeat.

    Attributes
    ----------
    name
        Readings of one name are compared between devices, so whatever changes the work is part of it.
    operations
        Floating-point operations of one repeat.
    bytes_moved
        Bytes that one repeat reads and writes.
    unit, is_rate, scale
        How people know what the probe measures: the unit, and by what a time is multiplied to get it (or, for a rate,
        what is divided by the time).

    Parameters
    ----------
    device
        Where to run.
    """

    name: str
    operations: float = 0
    bytes_moved: float = 0
    unit: str = "ms"
    is_rate: bool = False
    scale: float = 1e3

    def __init__(self, device: Device) -> None:
        self.device = device

    def prepare(self) -> None:  # noqa: B027 - most have nothing to prepare
        """Put the inputs in place, before the repeats and untimed: probes of a device may share their memory."""

    @abstractmethod
    def kernel(self) -> Any:
        """Do the work of one repeat."""

    def seconds(self) -> float:
        """Run once; return the seconds on the device's clock from submission to end."""
        return self.device.timed(self.kernel)[1]

    def figure(self, seconds: float) -> float:
        """Return a reading in the unit that people know it by."""
        return self.scale / seconds if self.is_rate else seconds * self.scale

    def wrong_results(self) -> int:
        """Check what the last repeat has computed; return how many of its results are wrong."""
        return 0

    def fault(self) -> str:
        """Return in words what the last repeat has computed wrongly, nothing if all was right."""
        count = self.wrong_results()
        return f"wrong results of the probe {self.name}: {count}" if count else ""

"""Probe: a short test kernel whose time shows how fast one part of a device is now."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

from laggard.collectors.device import Device, Timing


class Probe(ABC):
    """One test kernel on one device.

    A subclass's docstring says what the probe is for, and gives the operations, bytes moved and floor time of a repeat.
    """

    # Readings of the same name are compared between devices, so whatever changes the work is part of the name
    name: str
    operations: float = 0  # floating-point operations of one repeat
    bytes_moved: float = 0  # Bytes that one repeat reads and writes
    # How to convert a time to the unit people expect: multiply it by `scale`, or for a rate divide `scale` by it
    unit: str = "ms"
    is_rate: bool = False
    scale: float = 1e3

    def __init__(self, device: Device) -> None:
        self.device = device  # the device to run on
        # How long the last repeat took, by the device's clock and by the host's
        self.timing = Timing(math.nan, math.nan)

    def prepare(self) -> None:  # noqa: B027 - most have nothing to prepare
        """Put the inputs in place before the repeats, untimed: probes of a device may share their memory."""

    @abstractmethod
    def kernel(self) -> Any:
        """Do the work of one repeat."""

    def warm_up(self) -> None:
        """Run for the first time, which loads and tunes the kernels."""
        self.seconds()

    def seconds(self) -> float:
        """Run once; return the seconds from submission to completion."""
        self.timing = self.device.timing(self.kernel)
        return self.timing.seconds

    def figure(self, seconds: float) -> float:
        """Return a reading in ``unit``."""
        return self.scale / seconds if self.is_rate else seconds * self.scale

    def wrong_results(self) -> int:
        """Check what the last repeat computed; return how many of its results are wrong."""
        return 0

    def fault(self) -> str:
        """Describe the wrong results of the last repeat; empty if all were right."""
        count = self.wrong_results()
        return f"wrong results of the probe {self.name}: {count}" if count else ""

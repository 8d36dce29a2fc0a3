"""The map of all devices in ``laggard top``, coloured by a reading: the page's map in characters. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laggard.resilience.views.signs import sign_of_ratio
from laggard.resilience.views.snapshot import DEVICE_READINGS, DeviceReading, DeviceState

_USED = ("primary", "in use")
_RATIOS = {"-": "10 % faster", "·": "as its peers", "+": "10 % slower", "#": "30 %", "@": "twice"}
_SPECIAL = {"X": "found slow", "x": "found slow, not in use", "/": "not in use", "?": "no reading"}


@dataclass(frozen=True, slots=True)
class Colouring:
    """What the map is coloured by; by the probe time against the peers if there is no reading."""

    reading: DeviceReading | None = None
    low: float = 0.0  # the ends of a reading's scale
    high: float = 100.0

    @property
    def label(self) -> str:
        """What it is called."""
        return f"{self.reading.label}, {self.reading.unit}" if self.reading else "probe time against peers"

    def value(self, device: DeviceState) -> float | None:
        """Return what a device is coloured by; None if it was not measured."""
        return device.readings.get(self.reading.name) if self.reading else device.peer_ratio

    def sign_of(self, device: DeviceState) -> str:
        """Return the character of a device's cell."""
        value, is_used = self.value(device), device.role in _USED
        if device.verdict is not None:
            return "X" if is_used else "x"
        if not is_used:
            return "/"
        if value is None:
            return "?"
        if self.reading is None:
            return sign_of_ratio(value)
        return str(max(0, min(9, int(10 * (value - self.low) / ((self.high - self.low) or 1.0)))))

    def meanings(self, signs: Sequence[str]) -> dict[str, str]:
        """Return what the signs on a map mean."""
        scale = _RATIOS
        if self.reading:
            unit = self.reading.unit
            scale = {"0": f"{self.low:,.0f} {unit} to", "9": f"{self.high:,.0f} {unit}"}
        return scale | {sign: meaning for sign, meaning in _SPECIAL.items() if sign in signs}


def colourings(devices: Sequence[DeviceState]) -> list[Colouring]:
    """Return what the map can be coloured by: whatever was measured on some device; percentages go from 0 to 100."""
    found = [Colouring()] if any(device.peer_ratio is not None for device in devices) else []
    for reading in DEVICE_READINGS:
        values = [device.readings[reading.name] for device in devices if reading.name in device.readings]
        if values:
            found.append(Colouring(reading, *(() if reading.unit == "%" else (min(values), max(values)))))
    return found or [Colouring()]


def description(device: DeviceState, by: Colouring) -> str:
    """Return a device's reading in words, as the page does."""
    value = by.value(device) if by.reading else device.probe_s
    if value is None:
        parts = ["no reading"]
    else:
        parts = [f"{value:,.0f} {by.reading.unit}" if by.reading else f"{1000 * value:.2f} ms"]
    if device.peer_ratio is not None:
        parts.append(against_peers(device.peer_ratio))
    if device.verdict is not None:
        parts.append(f"found slow ({device.verdict.of.severity})")
    if device.role not in _USED:
        parts.append(device.role)
    return f"{device.name}: {', '.join(parts)}"


def against_peers(ratio: float) -> str:
    """Return in words how a probe time compares with that of the peers."""
    percent = 100 * (ratio - 1)
    if ratio >= 3:
        return f"{ratio:.1f} times as slow as its peers"
    if abs(percent) < 0.5:
        return "as fast as its peers"
    return f"{abs(percent):.0f} % {'slower' if percent > 0 else 'faster'} than its peers"

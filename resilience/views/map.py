"""The map of all devices in ``laggard top``, coloured by a metric: the page's map in characters. Pure.

Colour is never the only sign: each cell has a character that says the same, for any kind of colour vision and NO_COLOR.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from rich.color import Color
from rich.style import Style
from rich.text import Text

from laggard.resilience.views.grid import Grid
from laggard.resilience.views.snapshot import DeviceState

PEERS = "peers"
READINGS: Mapping[str, tuple[str, str]] = {
    "utilization_percent": ("utilisation", "%"),
    "power_w": ("power", "W"),
    "temperature_c": ("temperature", "°C"),
    "clock_mhz": ("clock", "MHz"),
    "memory_percent": ("memory", "%"),
}
"""What a device's readings are called, and their units."""
# The page's colours (telemetry/page/colours.js): from faster over as fast to slower, and cividis.
_Rgb = tuple[int, int, int]
_DIVERGING: Mapping[float, _Rgb] = {
    0.8: (33, 102, 172),
    0.9: (120, 170, 210),
    1.0: (205, 212, 218),
    1.1: (240, 165, 90),
    1.3: (204, 76, 2),
    2.0: (110, 20, 8),
}
_SEQUENTIAL: Mapping[float, _Rgb] = {
    0.0: (0, 34, 78),
    0.125: (18, 53, 112),
    0.25: (59, 73, 108),
    0.375: (87, 93, 109),
    0.5: (112, 113, 115),
    0.625: (138, 134, 120),
    0.75: (165, 156, 116),
    0.875: (195, 179, 105),
    1.0: (254, 232, 56),
}
# Up to which ratio to the peers which sign stands, what it means, and such a ratio.
_SIGNS = (
    (0.9, "-", "10 % faster", 0.85),
    (1.1, "·", "as its peers", 1.0),
    (1.3, "+", "10 % slower", 1.2),
    (2.0, "#", "30 %", 1.6),
    (math.inf, "@", "twice", 2.0),
)
_SPECIAL = {
    "X": (Style(color="#ffffff", bgcolor="#b3261e", bold=True), "found slow"),
    "x": (Style(color="red", bold=True), "found slow, not in use"),
    "/": (Style(dim=True), "not in use"),
    "?": (Style(dim=True), "no reading"),
}
_SELECTED = Style(reverse=True, bold=True)
_USED = ("primary", "in use")


@dataclass(frozen=True, slots=True)
class Colouring:
    """What the map is coloured by."""

    name: str  # `PEERS`, or the name of a reading
    low: float = 0.0  # the ends of a reading's scale
    high: float = 1.0

    def value(self, device: DeviceState) -> float | None:
        """Return what a device is coloured by; None if it was not measured."""
        return device.peer_ratio if self.name == PEERS else device.readings.get(self.name)

    def share(self, value: float) -> float:
        """Return the place of a reading on its scale, from 0 to 1."""
        if self.high <= self.low:
            return 0.5
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))

    def sign(self, value: float) -> str:
        """Return the character that stands for a value."""
        if self.name == PEERS:
            return next(sign for most, sign, *_ in _SIGNS if value < most)
        return str(min(9, int(10 * self.share(value))))

    def colour(self, value: float) -> _Rgb:
        """Return the colour that stands for a value."""
        if self.name == PEERS:
            return _colour_at(value, _DIVERGING)
        return _colour_at(self.share(value), _SEQUENTIAL)


def choices(devices: Sequence[DeviceState]) -> list[str]:
    """Return what the map can be coloured by: whatever was measured on some device."""
    probed = any(device.peer_ratio is not None for device in devices)
    measured = {name for device in devices for name in device.readings}
    found = [*([PEERS] if probed else []), *(name for name in READINGS if name in measured)]
    return found or [PEERS]


def label_of(name: str) -> str:
    """Return what a colouring is called."""
    return "probe time against peers" if name == PEERS else ", ".join(READINGS[name])


def colouring(devices: Sequence[DeviceState], name: str) -> Colouring:
    """Return the colouring of this name, its scale that of the devices; percentages go from 0 to 100."""
    if name == PEERS:
        return Colouring(PEERS)
    if READINGS[name][1] == "%":
        return Colouring(name, 0.0, 100.0)
    values = [device.readings[name] for device in devices if name in device.readings]
    return Colouring(name, min(values), max(values))


def map_lines(
    devices: Sequence[DeviceState], grid: Grid, by: Colouring, selected: int, top: int, room: int
) -> list[Text]:
    """Return the lines of the map that are in sight."""
    parts: dict[int, list[tuple[int, str, Style]]] = {line: [] for line in range(top, min(top + room, grid.height))}
    for line, column, name in grid.labels:
        if line in parts:
            parts[line].append((column, name, Style()))
    for at, (device, (line, column)) in enumerate(zip(devices, grid.places, strict=True)):
        if line in parts:
            sign, value = sign_of(device, by), by.value(device)
            style = _SPECIAL[sign][0] if sign in _SPECIAL or value is None else filled(by.colour(value))
            parts[line].append((column, sign.rjust(grid.cell), _SELECTED if at == selected else style))
    return [line_of(each) for each in parts.values()]


def sign_of(device: DeviceState, by: Colouring) -> str:
    """Return the character of a device's cell."""
    value, is_used = by.value(device), device.role in _USED
    if device.verdict is not None:
        return "X" if is_used else "x"
    if not is_used:
        return "/"
    return "?" if value is None else by.sign(value)


def legend(devices: Sequence[DeviceState], by: Colouring, width: int) -> list[Text]:
    """Return what the cells mean, in as many lines as it takes."""
    return legend_lines(_meanings(devices, by), width)


def legend_lines(parts: Iterable[tuple[str, Style, str]], width: int) -> list[Text]:
    """Return signs, their styles and their meanings, in as many lines as it takes."""
    lines = [Text()]
    for sign, style, meaning in parts:
        part = Text.assemble((f" {sign} ", style), f" {meaning}")
        if len(lines[-1]) and len(lines[-1]) + 2 + len(part) > width:
            lines.append(Text())
        lines[-1].append("  " if len(lines[-1]) else "").append_text(part)
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _meanings(devices: Sequence[DeviceState], by: Colouring) -> Iterator[tuple[str, Style, str]]:
    if by.name == PEERS:
        for _, sign, meaning, ratio in _SIGNS:
            yield sign, filled(by.colour(ratio)), meaning
    else:
        unit = READINGS[by.name][1]
        yield "0", filled(by.colour(by.low)), f"{by.low:,.0f} {unit} to"
        yield "9", filled(by.colour(by.high)), f"{by.high:,.0f} {unit}"
    signs = {sign_of(device, by) for device in devices}
    yield from ((sign, *what) for sign, what in _SPECIAL.items() if sign in signs)


def description(device: DeviceState, by: Colouring) -> str:
    """Return a device's reading in words, as the page does."""
    parts = []
    if by.name != PEERS:
        value = by.value(device)
        parts.append("no reading" if value is None else f"{value:,.0f} {READINGS[by.name][1]}")
    elif device.probe_s is None:
        parts.append("no reading")
    else:
        parts.append(f"{1000 * device.probe_s:.2f} ms")
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


def line_of(parts: Sequence[tuple[int, str, Style]]) -> Text:
    """Return texts at their columns as one line."""
    line = Text(no_wrap=True)
    for column, text, style in sorted(parts, key=lambda part: part[0]):
        line.append(" " * (column - len(line)))
        line.append(text, style)
    return line


@cache
def filled(background: _Rgb) -> Style:
    """Return a background with black or white on it, whichever is read better."""
    red, green, blue = background
    is_light = 0.299 * red + 0.587 * green + 0.114 * blue > 128
    return Style(color="#000000" if is_light else "#ffffff", bgcolor=Color.from_rgb(red, green, blue))


def _colour_at(value: float, scale: Mapping[float, _Rgb]) -> _Rgb:
    """Return the colour of a value between those of a scale."""
    channels = zip(*scale.values(), strict=True)
    red, green, blue = (round(float(np.interp(value, list(scale), channel))) for channel in channels)
    return red, green, blue

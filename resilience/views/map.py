"""The map of all devices in ``laggard top``, coloured by a reading: the page's map in characters. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby

from laggard.resilience.views.listing import Cell, Column
from laggard.resilience.views.signs import STYLES, sign_of_ratio
from laggard.resilience.views.snapshot import DEVICE_READINGS, DeviceReading, DeviceState

MAX_LABEL = 20  # a longer name of a node is cut, so that some cells fit beside it on the narrowest terminal
CELL = 2  # columns of a device: its sign, and a space before it
_GAP = 2  # columns between two nodes
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

    def sign_of(self, device: DeviceState) -> str:
        """Return the character of a device's cell."""
        value = device.readings.get(self.reading.name) if self.reading else device.peer_ratio
        is_used = device.role in _USED
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


def map_columns(devices: Sequence[DeviceState], by: Colouring, width: int) -> list[Column]:
    """Return the map of devices that are sorted by name: a block for each node, and as many side by side as fit."""
    nodes = [list(group) for _, group in groupby(devices, lambda device: device.host)]
    most = max(map(len, nodes), default=1)
    label = _GAP + min(MAX_LABEL, max((len(node[0].host) for node in nodes), default=0))
    in_line = max(1, min(most, (width - label) // CELL))
    abreast = max(1, width // (label + in_line * CELL))
    lines = -(-most // in_line)  # of each node
    blocks = [_block(node, by, label, in_line, lines) for node in nodes]
    blocks += [_block([], by, label, in_line, lines)] * (-len(blocks) % abreast)
    columns: list[Column] = []
    for place in range(abreast):
        rows = list(chain.from_iterable(blocks[place::abreast]))
        columns += [Column("", [row[at] for row in rows], right=False) for at in range(in_line + 1)]
    return columns if nodes else []


def _block(node: Sequence[DeviceState], by: Colouring, label: int, in_line: int, lines: int) -> list[list[Cell]]:
    """Return the rows of a node's block: its name before the first, and its devices, then nothing."""
    block = []
    for line in range(lines):
        row = [Cell(" " * label)]
        if line == 0 and node:
            host = node[0].host
            host = host if len(host) <= label - _GAP else f"{host[: label - _GAP - 1]}…"
            row = [Cell(f" {host}".ljust(label), name=node[0].name)]
        there = node[line * in_line : (line + 1) * in_line]
        row += [Cell(sign.rjust(CELL), STYLES[sign], each.name) for each in there for sign in [by.sign_of(each)]]
        block.append(row + [Cell(" " * CELL)] * (in_line + 1 - len(row)))
    return block

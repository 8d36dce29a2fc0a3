"""The signs of the map in ``laggard top``, their colours, and what they mean. Pure.

Colour is never the only sign: each cell has a character that says the same, for any kind of colour vision and NO_COLOR.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.color import blend_rgb
from rich.color_triplet import ColorTriplet
from rich.text import Text

_LOWEST, _HIGHEST = ColorTriplet(0, 34, 78), ColorTriplet(254, 232, 56)  # the ends of cividis, as on the page


def _digit(number: int) -> str:
    return f"{'black' if number > 4 else 'white'} on {blend_rgb(_LOWEST, _HIGHEST, number / 9).hex}"


STYLES: Mapping[str, str] = {
    # As on the page (telemetry/page/colours.js): from faster over as fast to slower.
    "-": "white on #4c88bf",
    "·": "black on #cdd4da",
    "+": "black on #de782e",
    "#": "white on #a43405",
    "@": "white on #6e1408",
    **{str(number): _digit(number) for number in range(10)},
    "X": "bold white on #b3261e",
    "x": "bold red",
    "/": "dim",
    "?": "dim",
}


def sign_of_ratio(ratio: float) -> str:
    """Return the sign of a time over the usual one."""
    limits = {"-": 0.9, "·": 1.1, "+": 1.3, "#": 2.0}
    return next((sign for sign, limit in limits.items() if ratio < limit), "@")


def legend(meanings: Mapping[str, str], width: int) -> list[Text]:
    """Return what signs mean, in as many lines as it takes."""
    lines = [Text()]
    for sign, meaning in meanings.items():
        part = Text.assemble((f" {sign} ", STYLES[sign]), f" {meaning}  ")
        if len(lines[-1]) and len(lines[-1]) + len(part) > width:
            lines.append(Text())
        lines[-1].append_text(part)
    return lines

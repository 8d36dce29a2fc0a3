"""The signs of a picture in ``laggard top``, their colours, and what they mean. Pure.

Colour is never the only sign: each cell has a character that says the same, for any kind of colour vision and NO_COLOR.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.color import Color, blend_rgb
from rich.color_triplet import ColorTriplet
from rich.style import Style
from rich.text import Text

_LOWEST, _HIGHEST = ColorTriplet(0, 34, 78), ColorTriplet(254, 232, 56)  # the ends of cividis, as on the page


def _digit(number: int) -> Style:
    background = Color.from_triplet(blend_rgb(_LOWEST, _HIGHEST, number / 9))
    return Style(color="black" if number > 4 else "white", bgcolor=background)


STYLES: Mapping[str, Style] = {
    # As on the page (telemetry/page/colours.js): from faster over as fast to slower.
    "-": Style(color="white", bgcolor="#4c88bf"),
    "·": Style(color="black", bgcolor="#cdd4da"),
    "+": Style(color="black", bgcolor="#de782e"),
    "#": Style(color="white", bgcolor="#a43405"),
    "@": Style(color="white", bgcolor="#6e1408"),
    **{str(number): _digit(number) for number in range(10)},
    "X": Style(color="white", bgcolor="#b3261e", bold=True),
    "x": Style(color="red", bold=True),
    "/": Style(dim=True),
    "?": Style(dim=True),
}


def sign_of_ratio(ratio: float) -> str:
    """Return the sign of a time over the usual one."""
    limits = {"-": 0.9, "·": 1.1, "+": 1.3, "#": 2.0}
    return next((sign for sign, limit in limits.items() if ratio < limit), "@")


def legend(meanings: Mapping[str, str], width: int) -> list[Text]:
    """Return what signs mean, in as many lines as it takes."""
    lines = [Text()]
    for sign, meaning in meanings.items():
        part = Text.assemble((f" {sign} ", STYLES[sign]), f" {meaning}")
        if len(lines[-1]) and len(lines[-1]) + 2 + len(part) > width:
            lines.append(Text())
        lines[-1].append("  " if len(lines[-1]) else "").append_text(part)
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines

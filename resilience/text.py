"""Times, counts and lists formatted for people."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from laggard.node_names import folded


def clock(seconds: float) -> str:
    """Return a time since the beginning: ``0:34``, ``1:02:05``."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def duration(seconds: float) -> str:
    """Return a length of time: ``0.4 s``, ``12 min 30 s``, ``3 h 20 min``."""
    if math.isnan(seconds):
        return "unknown"
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def counted(number: int, one: str, several: str) -> str:
    """Return a number with its noun: ``1 node``, ``2 nodes``."""
    return f"{number:,} {one if number == 1 else several}"


def abbreviated(names: Sequence[str], at_most: int = 6, width: int = 60) -> str:
    """Return names separated by commas; a long list is folded, and if it is still long, only its beginning is shown."""
    for parts in (names, folded(names)):
        if len(parts) <= at_most and len(text := ", ".join(parts)) <= width:
            return text
    shown = _cut(parts[0], width)
    for part in parts[1 : at_most - 2]:
        if len(shown) + 2 + len(part) > width:
            break
        shown += f", {part}"
    if len(parts) > 1:
        shown += ", …"
    return shown if shown == parts[0] else f"{shown} ({len(names)} in all)"


def _cut(part: str, width: int) -> str:
    """Return folded names with the numbers that do not fit left out: ``nid[00001,00003,…]``."""
    if len(part) <= width or "," not in part:
        return part
    end = part.rfind(",", 0, width)
    return f"{part[: end if end > 0 else part.index(',')]},…]"


def wrapped(text: str, width: int, indent: int) -> str:
    """Return text in lines of at most ``width`` columns, all but the first indented; long words stay whole."""
    lines = textwrap.wrap(text, max(20, width - indent), break_long_words=False, break_on_hyphens=False)
    return f"\n{' ' * indent}".join(lines)


def printable(text: object) -> str:
    """Return text that cannot move a terminal's cursor: control characters become spaces."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text))

"""Times and lists as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["clock", "duration", "printable", "some"]


def clock(seconds: float) -> str:
    """Return a time since the beginning: ``0:34``, ``1:02:05``."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def duration(seconds: float) -> str:
    """Return a length of time: ``0.4 s``, ``12 min 30 s``, ``3 h 20 min``."""
    if math.isnan(seconds):
        return "not known"
    if abs(seconds) < 99.95:
        return f"{seconds:.1f} s"
    sign, whole = ("-" if seconds < 0 else ""), round(abs(seconds))
    if whole < 3600:
        return f"{sign}{whole // 60} min {whole % 60} s"
    return f"{sign}{whole // 3600:,} h {whole % 3600 // 60} min"


def some(names: Sequence[str], at_most: int = 6) -> str:
    """Return names with commas; of many only the first, and how many there are."""
    if len(names) <= at_most:
        return ", ".join(names)
    return f"{', '.join(names[: at_most - 2])}, … ({len(names)} in all)"


def printable(text: object) -> str:
    """Return text that changes nothing on a terminal but where it stands: control characters are spaces."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text))

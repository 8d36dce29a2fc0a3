"""Times, counts and lists formatted for people."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["abbreviated", "clock", "counted", "duration", "printable"]


def clock(seconds: float) -> str:
    """Return a time since the beginning: ``0:34``, ``1:02:05``."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def duration(seconds: float) -> str:
    """Return a length of time: ``0.4 s``, ``12 min 30 s``, ``3 h 20 min``."""
    if math.isnan(seconds):
        return "unknown"
    if abs(seconds) < 99.95:
        return f"{seconds:.1f} s"
    sign, whole = ("-" if seconds < 0 else ""), round(abs(seconds))
    if whole < 3600:
        return f"{sign}{whole // 60} min {whole % 60} s"
    return f"{sign}{whole // 3600:,} h {whole % 3600 // 60} min"


def counted(number: int, one: str, several: str) -> str:
    """Return a number with its noun: ``1 node``, ``2 nodes``."""
    return f"{number:,} {one if number == 1 else several}"


def abbreviated(names: Sequence[str], at_most: int = 6) -> str:
    """Return names separated by commas; of a long list, only the first few and the total."""
    if len(names) <= at_most:
        return ", ".join(names)
    return f"{', '.join(names[: at_most - 2])}, … ({len(names)} in all)"


def printable(text: object) -> str:
    """Return text that cannot move a terminal's cursor: control characters become spaces."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text))

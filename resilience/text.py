"""Times, counts and lists formatted for people."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

__all__ = ["abbreviated", "clock", "counted", "duration", "folded", "printable"]

_NUMBERED = re.compile(r"(?P<before>.*?)(?P<digits>[0-9]+)(?P<after>[^0-9]*)", re.DOTALL)


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
    """Return names separated by commas; a long list is folded, and if it is still long, only its beginning is shown."""
    if len(names) <= at_most:
        return ", ".join(names)
    parts = folded(names)
    if len(parts) <= at_most:
        return ", ".join(parts)
    return f"{', '.join(parts[: at_most - 2])}, … ({len(names)} in all)"


def folded(names: Iterable[str]) -> list[str]:
    """Return names with their numbers folded as Slurm does, ``nid[00000-00125]``, each name once.

    Names are folded together if they differ in their last number only, and are written with as many digits.
    """
    matches = {name: _NUMBERED.fullmatch(name) for name in names}
    parts = [match.group("before", "digits", "after") for match in matches.values() if match is not None]
    padded = {
        (before, after, len(digits)) for before, digits, after in parts if len(digits) > 1 and digits.startswith("0")
    }
    numbers: dict[tuple[str, str, int], set[int]] = {}
    for before, digits, after in parts:
        width = len(digits) if (before, after, len(digits)) in padded else 0
        numbers.setdefault((before, after, width), set()).add(int(digits))
    plain = [name for name, match in matches.items() if match is None]
    return [*(_bracketed(*shape, sorted(found)) for shape, found in numbers.items()), *plain]


def _bracketed(before: str, after: str, width: int, numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    shown = ",".join("-".join(f"{each:0{width}}" for each in dict.fromkeys((run[0], run[-1]))) for run in runs)
    return f"{before}{shown}{after}" if len(numbers) == 1 else f"{before}[{shown}]{after}"


def printable(text: object) -> str:
    """Return text that cannot move a terminal's cursor: control characters become spaces."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text))

"""Names of many nodes in few words: their numbers folded as Slurm does, ``nid[00000-00125]``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_NUMBERED = re.compile(r"(?P<before>.*?)(?P<digits>[0-9]+)(?P<after>[^0-9]*)", re.DOTALL)
_FOLDED = re.compile(r"(.*)\[([0-9,-]+)\](.*)", re.DOTALL)
# So many names are listed as they are.
_FEW = 6


def joined(names: Sequence[str]) -> str:
    """Return all names as one text, from which :func:`parted` gets them again; the first stays the first."""
    parts = names if len(names) <= _FEW else [names[0], *folded(names[1:])]
    return ", ".join(parts)


def parted(text: str) -> list[str]:
    """Return the names in a text of :func:`joined`."""
    return [name for part in text.split(", ") if part for name in unfolded(part)]


def folded(names: Iterable[str]) -> list[str]:
    """Return names with their numbers folded as Slurm does, ``nid[00000-00125]``, each name once."""
    # Names are folded together if they differ in their last number only, and are written with as many digits.
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


def unfolded(part: str) -> list[str]:
    """Return the names that a folded part stands for."""
    match = _FOLDED.fullmatch(part)
    if match is None:
        return [part]
    before, runs, after = match.groups()
    ends = [(first, last or first) for first, _, last in (run.partition("-") for run in runs.split(","))]
    return [
        f"{before}{number:0{len(first)}}{after}" for first, last in ends for number in range(int(first), int(last) + 1)
    ]

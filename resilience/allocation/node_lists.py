"""Lists of nodes as Slurm and its users write them: ``nid[001-003,007]-ib,login1``. Pure."""

from __future__ import annotations

import itertools
import math
import re

from laggard.resilience.errors import UsageError

# More than any cluster has; an end with a digit too many must not fill the memory.
MAX_NODES = 100_000
_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")
_GROUP = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def split_list(text: str) -> list[str]:
    """Return what commas outside of brackets separate; empty entries are left out."""
    return [entry for part in _COMMA_OUTSIDE_BRACKETS.split(text) if (entry := part.strip())]


def expand_node_list(text: str) -> list[str]:
    """Return the names that a list stands for, in order; with several bracket groups the last one varies first."""
    return [name for entry in split_list(text) for name in _names_of(entry)]


def _names_of(entry: str) -> list[str]:
    words = _GROUP.split(entry)  # text, group, text, group, ..., text
    if any(bracket in text for text in words[::2] for bracket in "[]"):
        raise UsageError(repr(entry), "has a bracket without its counterpart", "write ranges as node[01-16,20]")
    parts = [_numbers(word, entry) if place % 2 else [word] for place, word in enumerate(words)]
    if (size := math.prod(map(len, parts))) > MAX_NODES:
        raise UsageError(repr(entry), f"stands for {size} nodes", f"give at most {MAX_NODES}")
    return ["".join(choice) for choice in itertools.product(*parts)]


def _numbers(group: str, entry: str) -> list[str]:
    """Return the numbers of a bracket group, each as long as the first of its range."""
    numbers: list[str] = []
    for part in group.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise UsageError(repr(entry), f"has {part!r} for a range", "write ranges as node[01-16,20]")
        first, last = match.group(1), match.group(2) or match.group(1)
        if not 0 <= int(last) - int(first) < MAX_NODES:
            raise UsageError(
                repr(entry), f"has the range {part}", f"give at most {MAX_NODES} numbers, from low to high"
            )
        numbers += [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
    return numbers

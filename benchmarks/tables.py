"""Tables in Markdown, as the documents print them."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["table"]


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """Lay out a Markdown table; returns its lines."""
    lines = [list(map(str, head)), *([str(cell) for cell in row] for row in rows)]
    return ["| " + " | ".join(line) + " |" for line in (lines[0], ["---"] * len(lines[0]), *lines[1:])]

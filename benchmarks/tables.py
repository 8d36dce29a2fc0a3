"""Markdown tables, as used in the documents."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["table"]


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [list(map(str, head)), *([str(cell) for cell in row] for row in rows)]
    return ["| " + " | ".join(line) + " |" for line in (lines[0], ["---"] * len(lines[0]), *lines[1:])]

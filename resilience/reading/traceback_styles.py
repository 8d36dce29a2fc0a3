"""Tracebacks as other libraries draw them, turned into Python's own, of which the reason is read. Pure.

rich draws a box (so do typer and whatever installs rich's tracebacks), and loguru points at the frame that caught it.
Ray leaves out the first line, as does whoever cuts an output.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

BEGIN = "Traceback (most recent call last):"
_BOX_BEGINS = re.compile(r"^╭─+ Traceback \(most recent call last\) ─+╮$")
_PYTHONS_FRAME = re.compile(r'\s*File ".+", line \d+, in ')
FRAME = re.compile(r'\s*(?:> )?(?:File )?"?(\S.*?)"?(?:, line |:)\d+,? in ([^(\s]+)')
_ERROR = re.compile(
    r"(\w+\.)*\w*(Error|Exception|Exit|Interrupt|Group|Fault|Empty|Full|Timeout)(\(\w+\))?(:|$)"
    r"|(\w+\.)+\w*(error|timeout)(:|$)"
)


def names_error(line: str) -> bool:
    """Return whether a line begins with the name of an exception, as the last one of a traceback does."""
    return _ERROR.match(line) is not None


def in_pythons_style(lines: Sequence[str]) -> Iterator[str]:
    """Return clean lines with their tracebacks as Python would have written them."""
    is_open = False
    for line in lines:
        if line.startswith(("│", "╰", "> File ")):  # in a box, or pointed at: indented, it is a frame or its code
            yield f"  {line.strip('│ ')}"
        elif _BOX_BEGINS.match(line):
            yield BEGIN
        else:
            if not is_open and _PYTHONS_FRAME.match(line):
                yield BEGIN
                is_open = True
            # Other output may stand between frames: only the name of an error ends them.
            is_open = line.startswith(BEGIN) or (is_open and not names_error(line))
            yield line

"""Tracebacks as other libraries draw them, turned into Python's own, of which the reason is read. Pure.

rich draws a box (so do typer and whatever installs rich's tracebacks), IPython (and so Jupyter) puts the name of the
error into the first line, and loguru points at the frame that caught it. All of them quote code around each frame, and
that code may name any error. Ray leaves out the first line, as does whoever cuts an output.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

BEGIN = "Traceback (most recent call last):"
_BOX_BEGINS = re.compile(r"^╭─+ Traceback \(most recent call last\) ─+╮$")
_BOX_ENDS = re.compile(r"^╰─+╯$")
_BOX_FRAME = re.compile(r"^(?P<file>\S.*):(?P<line>\d+) in (?P<function>\S+)$")
_IPYTHON_BEGINS = re.compile(r"^(?P<error>[\w.]+) {2,}Traceback \(most recent call last\)$")
_IPYTHON_FRAME = re.compile(
    r"^(?:File )?(?P<file>Cell In ?\[\d+\]|\S.*?)(?:, line |:)(?P<line>\d+)(?:, in (?P<function>[^(\s]+).*)?$"
)
_CAUGHT_HERE = "> File "
FRAME = re.compile(r'\s*File "(.+)", line (\d+), in (.+)')
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
    for line in _drawn_by_python(lines):
        if not is_open and FRAME.match(line):
            yield BEGIN
            is_open = True
        # Other output may stand between frames: only the name of an error ends them.
        is_open = line.startswith(BEGIN) or (is_open and not names_error(line))
        yield line


def _drawn_by_python(lines: Sequence[str]) -> Iterator[str]:
    rest = iter(lines)
    for line in rest:
        if _BOX_BEGINS.match(line):
            yield BEGIN
            yield from _frames_of_box(rest)
        elif begins := _IPYTHON_BEGINS.match(line):
            yield BEGIN
            yield from _frames_of_ipython(rest, begins["error"])
        elif line.startswith(_CAUGHT_HERE):
            yield f"  {line.removeprefix('> ')}"
        else:
            yield line


def _frames_of_box(lines: Iterator[str]) -> Iterator[str]:
    begun = ""  # a long path goes on in the next line
    for line in lines:
        if _BOX_ENDS.match(line):
            return
        text = line.strip("│ ")
        if frame := _BOX_FRAME.match(begun + text):
            yield _frame(frame)
        begun = begun + text if not frame and (begun or text).startswith("/") else ""


def _frames_of_ipython(lines: Iterator[str], error: str) -> Iterator[str]:
    for line in lines:
        if line == error or line.startswith(f"{error}:"):
            yield line
            return
        if frame := _IPYTHON_FRAME.match(line):
            yield _frame(frame)


def _frame(match: re.Match[str]) -> str:
    return f'  File "{match["file"]}", line {match["line"]}, in {match["function"] or "<module>"}'

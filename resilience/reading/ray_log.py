"""Why Ray's processes have ended, in the words of their logs."""

from __future__ import annotations

import re
from collections.abc import Iterable

# `[2026-11-28 20:27:31,749 C 18162 18162] (raylet) grpc_server.cc:134:  ...`, of which the C says that it is fatal.
_FATAL = re.compile(r"^\[[^\]]* C \d+ \d+\] (?P<text>.*)$", re.MULTILINE)
_ADVICE = re.compile(r" +An unexpected system state has occurred.*?(?=Check failed)")
# `2026-11-28 20:27:27,427	INFO scripts.py:1043 -- ...`
_ROUTINE = re.compile(r"^\S+ \S+\s+(INFO|DEBUG)\b")
_MAX_CHARACTERS = 300


def why_ray_ended(parts: Iterable[str], command: str) -> str:
    """Return the fatal line of one of Ray's parts, or else the last one of ``ray start`` that is not routine."""
    for text in parts:
        if fatal := _FATAL.search(text):
            return _ADVICE.sub(" ", fatal["text"])[:_MAX_CHARACTERS]
    lines = [line.strip() for line in command.splitlines() if line.strip() and not _ROUTINE.match(line)]
    return lines[-1][:_MAX_CHARACTERS] if lines else ""

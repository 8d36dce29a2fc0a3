"""What ranks can be forked from a warm process. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

Preload = Literal["auto", "none"]
"""What warm processes load; ``auto``: what the last launch has loaded; ``none``: there are none."""

_PYTHON = re.compile(r"python(3(\.\d+)?)?")
# Options of Python's that take no argument, and with which our code runs at its start.
_HARMLESS = re.compile(r"-[uOBsq]+")


def can_be_warm(command: Sequence[str]) -> bool:
    """Return whether a command line runs a Python that runs our code at its start, and then a program."""
    program = next(itertools.dropwhile(_HARMLESS.fullmatch, command[1:]), "")
    is_program = program in ("-m", "-c") or (program.endswith(".py") and not program.startswith("-"))
    return is_program and _PYTHON.fullmatch(Path(command[0]).name) is not None

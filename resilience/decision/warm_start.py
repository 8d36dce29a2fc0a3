"""What ranks can be forked from a warm process, and what that process is for. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from laggard.resilience.errors import UsageError

Preload = tuple[str, ...] | Literal["auto"] | None
"""Modules that warm processes load; ``auto``: those that the last launch has loaded; None: there are none."""

_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
# Options after which an argument follows, and those with which our code does not run at Python's start.
_WITH_ARGUMENT = "WX"
_WITHOUT_HOOK = "EIS"
_BEGINS_PROGRAM = "cm"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a warm process is for."""

    command: tuple[str, ...]  # command line of the program, which begins with a Python
    environment: Mapping[str, str]  # all variables that its ranks have in common
    varying: tuple[str, ...]  # names of the variables that each launch or rank has its own of
    directory: str  # the ranks' working directory
    modules: tuple[str, ...]  # modules to load if they are installed libraries
    asked: tuple[str, ...] = ()  # modules to load in any case

    def difference(self, command: Sequence[str], environment: Mapping[str, str], directory: str) -> str:
        """Return in what a process that is to start differs from what this one is for; empty: in nothing that counts.

        Parameters
        ----------
        command, directory
            Its command line and working directory.
        environment
            All of its variables.
        """
        if tuple(command) != self.command:
            return "the warm process is for another command"
        if directory != self.directory:
            return f"the warm process is in {self.directory}"
        mine, other = self._common(self.environment), self._common(environment)
        if changed := sorted(name for name in {*mine, *other} if mine.get(name) != other.get(name)):
            return f"the warm process has another {', '.join(changed)}"
        return ""

    def _common(self, environment: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in environment.items() if name not in self.varying}


def can_be_warm(command: Sequence[str]) -> bool:
    """Return whether a command line runs a Python that runs our code at its start, and then a program."""
    if not _PYTHON.fullmatch(Path(command[0]).name):
        return False
    words = iter(command[1:])
    for word in words:
        if word == "-":
            return False  # the program is read from standard input
        if not word.startswith("-"):
            return word.endswith(".py")  # a folder or an archive has other rules
        if word.startswith("--"):
            return False
        for position, letter in enumerate(word[1:], 1):
            if letter in _WITHOUT_HOOK or letter in "ihVx?":
                return False
            if letter in _BEGINS_PROGRAM:
                return True
            if letter in _WITH_ARGUMENT:
                if position == len(word) - 1:
                    next(words, None)
                break
    return False


def parse_preload(given: str) -> Preload:
    """Return what ``--preload`` says."""
    if given in ("auto", "none"):
        return "auto" if given == "auto" else None
    names = tuple(filter(None, (name.strip() for name in given.split(","))))
    wrong = next((name for name in names if not _MODULE.fullmatch(name)), None if names else given)
    if wrong is not None:
        raise UsageError(
            f"--preload={wrong}", "is not the name of a module", "use torch,transformers, or auto, or none"
        )
    return names

"""Looking at processes that may end while one looks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TypeVar

import psutil

__all__ = ["HIDDEN", "command_line", "command_lines", "is_alive", "seen_of"]

T = TypeVar("T")

# What a look raises: at a process that has ended, and at one of another user or one that is just ending.
HIDDEN = (psutil.NoSuchProcess, psutil.AccessDenied)


def seen_of(processes: Iterable[psutil.Process], look: Callable[[psutil.Process], T]) -> list[T]:
    """Return what a look at each process shows; those that ended meanwhile or are not ours are left out."""
    seen = []
    for process in processes:
        with contextlib.suppress(*HIDDEN):
            seen.append(look(process))
    return seen


def command_line(process: psutil.Process) -> str:
    """Return the command line of a process, or an empty text if it has ended."""
    return next(iter(command_lines([process])), "")


def command_lines(processes: Iterable[psutil.Process]) -> list[str]:
    """Return the command lines of the processes that have not ended."""
    return seen_of(processes, lambda process: " ".join(process.cmdline()))


def is_alive(process: psutil.Process) -> bool:
    """Whether a process is there; a zombie is not."""
    return seen_of([process], lambda each: each.status() != psutil.STATUS_ZOMBIE) == [True]

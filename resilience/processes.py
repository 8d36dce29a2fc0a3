"""Ending processes so that none is left: by descent, which a process cannot shake off.

A process that has called :func:`adopt_orphans` becomes the parent of every descendant whose own parent ends, however
often it forked and whatever session it made; so walking its children finds all that it ever started.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Iterable

import psutil

__all__ = ["adopt_orphans", "end_descendants", "environment_of", "reap_orphans"]

_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.02

_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Make this process the new parent of its descendants' orphans (``PR_SET_CHILD_SUBREAPER``, Linux)."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def environment_of(process: psutil.Process) -> dict[str, str]:
    """Return the environment that a process was started with; empty where it has ended."""
    with contextlib.suppress(psutil.Error):
        return dict(process.environ())
    return {}


def reap_orphans(own: Iterable[int]) -> None:
    """Collect the exit status of ended children that were adopted; ``own`` are those that this process has started."""
    started = set(own)
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if child.pid not in started and child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)


def end_descendants(
    chosen: Callable[[psutil.Process], bool] = lambda _: True,
    *,
    deadline_s: float,
) -> int:
    """Kill every chosen descendant of this process and return how many there were.

    Looks again until it finds none: a process may fork while we look. Collects no exit status: whoever started a
    process does that.

    Parameters
    ----------
    chosen
        Whether a process is to be ended.
    deadline_s
        When to give up, in seconds.

    Raises
    ------
    TimeoutError
        If some are still there at the deadline.
    """
    until_s = time.monotonic() + deadline_s
    ended: set[int] = set()
    while True:
        found = [process for process in _living_descendants() if chosen(process)]
        if not found:
            return len(ended)
        if time.monotonic() > until_s:
            raise TimeoutError(f"processes {[process.pid for process in found]} could not be ended in {deadline_s} s")
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
            ended.add(process.pid)
        time.sleep(_POLL_S)


def _living_descendants() -> list[psutil.Process]:
    living = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
    return living

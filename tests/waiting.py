"""Waiting for what must come: the only poll of the tests, and a gate at which a program under test waits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["DEADLINE_S", "Gate", "wait_until"]

# Bounds a hang; on a quiet machine a test takes a tenth of it.
DEADLINE_S = 120.0
PAUSE_S = 0.02


def wait_until(
    done: Callable[[], object],
    complaint: Callable[[], str] = lambda: "it did not happen in time",
    deadline_s: float = DEADLINE_S,
) -> None:
    """Poll until something holds; fail with the complaint if it does not hold in time."""
    until_s = time.monotonic() + deadline_s
    while not done():
        assert time.monotonic() < until_s, complaint()
        time.sleep(PAUSE_S)


class Gate:
    """A named pipe: a program that reads a line of it waits until the test opens the gate.

    Parameters
    ----------
    path
        Where to make it.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)
        self._pipe = os.open(path, os.O_RDWR)  # both ends, so that neither side waits to open it

    def open(self, line: str = "") -> None:
        """Let one reader go on, and tell it something."""
        os.write(self._pipe, f"{line}\n".encode())

"""Checkups of this machine's devices in a process that may get stuck: each answer has a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from collectors.checkup import Checkup

__all__ = ["checkups_here"]

# Loading a driver and compiling the probes takes seconds the first time; after that a device takes about one.
FIRST_ANSWER_S = 30.0
NEXT_ANSWER_S = 10.0
KILLED_WITHIN_S = 1.0
_EVERY_DEVICE = "all"


def checkups_here(
    environ: Mapping[str, str], first_answer_s: float = FIRST_ANSWER_S, next_answer_s: float = NEXT_ANSWER_S
) -> Iterator[Checkup]:
    """Yield the checkups of this machine's devices, one after the other.

    A device that does not answer in time is told as such, and the next ones go on in a new process.

    Parameters
    ----------
    environ
        Tells which devices there are.
    first_answer_s, next_answer_s
        How long to wait for the first device of a process, and for each of the others.
    """
    left: list[str] | None = None
    while left is None or left:
        with _Checking(left or (), environ) as checking:
            try:
                names = json.loads(checking.line(first_answer_s))
            except TimeoutError as error:
                yield Checkup(_EVERY_DEVICE, trouble=f"the driver does not tell which devices there are: {error}")
                return
            left = names if left is None else left
            wait_s = first_answer_s
            while left:
                gpu = left.pop(0)
                try:
                    yield Checkup.from_json(checking.line(wait_s))
                except TimeoutError as error:
                    yield Checkup(gpu, trouble=str(error))
                    break
                wait_s = next_answer_s


class _Checking:
    """The process, and its lines."""

    def __init__(self, names: Sequence[str], environ: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "collectors.checkup", *names], stdout=subprocess.PIPE, env=dict(environ)
        )
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        self._pipe = self._process.stdout
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        # One that is stuck in the kernel ends when the driver lets go of it, which may be never.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILLED_WITHIN_S)
        self._pipe.close()

    def line(self, wait_s: float) -> bytes:
        """Return the next line; a TimeoutError if none comes in time, or the process has ended."""
        until_s = time.monotonic() + wait_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, until_s - time.monotonic())):
                    raise TimeoutError(f"no answer within {wait_s:g} s")
                read = os.read(self._pipe.fileno(), 65536)
                if not read:
                    raise TimeoutError(f"its checkup ended with exit code {self._process.wait(KILLED_WITHIN_S)}")
                self._rest += read
        line, self._rest = self._rest.split(b"\n", 1)
        return line

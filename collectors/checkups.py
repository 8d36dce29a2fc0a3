"""Checkups of this machine's devices in a process that may get stuck: each answer has a deadline.

``python -m collectors.checkups [--virtual-gpus K]`` prints them, a line of JSON each, for who asks from another node.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from collectors.checkup import Checkup
from collectors.device import VIRTUAL_DEVICE_DIR, VIRTUAL_DEVICES

__all__ = ["ALL_DEVICES", "checkups_here", "device_environment"]

# Loading a driver and compiling the probes takes seconds the first time; after that a device takes about one.
FIRST_ANSWER_S = 30.0
NEXT_ANSWER_S = 10.0
KILLED_WITHIN_S = 1.0
ALL_DEVICES = "all"
"""The name of what troubles all devices of a machine."""


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
                yield Checkup(ALL_DEVICES, trouble=f"the driver does not tell which devices there are: {error}")
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


def device_environment(virtual_gpus: int, directory: str) -> dict[str, str]:
    """Return the environment in which a process finds so many virtual devices, or the machine's GPUs with 0 of them.

    Parameters
    ----------
    virtual_gpus
        How many.
    directory
        Where virtual devices keep their queues.
    """
    if virtual_gpus == 0:
        return dict(os.environ)
    one_core_each = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return os.environ | {VIRTUAL_DEVICES: str(virtual_gpus), VIRTUAL_DEVICE_DIR: directory} | one_core_each


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


def main(argv: Sequence[str]) -> int:
    """Print the checkups of this machine's devices."""
    parser = argparse.ArgumentParser(prog="python -m collectors.checkups")
    parser.add_argument("--virtual-gpus", type=int, default=0, metavar="K")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="laggard-checkups-") as directory:
        for checkup in checkups_here(device_environment(given.virtual_gpus, directory)):
            print(checkup.to_json(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

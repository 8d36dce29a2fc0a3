"""Checks this machine's devices in a child process, with a deadline for each answer, because a driver may hang.

``python -m laggard.collectors.supervised_check [--virtual-gpus K]`` prints each check as a line of JSON, for remote
checks from another node.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from laggard.collectors.device import VIRTUAL_DEVICE_DIR, VIRTUAL_DEVICES
from laggard.collectors.device_check import ALL_DEVICES, DeviceCheck

__all__ = ["check_devices_here", "device_environment"]

# The first device includes loading the driver and compiling the probes; each of the others takes about a second.
FIRST_ANSWER_DEADLINE_S = 30.0
NEXT_ANSWER_DEADLINE_S = 10.0
KILL_DEADLINE_S = 1.0


def check_devices_here(
    environ: Mapping[str, str],
    first_answer_s: float = FIRST_ANSWER_DEADLINE_S,
    next_answer_s: float = NEXT_ANSWER_DEADLINE_S,
) -> Iterator[DeviceCheck]:
    """Yield the check of each of this machine's devices, one after the other.

    A device that does not answer in time, or whose check fails, gets a check that says so, and the others are checked
    in a new process.

    Parameters
    ----------
    environ
        Environment of the child process; says which devices there are.
    first_answer_s, next_answer_s
        How long to wait for the first device of a process, and for each later one.
    """
    left: list[str] | None = None
    while left is None or left:
        with _CheckProcess(left or (), environ) as process:
            try:
                names = json.loads(process.line(first_answer_s))
            except TimeoutError as error:
                yield DeviceCheck(ALL_DEVICES, trouble=f"the driver does not list its devices: {error}")
                return
            except EOFError as error:
                yield DeviceCheck(ALL_DEVICES, failure=f"the devices cannot be listed: {error}")
                return
            left = names if left is None else left
            wait_s = first_answer_s
            while left:
                gpu = left.pop(0)
                check = process.check(gpu, wait_s)
                yield check
                if check.trouble or check.failure:
                    break
                wait_s = next_answer_s


def device_environment(virtual_gpus: int, directory: str) -> dict[str, str]:
    """Return the environment in which a process finds that many virtual devices, or with 0 the machine's GPUs.

    Parameters
    ----------
    virtual_gpus
        Number of virtual devices.
    directory
        Where virtual devices keep their queues and clocks.
    """
    if virtual_gpus == 0:
        return dict(os.environ)
    one_core_each = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return os.environ | {VIRTUAL_DEVICES: str(virtual_gpus), VIRTUAL_DEVICE_DIR: directory} | one_core_each


class _CheckProcess:
    """A child process that checks devices, and the lines it prints."""

    def __init__(self, names: Sequence[str], environ: Mapping[str, str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed on exit
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "laggard.collectors.device_check", *names],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=dict(environ),
        )
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        self._pipe = self._process.stdout
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        # A process that hangs in the driver ends when the driver returns, which may be never.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_DEADLINE_S)
        self._pipe.close()
        self._errors.close()

    def check(self, gpu: str, wait_s: float) -> DeviceCheck:
        """Return the next check, which is of this device."""
        try:
            return DeviceCheck.from_json(self.line(wait_s))
        except TimeoutError as error:
            return DeviceCheck(gpu, trouble=str(error))
        except EOFError as error:
            return DeviceCheck(gpu, failure=str(error))

    def line(self, wait_s: float) -> bytes:
        """Return the next line.

        Raises
        ------
        TimeoutError
            If there is none in time.
        EOFError
            If the process has ended.
        """
        until_s = time.monotonic() + wait_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, until_s - time.monotonic())):
                    raise TimeoutError(f"no answer within {wait_s:g} s")
                read = os.read(self._pipe.fileno(), 65536)
                if not read:
                    raise EOFError(self._end())
                self._rest += read
        line, self._rest = self._rest.split(b"\n", 1)
        return line

    def _end(self) -> str:
        exit_code = self._process.wait(KILL_DEADLINE_S)
        how = f"exit code {exit_code}" if exit_code >= 0 else signal.Signals(-exit_code).name
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"the check ended with {how}" + (f": {lines[-1]}" if lines else "")


def main(argv: Sequence[str]) -> int:
    """Print the checks of this machine's devices."""
    parser = argparse.ArgumentParser(prog="python -m laggard.collectors.supervised_check")
    parser.add_argument("--virtual-gpus", type=int, default=0, metavar="K")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="laggard-checks-") as directory:
        for check in check_devices_here(device_environment(given.virtual_gpus, directory)):
            print(check.to_json(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A node's processes for meetings by NCCL: one for each GPU, new ones for each meeting."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from laggard.collectors.answering_process import AnsweringProcess

__all__ = ["NcclProcesses", "nccl_version"]

_MODULE = "laggard.collectors.links.nccl_burst"


class NcclProcesses:
    """The processes of the GPUs that are in a meeting now."""

    def __init__(self) -> None:
        self._running: dict[str, AnsweringProcess] = {}

    def ask(
        self, commands: Mapping[str, object], within_s: float, environ: Mapping[str, str] | None = None
    ) -> dict[str, dict[str, Any]]:
        """Send each GPU's process a command, and return their answers, and why there are others of which there is none.

        A process that has not answered in time is ended.

        Parameters
        ----------
        commands
            By the GPU's name.
        within_s
            How long to wait for all of the answers.
        environ
            Variables of new processes, which begin a meeting and end the one before; None: go on with it.
        """
        if environ is not None:
            self.close()
            self._running = {gpu: AnsweringProcess(_MODULE, [gpu], {**os.environ, **environ}) for gpu in commands}
        for gpu, command in commands.items():
            self._running[gpu].say(json.dumps(command))
        until_s = time.monotonic() + within_s
        answers: dict[str, Any] = {}
        failures: dict[str, str] = {}
        for gpu in commands:
            try:
                answers[gpu] = json.loads(self._running[gpu].line(until_s - time.monotonic()))
            except TimeoutError:
                failures[gpu] = f"no answer within {within_s:g} s"
            except EOFError as error:
                failures[gpu] = str(error)
        for gpu in failures:
            self._running.pop(gpu).close()
        return {"answers": answers, "failures": failures}

    def close(self) -> None:
        """End the meeting."""
        for process in self._running.values():
            process.kill()
        while self._running:  # each has a GPU's memory to give back
            self._running.popitem()[1].close()


def nccl_version() -> int:
    """Return the version of the NCCL that CuPy has loaded, 22703 for 2.27.3; 0 if it finds none."""
    from cupy.cuda import nccl

    return int(nccl.get_version()) if nccl.available else 0

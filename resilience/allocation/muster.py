"""Hearing the first word of all nodes' agents, or why it does not come."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from typing import IO, cast

__all__ = ["Candidate", "Greeting", "hear_greetings"]

# By then a node that cannot be reached has failed; one that is only slow gets more time, unless another has failed.
REFUSAL_S = 10.0
ANSWER_S = 60.0
# A login shell may say something first.
MAX_LINES = 200


@dataclass(frozen=True, slots=True)
class Greeting:
    """What a node has.

    Attributes
    ----------
    n_cpus
        Processors that it gives us.
    gpus
        Names of its GPUs, as ``CUDA_VISIBLE_DEVICES`` calls them there.
    """

    n_cpus: int
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """An agent on its way.

    Attributes
    ----------
    process
        The transport's process here.
    complaints
        A file with what the transport wrote on standard error.
    """

    process: subprocess.Popen[bytes]
    complaints: IO[bytes]

    def greeting(self) -> Greeting | None:
        """Wait for the agent's first word; None if it ends without one."""
        for line in islice(cast("IO[bytes]", self.process.stdout), MAX_LINES):
            if line.startswith(b'{"event": "greeting"'):
                said = json.loads(line)
                return Greeting(int(said["cpus"]), tuple(map(str, said["gpus"])))
        return None

    def complaint(self) -> str:
        """Return the last line on standard error."""
        self.complaints.seek(0)
        lines = self.complaints.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "not a word")

    def accept(self) -> subprocess.Popen[bytes]:
        """Hand the agent over."""
        self.complaints.close()
        return self.process

    def dismiss(self) -> None:
        """Let the agent go: it ends when its pipe closes."""
        self.complaints.close()
        self.process.kill()
        self.process.communicate()


def hear_greetings(candidates: Mapping[str, Candidate]) -> dict[str, Greeting]:
    """Return the greetings of those that answer in time; the others are ended."""
    if not candidates:
        return {}
    with ThreadPoolExecutor(len(candidates), "muster") as readers:
        hearing = {host: readers.submit(candidate.greeting) for host, candidate in candidates.items()}
        try:
            heard, late = wait(hearing.values(), REFUSAL_S)
            if late and all(future.result() is not None for future in heard):
                wait(late, ANSWER_S - REFUSAL_S)
        finally:
            for host, future in hearing.items():
                if not future.done():
                    candidates[host].process.kill()  # its reader then finds the end of the pipe
    greetings = {host: future.result() for host, future in hearing.items()}
    return {host: greeting for host, greeting in greetings.items() if greeting is not None}

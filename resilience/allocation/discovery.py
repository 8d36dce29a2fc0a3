"""Discovery: wait for the handshakes of all remote agents, or find out why they do not come.

A handshake is the first message of an agent, sent by :mod:`laggard.resilience.agent.handshake`: what its node has.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from typing import IO, cast

__all__ = ["Handshake", "PendingAgent", "await_handshakes"]

# An unreachable node has failed by then. Nodes that are only slow get until ANSWER_S, unless another one has failed.
REFUSAL_S = 10.0
ANSWER_S = 60.0
# A login shell may print something first.
MAX_LINES = 200


@dataclass(frozen=True, slots=True)
class Handshake:
    """What a node has, as its agent reports it.

    Attributes
    ----------
    n_cpus
        Number of processors that we may use.
    gpus
        Names of its GPUs, as in ``CUDA_VISIBLE_DEVICES`` there.
    """

    n_cpus: int
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PendingAgent:
    """An agent that was started and has not sent its handshake yet.

    Attributes
    ----------
    process
        The process of ``srun`` or ``ssh`` on this machine.
    stderr
        A file with what that process has written to standard error.
    """

    process: subprocess.Popen[bytes]
    stderr: IO[bytes]

    def handshake(self) -> Handshake | None:
        """Wait for the handshake and return it; None if the agent ends without one."""
        for line in islice(cast("IO[bytes]", self.process.stdout), MAX_LINES):
            if line.startswith(b'{"event": "handshake"'):
                message = json.loads(line)
                return Handshake(int(message["cpus"]), tuple(map(str, message["gpus"])))
        return None

    def last_stderr_line(self) -> str:
        """Return the last line of standard error."""
        self.stderr.seek(0)
        lines = self.stderr.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it printed no error")

    def hand_over(self) -> subprocess.Popen[bytes]:
        """Return the process, now that the agent runs."""
        self.stderr.close()
        return self.process

    def cancel(self) -> None:
        """End the agent, which happens when its pipe closes."""
        self.stderr.close()
        self.process.kill()
        self.process.communicate()


def await_handshakes(pending: Mapping[str, PendingAgent]) -> dict[str, Handshake]:
    """Return the handshakes of the agents that answer in time; the others are killed."""
    if not pending:
        return {}
    with ThreadPoolExecutor(len(pending), "discover") as readers:
        futures = {host: readers.submit(agent.handshake) for host, agent in pending.items()}
        try:
            done, late = wait(futures.values(), REFUSAL_S)
            if late and all(future.result() is not None for future in done):
                wait(late, ANSWER_S - REFUSAL_S)
        finally:
            for host, future in futures.items():
                if not future.done():
                    pending[host].process.kill()  # its reader then finds the end of the pipe
    handshakes = {host: future.result() for host, future in futures.items()}
    return {host: handshake for host, handshake in handshakes.items() if handshake is not None}

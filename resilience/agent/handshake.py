"""The first process on a remote node: reports what the node has, then becomes its agent.

It is a program of its own because finding GPUs loads a driver, which the agent does not need.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from laggard.collectors.device import gpu_names

__all__ = ["main"]

# How long the controller may be silent before the agent takes it for gone: a cut network does not close the pipe.
LEASE_S = 30


def main(arguments: Sequence[str]) -> None:
    """Print the handshake, with the names of the GPUs if ``--gpus`` is given, and become the agent."""
    gpus = gpu_names() if "--gpus" in arguments else []
    handshake = {"event": "handshake", "cpus": len(os.sched_getaffinity(0)), "gpus": gpus}
    sys.stdout.write(json.dumps(handshake) + "\n")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "laggard.resilience.agent.agent", str(LEASE_S)])  # noqa: S606 - no shell


if __name__ == "__main__":
    main(sys.argv[1:])

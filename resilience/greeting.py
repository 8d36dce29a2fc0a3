"""The first process on a remote node: says what the node has, then becomes the node's agent.

It is a program of its own because finding GPUs loads a driver, which is none of the agent's business.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from collectors.device import gpu_names

__all__ = ["main"]

# An agent that hears nothing for so long takes its controller for gone: a cut network closes no pipe.
LEASE_S = 30


def main(arguments: Sequence[str]) -> None:
    """Print the greeting and become the agent; with ``--gpus`` the GPUs are looked for."""
    gpus = gpu_names() if "--gpus" in arguments else []
    greeting = {"event": "greeting", "cpus": len(os.sched_getaffinity(0)), "gpus": gpus}
    sys.stdout.write(json.dumps(greeting) + "\n")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "resilience.agent", str(LEASE_S)])  # noqa: S606 - no shell


if __name__ == "__main__":
    main(sys.argv[1:])

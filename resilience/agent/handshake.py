"""The first process on a remote node: finds out what the node has, then becomes its agent, which says so first.

It is a program of its own because finding GPUs loads a driver, which the agent does not need.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence

from laggard.collectors.device import gpu_names
from laggard.resilience.agent import DIALS, JOINS, TOGETHER, own_name
from laggard.resilience.agent.processes import AGENT_MARK
from laggard.resilience.wire import encode
from laggard.resilience.wire.handshake import Handshake
from laggard.system.memory import shared_memory_bytes
from laggard.system.processors import usable_processors

MACHINE_VARIABLE = "LAGGARD_MACHINE"


def own_gpus(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names of the GPUs that the job has here, as in ``CUDA_VISIBLE_DEVICES``."""
    ordinal = environ.get("GPU_DEVICE_ORDINAL", "")
    if ordinal and "SLURM_SHARDS_ON_NODE" in environ and "CUDA_VISIBLE_DEVICES" not in environ:
        environ = {**environ, "CUDA_VISIBLE_DEVICES": ordinal}  # for shards Slurm 22.05 sets only the other
    return gpu_names(environ)


def found_here(gpus: Sequence[str]) -> Handshake:
    """Return what this node has, given the names of its GPUs."""
    machine = os.environ.get(MACHINE_VARIABLE, "")
    return Handshake(usable_processors(), tuple(gpus), socket.gethostname(), shared_memory_bytes(), machine)


def main(arguments: Sequence[str]) -> None:
    """Become the agent."""
    gpus = own_gpus() if "--gpus" in arguments else []
    if TOGETHER in arguments:
        os.environ[AGENT_MARK] += f"-{own_name()}"
    handshake = encode(found_here(gpus)).decode()
    joins = arguments[arguments.index(JOINS) :] if JOINS in arguments else [DIALS]
    agent = [sys.executable, "-P", "-m", "laggard.resilience.agent.agent", joins[0], handshake, *joins[1:]]
    os.execv(sys.executable, agent)  # noqa: S606 - no shell


if __name__ == "__main__":
    main(sys.argv[1:])

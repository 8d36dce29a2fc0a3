"""What an agent that dials sends first."""

from __future__ import annotations

from dataclasses import dataclass

from laggard.resilience.wire.message import Report


@dataclass(frozen=True, slots=True)
class Handshake(Report):
    """What the node has."""

    n_cpus: int  # that we may use
    gpus: tuple[str, ...]  # their names, as in CUDA_VISIBLE_DEVICES there
    host: str  # name of the machine
    shared_memory_bytes: int  # size of /dev/shm
    machine: str = ""  # what the site calls it, if it is not the host name, which is a pod's


@dataclass(frozen=True, slots=True)
class CannotDial(Report):
    """What it writes to its standard error if it cannot: its line goes by the way on which the agent was started."""

    node: str  # Slurm's name for it; empty if Slurm has not started it
    port: int  # of the controller

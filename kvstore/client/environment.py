"""How a process finds the job that it belongs to: environment variables that the launcher sets.

None of them is a secret: the password is in the endpoint file, which only its owner can read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from laggard.kvstore.errors import NotInJobError

ENDPOINT_FILE = "LAGGARD_ENDPOINT_FILE"
LAUNCH = "LAGGARD_LAUNCH"
NODE = "LAGGARD_NODE"
TELEMETRY_LEVEL = "LAGGARD_TELEMETRY_LEVEL"
JOB_BEGAN = "LAGGARD_JOB_BEGAN"
OWN_RANK = "LAGGARD_RANK"
"""The rank of a process that was started for a device; what it starts itself may have ranks of its own."""
# What torchrun, Open MPI and MPICH tell their processes.
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def own_node(environ: Mapping[str, str] = os.environ) -> str:
    """Return the node of this process; empty outside of a job."""
    return environ.get(NODE, "")


@dataclass(frozen=True, slots=True)
class JobEnvironment:
    """What a process of a job learns from its environment."""

    endpoint_file: Path  # file with the address and password of the state server, mode 0600
    launch: int  # number of the launch that the process belongs to, which is its fencing token
    node: str
    telemetry_level: int = 0  # 0 (off) to 4
    began_s: float = 0.0  # when the job began, as Unix time; 0 if that is not known

    @classmethod
    def current(cls, environ: Mapping[str, str] = os.environ) -> JobEnvironment:
        """Read the environment."""
        try:
            return cls(
                endpoint_file=Path(environ[ENDPOINT_FILE]),
                launch=int(environ[LAUNCH]),
                node=environ[NODE],
                telemetry_level=int(environ.get(TELEMETRY_LEVEL, "0")),
                began_s=float(environ.get(JOB_BEGAN, "0")),
            )
        except KeyError as missing:
            raise NotInJobError(
                f"not in a laggard job ({missing.args[0]} is not set): start the program with 'laggard PROGRAM'"
            ) from missing

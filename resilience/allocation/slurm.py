"""Slurm: the nodes of the job that we run in, reached by ``srun``."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence

from resilience.allocation.base import AllocationError

__all__ = ["Srun", "slurm_node_names", "slurm_this_node"]

JOB_ID = "SLURM_JOB_ID"
COMMAND_DEADLINE_S = 20.0
STATE_DEADLINE_S = 5.0
# States in which nobody is ending the job: https://slurm.schedmd.com/squeue.html#SECTION_JOB-STATE-CODES
LIVING = {"RUNNING", "SUSPENDED", "RESIZING", "SIGNALING"}

_STEP_OPTIONS = (
    "--nodes=1",
    "--ntasks=1",
    "--overlap",  # the job's resources are shared by all of our steps
    "--cpu-bind=none",  # one task, all of the node's processors
    "--export=ALL",
    "--mpi=none",
    "--no-kill",
    "--kill-on-bad-exit=0",
    "--quiet",
)


class Srun:
    """Runs a process on a node of our job as a step of its own, so that one can die alone."""

    name = "srun"

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        """Return the command that runs ``argv`` on a node."""
        return ["srun", *_STEP_OPTIONS, f"--nodelist={host}", *argv]

    def environment(self) -> Mapping[str, str]:
        """Return nothing: a step has the environment of its ``srun``."""
        return {}

    def is_ending(self) -> bool:
        """Whether the job was cancelled, is requeued, or has used up its time; False where Slurm does not say."""
        query = ("squeue", "--noheader", "--states=all", f"--jobs={os.environ[JOB_ID]}", "--format=%T")
        try:
            return _said_by(query, STATE_DEADLINE_S).strip() not in LIVING
        except AllocationError:
            return False


def slurm_this_node() -> str | None:
    """Return Slurm's name of the node that we run on; None where we are on a node that is none of Slurm's."""
    return os.environ.get("SLURMD_NODENAME")


def slurm_node_names() -> dict[str, str]:
    """Return the nodes of our job that are left, the first one first, each with the name or address to reach it.

    Raises
    ------
    AllocationError
        If Slurm does not say.
    """
    # Not the environment's SLURM_JOB_NODELIST: a job that outlives a node of its own has fewer by now.
    query = ("squeue", "--noheader", f"--jobs={os.environ[JOB_ID]}", "--format=%N")
    node_list = _said_by(query, COMMAND_DEADLINE_S).strip()
    if not node_list:
        raise AllocationError(f"Slurm has no nodes for job {os.environ[JOB_ID]}: it is over, ask for a new one")
    records = _said_by(("scontrol", "--oneliner", "show", "node", node_list), COMMAND_DEADLINE_S)
    addresses = dict(re.findall(r"NodeName=(\S+).*? NodeAddr=(\S+)", records))
    hosts = _said_by(("scontrol", "show", "hostnames", node_list), COMMAND_DEADLINE_S).split()
    return {host: addresses.get(host, host) for host in hosts}


def _said_by(command: Sequence[str], deadline_s: float) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=deadline_s).stdout
    except FileNotFoundError as error:
        raise AllocationError(f"there is no {command[0]} here, and this is Slurm's job: check PATH") from error
    except subprocess.TimeoutExpired as error:
        raise AllocationError(f"{command[0]} did not answer within {deadline_s:g} s") from error
    except subprocess.CalledProcessError as error:
        raise AllocationError(f"{command[0]} failed: {error.stderr.strip()}") from error

"""Slurm: the nodes of the job that we run in, reached by ``srun``."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Mapping, Sequence

from laggard.resilience.errors import AllocationError, ResourceManagerError

__all__ = [
    "Srun",
    "gpus_of_job",
    "seconds_of_time_left",
    "slurm_node_names",
    "slurm_this_node",
    "slurm_time_left_s",
    "word_of_sinfo",
]

JOB_ID = "SLURM_JOB_ID"
COMMAND_DEADLINE_S = 20.0
STATE_DEADLINE_S = 5.0
WORD_DEADLINE_S = 5.0
# States of a node that are as they should be: https://slurm.schedmd.com/sinfo.html#SECTION_NODE-STATE-CODES
SOUND = {"allocated", "mixed", "idle", "completing", "reserved", "planned"}
NOT_RESPONDING = "*"
FLAGS = "*~#!%$@^-+"
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
# From the job's options; with them srun would give our one task its share of the node's GPUs. Only from the environment
# can they be taken back.
_SHARES_OF_GPUS = (
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_TRES_PER_TASK",
    "SLURM_GPU_BIND",
)


class Srun:
    """Runs a process on a node of our job as a step of its own, so that one can die without the others."""

    name = "srun"

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        """Return the command that runs ``argv`` on a node, with all GPUs that the job has there."""
        unset = [f"--unset={name}" for name in _SHARES_OF_GPUS if name in os.environ]
        count = _gpus_by_node().get(host)
        # With --gpus, Slurm would want as many for this node as the job has on all.
        gpus = [f"--gpus={count}"] if count else []
        srun = ["srun", *_STEP_OPTIONS, *gpus, f"--nodelist={host}", *argv]
        return ["env", *unset, *srun] if unset else srun

    def environment(self) -> Mapping[str, str]:
        """Return nothing: a step inherits the environment of its ``srun``."""
        return {}

    def is_ending(self) -> bool:
        """Return whether the job was cancelled, is requeued, or has run out of time; False if Slurm does not answer."""
        query = ("squeue", "--noheader", "--states=all", f"--jobs={os.environ[JOB_ID]}", "--format=%T")
        try:
            return _output_of(query, STATE_DEADLINE_S).strip() not in LIVING
        except ResourceManagerError:
            return False

    def word_on(self, host: str) -> str:
        """Return what Slurm says is wrong with a node; empty if nothing, or if Slurm does not answer."""
        try:
            said = _output_of(("sinfo", "--noheader", f"--nodes={host}", "--format=%T|%E"), WORD_DEADLINE_S)
        except ResourceManagerError:
            return ""
        return word_of_sinfo(host, said)


def word_of_sinfo(host: str, said: str) -> str:
    """Return what ``sinfo``'s line about a node, ``STATE|REASON``, says is wrong with it; empty if nothing. Pure."""
    state, _, reason = (said.splitlines() or [""])[0].strip().partition("|")
    base = state.rstrip(FLAGS)
    if base in SOUND or not base:
        return f"Slurm says {host} does not respond" if NOT_RESPONDING in state else ""
    because = f": {reason}" if reason not in {"", "none"} else ""
    return f"Slurm says {host} is {base}{because}"


def slurm_time_left_s() -> float | None:
    """Return how long until our job's time limit; ``None``: it has none, Slurm does not answer, or we are in no job."""
    if JOB_ID not in os.environ:
        return None
    query = ("squeue", "--noheader", f"--jobs={os.environ[JOB_ID]}", "--format=%L")
    try:
        return seconds_of_time_left(_output_of(query, STATE_DEADLINE_S))
    except ResourceManagerError:
        return None


def seconds_of_time_left(said: str) -> float | None:
    """Return the seconds of ``DAYS-HOURS:MINUTES:SECONDS`` as ``squeue`` writes it; ``None`` if it is a word. Pure."""
    match = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)", said.strip())
    if match is None:  # UNLIMITED, NOT_SET, INVALID
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return 86400.0 * days + 3600 * hours + 60 * minutes + seconds


def slurm_this_node() -> str | None:
    """Return Slurm's name for the node that we run on; None if it is not a Slurm node."""
    return os.environ.get("SLURMD_NODENAME")


def slurm_node_names() -> dict[str, str]:
    """Return the remaining nodes of our job, in Slurm's order, each with the name or address to reach it by.

    Raises
    ------
    AllocationError
        If the job is over, or Slurm does not answer.
    """
    # Not SLURM_JOB_NODELIST from the environment, which still has the nodes that the job has lost.
    query = ("squeue", "--noheader", f"--jobs={os.environ[JOB_ID]}", "--format=%N")
    node_list = _output_of(query, COMMAND_DEADLINE_S).strip()
    if not node_list:
        raise AllocationError(f"Slurm has no nodes for job {os.environ[JOB_ID]}: it has ended, so start a new one")
    records = _output_of(("scontrol", "--oneliner", "show", "node", node_list), COMMAND_DEADLINE_S)
    addresses = dict(re.findall(r"NodeName=(\S+).*? NodeAddr=(\S+)", records))
    hosts = _output_of(("scontrol", "show", "hostnames", node_list), COMMAND_DEADLINE_S).split()
    return {host: addresses.get(host, host) for host in hosts}


def gpus_of_job(said: str) -> list[tuple[str, int]]:
    """Return how many GPUs a job has on which nodes, as ``scontrol show job --details`` says. Pure."""
    lines = re.findall(r"^\s*Nodes=(\S+) .*\bGRES=(\S+)", said, re.MULTILINE)
    counts = [(nodes, re.findall(r"\bgpu(?::[\w.-]+)?:(\d+)(?![\w.:-])", gres)) for nodes, gres in lines]
    return [(nodes, sum(map(int, found))) for nodes, found in counts if found]


def _gpus_by_node() -> Mapping[str, int]:
    try:
        return _gpus_by_node_of(os.environ[JOB_ID]) if JOB_ID in os.environ else {}
    except ResourceManagerError:
        return {}


@functools.cache
def _gpus_by_node_of(job: str) -> Mapping[str, int]:
    said = _output_of(("scontrol", "--details", "show", "job", job), COMMAND_DEADLINE_S)
    return {
        host: count
        for nodes, count in gpus_of_job(said)
        for host in _output_of(("scontrol", "show", "hostnames", nodes), COMMAND_DEADLINE_S).split()
    }


def _output_of(command: Sequence[str], deadline_s: float) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=deadline_s).stdout
    except FileNotFoundError as error:
        raise ResourceManagerError(command[0], "is not on PATH, though this is a Slurm job") from error
    except subprocess.TimeoutExpired as error:
        raise ResourceManagerError(command[0], f"did not answer within {deadline_s:g} s") from error
    except subprocess.CalledProcessError as error:
        raise ResourceManagerError(command[0], f"failed: {error.stderr.strip()}") from error

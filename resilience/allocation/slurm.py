"""Slurm: the nodes of the job that we run in, reached by ``srun``."""

from __future__ import annotations

import functools
import logging
import os
import shlex
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence

from laggard.resilience.allocation.base import Transport
from laggard.resilience.allocation.slurm_text import (
    PARTS_FORMAT,
    JobPart,
    addresses_of_nodes,
    excluded_of_job,
    gpus_of_job,
    groups_of_nodes,
    is_behind_pty,
    leaves_of_topology,
    n_tasks_of_step,
    name_of_job,
    nodes_to_avoid,
    partition_of_job,
    parts_of_job,
    record_of_job,
    seconds_of_time_left,
    time_to_save,
    words_of_sinfo,
)
from laggard.resilience.allocation.time_to_save import TimeToSave
from laggard.resilience.decision.reasons import NodeWord
from laggard.resilience.errors import AllocationError, ResourceManagerError, UsageError

_log = logging.getLogger("laggard.resilience.allocation")

JOB_ID = "SLURM_JOB_ID"
HET_SIZE = "SLURM_HET_SIZE"
RELAY_MARK = "LAGGARD_RELAY"
SRUN_ARGS = "LAGGARD_SRUN_ARGS"
COMMAND_DEADLINE_S = 20.0
STATE_DEADLINE_S = 5.0
WORD_DEADLINE_S = 5.0
# What narrows a user's own look at Slurm would hide our job and its nodes, and so would a hidden partition.
_NARROWING = ("SQUEUE_", "SINFO_", "SCONTROL_")
_WHOLE = {"SQUEUE_ALL": "1", "SINFO_ALL": "1", "SCONTROL_ALL": "1", "SLURM_TOPO_LEN": "1000000000"}

_STEP_OPTIONS = (
    "--ntasks-per-node=1",
    "--overlap",  # the job's resources are shared by all of our steps
    "--cpu-bind=none",  # one task, all of the node's processors
    "--export=ALL",
    "--mpi=none",
    "--no-kill",
    "--kill-on-bad-exit=0",
    "--wait=0",  # however long ago the first process has ended
    "--quiet",
)
# Their names fit into one word of a command line.
MAX_NODES_OF_STEP = 2000
# Options of srun's that cannot be taken back on its command line. The first are from the job's options: with them srun
# would give our one task its share of the node's GPUs and processors.
_NOT_OURS = (
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_TRES_PER_TASK",
    "SLURM_GPU_BIND",
    "SRUN_CPUS_PER_TASK",
    # From the user: what changes or hides what our processes say, or how long they may run.
    "SLURM_LABELIO",
    "SLURM_STDINMODE",
    "SLURM_STDOUTMODE",
    "SLURM_STDERRMODE",
    "SLURM_DEBUG",
    "SLURM_EXACT",
    "SLURM_EXCLUSIVE",
    "SLURM_TIMELIMIT",
    "SRUN_CONTAINER",
)


class Srun(Transport):
    """Runs a process on a node of our job, or one on each of several, as a step of its own: it can die by itself."""

    name = "srun"

    def __init__(self, max_nodes_of_step: int = MAX_NODES_OF_STEP) -> None:
        self._max_nodes = max_nodes_of_step

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        """Return the command that runs ``argv`` on a node, with all GPUs that the job has there."""
        return _step((host,), *_place_of(host), argv)

    def commands_together(self, hosts: Sequence[str], argv: Sequence[str]) -> dict[tuple[str, ...], list[str]]:
        """Return the commands that run ``argv`` on several nodes each, and those nodes; the others are left out."""
        # There is one for all nodes, or for all that have as many GPUs and are in the same group of the job.
        alike: dict[tuple[int | None, int], list[str]] = {}
        for host in hosts:
            alike.setdefault(_place_of(host), []).append(host)
        return {
            step: _step(step, *place, argv, "--input=all")
            for place, of_place in alike.items()
            for at in range(0, len(of_place), self._max_nodes)
            if len(step := tuple(of_place[at : at + self._max_nodes])) > 1
        }

    def time_to_save(self) -> TimeToSave:
        """Return how long a job that is told to stop has for it; nothing is known if Slurm does not answer."""
        try:
            return time_to_save(_parts(STATE_DEADLINE_S))
        except ResourceManagerError:
            return TimeToSave()

    def words_on(self, hosts: Collection[str]) -> dict[str, NodeWord]:
        """Return what Slurm says is wrong with which of these nodes."""
        return _words(f"--nodes={','.join(hosts)}")

    def avoid(self, bad: Collection[str], well: Collection[str], n_nodes: int) -> str:
        """Have Slurm give us others instead of the bad nodes when the job is requeued; return what was changed."""
        # Slurm lets a user change that of a job that waits, which is also one that is just being requeued.
        job = os.environ[JOB_ID]
        try:
            said = _output_of(("scontrol", "show", "job", job), STATE_DEADLINE_S)
            record = record_of_job(said, job)
            excluded, partition = excluded_of_job(record), partition_of_job(record)
            of_partition = ("sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%N")
            hosts = set(_output_of(of_partition, STATE_DEADLINE_S).split())
            sound = hosts.difference(_words(f"--partition={partition}"))
            avoided = nodes_to_avoid(excluded, bad, well, sound, n_nodes)
            if avoided == sorted(excluded):
                return ""
            change = f"ExcNodeList={','.join(avoided)}"
            _output_of(("scontrol", "update", f"JobId={name_of_job(record)}", change), STATE_DEADLINE_S)
        except ResourceManagerError as error:
            _log.info("the job is not requeued, or its nodes cannot be chosen: %s", error)
            return ""
        return change if avoided else f"none any more ({change})"


def check_runs_once(environ: Mapping[str, str]) -> None:
    """Check that ``laggard`` was not started several times side by side by ``srun``."""
    n_tasks = n_tasks_of_step(environ)
    if n_tasks > 1 and RELAY_MARK not in environ and not is_behind_pty(environ, os.getpid()):
        fix = "leave srun out, as in salloc --nodes=2 laggard PROGRAM or in a batch script"
        raise UsageError(f"srun runs laggard {n_tasks} times,", "but it belongs outside, and runs srun itself", fix)


def slurm_time_left_s() -> float | None:
    """Return how long until our job's time limit; ``None``: it has none, Slurm does not answer, or we are in no job."""
    if JOB_ID not in os.environ:
        return None
    try:
        parts = _parts(STATE_DEADLINE_S)
    except ResourceManagerError:
        return None
    return seconds_of_time_left(parts[0].left) if parts else None


def slurm_leaves() -> dict[str, str]:
    """Return the leaf switch of each node of the cluster; of none if Slurm has no topology, or we are in no job."""
    if JOB_ID not in os.environ:
        return {}
    try:
        return leaves_of_topology(_output_of(("scontrol", "show", "topology"), STATE_DEADLINE_S))
    except ResourceManagerError as error:
        _log.info("Slurm tells no topology: %s", error)
        return {}


def slurm_node_names() -> dict[str, str]:
    """Return the remaining nodes of our job, in Slurm's order, each with the name or address to reach it by."""
    # Not SLURM_JOB_NODELIST from the environment, which still has the nodes that the job has lost.
    hosts = groups_of_nodes([part for part in _parts(COMMAND_DEADLINE_S) if part.has_nodes])
    if not hosts:
        raise AllocationError(f"Slurm has no nodes for job {os.environ[JOB_ID]}: it has ended, so start a new one")
    records = _output_of(("scontrol", "--oneliner", "show", "node", ",".join(hosts)), COMMAND_DEADLINE_S)
    addresses = addresses_of_nodes(records)
    return {host: addresses.get(host, host) for host in hosts}


def _parts(deadline_s: float) -> list[JobPart]:
    job = os.environ[JOB_ID]
    query = ("squeue", "--noheader", "--states=all", f"--jobs={job}", f"--format={PARTS_FORMAT}")
    return parts_of_job(_output_of(query, deadline_s), job)


def _words(which: str) -> dict[str, NodeWord]:
    return words_of_sinfo(_output_of(("sinfo", "--noheader", "--Node", which, "--format=%N|%T|%E"), WORD_DEADLINE_S))


def _place_of(host: str) -> tuple[int | None, int]:
    """Return a node's group in a heterogeneous job, and how many GPUs the job has there."""
    job = os.environ.get(JOB_ID)
    group = _known(_groups_by_node, job if HET_SIZE in os.environ else None).get(host)
    return group, _known(_gpus_by_node, job).get(host, 0)


def srun_args(text: str) -> list[str]:
    """Return the user's own words for ``srun``: options of its, and perhaps what it is to run our command with."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--srun-args={text}", "cannot be divided into words", str(error).lower()) from error


def _step(hosts: Sequence[str], group: int | None, n_gpus: int, argv: Sequence[str], *more: str) -> list[str]:
    unset = [f"--unset={name}" for name in _NOT_OURS if name in os.environ]
    groups = [] if group is None else [f"--het-group={group}"]
    # Without it, Slurm would want as many for these nodes as the job has on all.
    gpus = [f"--gpus={n_gpus * len(hosts)}"] if n_gpus else []
    nodes = [f"--nodes={len(hosts)}", f"--ntasks={len(hosts)}", f"--nodelist={','.join(hosts)}"]
    own = srun_args(os.environ.get(SRUN_ARGS, ""))
    srun = ["srun", *_STEP_OPTIONS, *groups, *gpus, *nodes, *more, *own, *argv]
    return ["env", *unset, *srun] if unset else srun


def _known(facts: Callable[[str], Mapping[str, int]], job: str | None) -> Mapping[str, int]:
    """Return facts about the nodes of a job; none if there is no job, or Slurm does not answer."""
    try:
        return facts(job) if job else {}
    except ResourceManagerError:
        return {}


@functools.cache
def _gpus_by_node(job: str) -> Mapping[str, int]:
    said = _output_of(("scontrol", "--details", "show", "job", job), COMMAND_DEADLINE_S)
    return gpus_of_job(record_of_job(said, job))


@functools.cache
def _groups_by_node(_job: str) -> Mapping[str, int]:
    return groups_of_nodes(_parts(COMMAND_DEADLINE_S))


def _output_of(command: Sequence[str], deadline_s: float) -> str:
    unnarrowed = {name: value for name, value in os.environ.items() if not name.startswith(_NARROWING)}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=deadline_s, env=unnarrowed | _WHOLE
        )
    except FileNotFoundError as error:
        raise ResourceManagerError("is not on PATH, though this is a Slurm job", command[0]) from error
    except subprocess.TimeoutExpired as error:
        raise ResourceManagerError(f"did not answer within {deadline_s:g} s", command[0]) from error
    except subprocess.CalledProcessError as error:
        # scontrol complains on its standard output.
        raise ResourceManagerError(f"failed: {(error.stderr or error.stdout).strip()}", command[0]) from error
    return done.stdout

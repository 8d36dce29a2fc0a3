"""What Slurm's commands and variables say, versions 22.05 to 25.x: text in, values out. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from laggard.resilience.allocation.node_lists import expand_node_list
from laggard.resilience.allocation.time_to_save import TimeToSave
from laggard.resilience.decision.reasons import NodeWord
from laggard.resilience.text import duration

PARTS_FORMAT = "%A|%i|%T|%L|%N"
# States of a node that are as they should be: https://slurm.schedmd.com/sinfo.html#SECTION_NODE-STATE-CODES
_SOUND = {"allocated", "mixed", "idle", "completing", "reserved", "planned", "blocked"}
_NOT_RESPONDING = "*"
_FLAGS = "*~#!%$@^-+"
# States in which nobody is ending the job: https://slurm.schedmd.com/squeue.html#SECTION_JOB-STATE-CODES
_LIVING = {"RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "CONFIGURING", "STAGE_OUT", "EXPEDITING"}
_NO_REASON = {"", "none", "(null)"}


def n_tasks_of_step(environ: Mapping[str, str]) -> int:
    """Return how many tasks run side by side in the step that we are in; 1 outside of steps."""
    count = environ.get("SLURM_STEP_NUM_TASKS", "")
    return int(count) if count.isdigit() else 1


def is_behind_pty(environ: Mapping[str, str], pid: int) -> bool:
    """Return whether this process was typed into a shell that ``srun --pty`` has started."""
    # Such a shell is the first task of its step. Those of the other tasks have ended at once, since they have no input.
    is_first = environ.get("SLURM_PROCID") == "0" and "SLURM_PTY_PORT" in environ
    return is_first and environ.get("SLURM_TASK_PID") != str(pid)


@dataclass(frozen=True, slots=True)
class JobPart:
    """A job, or one of the groups of a heterogeneous job."""

    group: int  # number of the group; 0 for every other job
    state: str  # as `squeue` writes it
    left: str  # time until its time limit, as `squeue` writes it
    nodes: str  # its nodes, as `squeue` writes them

    @property
    def lives(self) -> bool:
        """Whether nobody is ending it."""
        return self.state in _LIVING

    @property
    def has_nodes(self) -> bool:
        """Whether it has nodes, or is just giving them back."""
        return self.lives or self.state == "COMPLETING"


def parts_of_job(said: str, job_id: str) -> list[JobPart]:
    """Return the groups of a job, from ``squeue --format=PARTS_FORMAT``."""
    # Asked for a task of an array whose number is also that of the array, squeue tells of all tasks.
    lines = [fields for line in said.splitlines() if len(fields := line.strip().split("|")) == 5]
    ours = [fields for fields in lines if fields[0] == job_id or fields[1].startswith(f"{job_id}+")]
    parts = [JobPart(_group_of(name), state, left, nodes) for _, name, state, left, nodes in ours]
    return sorted(parts, key=lambda part: part.group)


def _group_of(name: str) -> int:
    group = name.partition("+")[2]
    return int(group) if group.isdigit() else 0


def groups_of_nodes(parts: Sequence[JobPart]) -> dict[str, int]:
    """Return a job's nodes, in order, each with its group; a node in two groups counts for the first."""
    groups: dict[str, int] = {}
    for part in parts:
        for host in expand_node_list(part.nodes):
            groups.setdefault(host, part.group)
    return groups


def record_of_job(said: str, job_id: str) -> str:
    """Return the records of a job, and of no other task of its array, from ``scontrol show job``."""
    records = re.split(r"\n\s*\n", said)
    return "\n".join(each for each in records if re.search(rf"^\s*JobId={job_id}\b|\bHetJobId={job_id}\b", each))


def name_of_job(record: str) -> str:
    """Return the name by which ``scontrol update`` changes a job, and no other task of its array."""
    array = re.search(r"\bArrayJobId=(\d+) ArrayTaskId=(\d+)\b", record)
    job = re.search(r"\bJobId=(\d+)", record)
    return "_".join(array.groups()) if array else job.group(1) if job else ""


def words_of_sinfo(said: str) -> dict[str, NodeWord]:
    """Return what is wrong with which node, from ``sinfo --Node --format=%N|%T|%E``."""
    # A node of several partitions has several lines, all with the same state.
    lines = [fields for line in said.splitlines() if len(fields := line.strip().split("|", 2)) == 3]
    return {host: word for host, state, why in lines if (word := _word(host, state, why.strip())) is not None}


def _word(host: str, state: str, why: str) -> NodeWord | None:
    base = state.lower().rstrip(_FLAGS)
    if base in _SOUND or not base:
        return NodeWord("Slurm", host, "") if _NOT_RESPONDING in state else None
    return NodeWord("Slurm", host, base, "" if why.lower() in _NO_REASON else why)


def seconds_of_time_left(said: str) -> float | None:
    """Return the seconds of ``DAYS-HOURS:MINUTES:SECONDS``, as squeue writes it; ``None`` if it is a word."""
    match = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)", said.strip())
    if match is None:  # UNLIMITED, NOT_SET, INVALID
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return 86400.0 * days + 3600 * hours + 60 * minutes + seconds


def addresses_of_nodes(said: str) -> dict[str, str]:
    """Return the names or addresses by which nodes are reached, from ``scontrol --oneliner show node``."""
    return dict(re.findall(r"\bNodeName=(\S+).*?\sNodeAddr=(\S+)", said))


def leaves_of_topology(said: str) -> dict[str, str]:
    """Return each node's leaf switch, or its block, from ``scontrol show topology``; no node has one without a plugin.

    Of a tree the switches of level 0 count, and of blocks those that are not aggregates. Since 25.05 a cluster may have
    both, where a switch says more about a node's links.
    """
    switches, blocks = dict[str, str](), dict[str, str]()
    for line in said.splitlines():
        fields: dict[str, str] = dict(re.findall(r"\b(\w+)=(\S+)", line))
        nodes = fields.get("Nodes", "(null)")
        if nodes == "(null)":
            continue
        if "SwitchName" in fields and fields.get("Level") == "0":
            switches |= dict.fromkeys(expand_node_list(nodes), fields["SwitchName"])
        elif "BlockName" in fields:
            blocks |= dict.fromkeys(expand_node_list(nodes), fields["BlockName"])
    return {**blocks, **switches}


def gpus_of_job(said: str) -> dict[str, int]:
    """Return how many GPUs a job has on which nodes, as ``scontrol --details show job`` says."""
    # Shares of GPUs (`shard`, `mps`) are none; a node where a job has only those is not among them.
    counts: dict[str, int] = {}
    for nodes, gres in re.findall(r"^\s*Nodes=(\S+) .*\bGRES=(\S+)", said, re.MULTILINE):
        found = re.findall(r"(?:^|,)gpu(?::[^:,()]+)?(?::|\(CNT:)(\d+)(?=[,()]|$)", gres)
        if found:
            counts |= dict.fromkeys(expand_node_list(nodes), sum(map(int, found)))
    return counts


def excluded_of_job(said: str) -> list[str]:
    """Return the nodes that a job does not want, as ``scontrol show job`` says."""
    match = re.search(r"\bExcNodeList=(\S+)", said)
    return [] if match is None or match.group(1) == "(null)" else expand_node_list(match.group(1))


def partition_of_job(said: str) -> str:
    """Return the partitions that a job may run in, with commas, as ``scontrol show job`` says."""
    match = re.search(r"\bPartition=(\S+)", said)
    return "" if match is None else match.group(1)


def nodes_to_avoid(
    excluded: Sequence[str], bad: Collection[str], well: Collection[str], sound: Collection[str], n_nodes: int
) -> list[str]:
    """Return the nodes that a job should not get when it is started again."""
    kept = {host for host in excluded if host not in well}
    wished = kept | set(bad)
    return sorted(wished if len(set(sound) - wished) >= n_nodes else kept - set(bad))


def time_to_save(parts: Sequence[JobPart]) -> TimeToSave:
    """Return how long a job has that got a signal from Slurm, or from whoever else."""
    if not parts:
        return TimeToSave(0.0, "the job is over")
    left_s = seconds_of_time_left(parts[0].left)
    if not all(part.lives for part in parts):
        return TimeToSave(0.0, "the time limit is reached" if left_s == 0 else "Slurm ends the job")
    return TimeToSave() if left_s is None else TimeToSave(left_s, f"{duration(left_s)} before the time limit")

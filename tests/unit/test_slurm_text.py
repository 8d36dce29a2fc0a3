"""What Slurm's commands say, in the forms of its versions from 22.05 on, and what is read from it."""

from __future__ import annotations

import pytest

from laggard.resilience.allocation.slurm_text import (
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
from laggard.resilience.decision import wording

ARRAY = "1|1_2|RUNNING|UNLIMITED|nid001-ib\n2|1_1|COMPLETING|12:00|nid001-ib\n1|1_[3-9]|PENDING|12:00|\n"
HETEROGENEOUS = "4|3+1|RUNNING|59:00|nid[002-003]-ib,gpu7\n3|3+0|RUNNING|59:00|nid001-ib\n"


@pytest.mark.parametrize(
    ("said", "job", "nodes"),
    [
        ("7|7|RUNNING|1:29:59|node[1-2]\n", "7", {"node1": 0, "node2": 0}),
        (ARRAY, "2", {"nid001-ib": 0}),
        (HETEROGENEOUS, "3", {"nid001-ib": 0, "nid002-ib": 1, "nid003-ib": 1, "gpu7": 1}),
        ("8|8|PENDING|12:00|\n", "8", {}),
        ("", "8", {}),
        ("slurm_load_jobs error: Invalid job id specified\n", "8", {}),
    ],
)
def test_the_nodes_of_a_job_are_its_own_and_not_those_of_its_array(said: str, job: str, nodes: dict[str, int]) -> None:
    assert groups_of_nodes(parts_of_job(said, job)) == nodes
    assert list(groups_of_nodes(parts_of_job(said, job))) == list(nodes)


def test_the_task_whose_number_is_that_of_the_array_knows_its_own_state() -> None:
    assert [(part.state, part.lives) for part in parts_of_job(ARRAY, "2")] == [("COMPLETING", False)]
    assert [part.nodes for part in parts_of_job(ARRAY, "1") if part.has_nodes] == ["nid001-ib"]


@pytest.mark.parametrize(
    ("states", "left", "known"),
    [
        (["RUNNING"], "59:00", TimeToSave(3540, "59 min 0 s before the time limit")),
        (["RUNNING"], "UNLIMITED", TimeToSave()),
        (["STOPPED"], "UNLIMITED", TimeToSave()),  # scancel --signal=STOP
        (["RUNNING", "COMPLETING"], "59:00", TimeToSave(0, "Slurm ends the job")),
        (["COMPLETING"], "0:00", TimeToSave(0, "the time limit is reached")),
        (["TIMEOUT"], "0:00", TimeToSave(0, "the time limit is reached")),
        (["CANCELLED"], "UNLIMITED", TimeToSave(0, "Slurm ends the job")),
        (["REQUEUED"], "59:00", TimeToSave(0, "Slurm ends the job")),
        ([], "", TimeToSave(0, "the job is over")),
    ],
)
def test_a_job_that_is_told_to_stop_knows_how_long_it_has(states: list[str], left: str, known: TimeToSave) -> None:
    assert time_to_save([JobPart(number, state, left, "n1") for number, state in enumerate(states)]) == known


@pytest.mark.parametrize(
    ("seconds", "wished_s", "grace_s"),
    [(None, 30, 30), (0, 30, 5), (60, 30, 30), (25, 30, 15), (12, 30, 5), (60, 2, 2), (0, 2, 2)],
)
def test_the_program_has_as_long_to_save_as_the_user_and_the_time_limit_allow(
    seconds: float | None, wished_s: float, grace_s: float
) -> None:
    assert TimeToSave(seconds).grace_s(wished_s, least_s=5, reserved_s=10) == grace_s


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("0:07\n", 7),
        ("12:34", 754),
        ("3:00:01", 10_801),
        ("23:59:59", 86_399),
        ("1-02:03:04", 93_784),
        ("UNLIMITED", None),
        ("NOT_SET", None),
        ("INVALID", None),
        ("", None),
    ],
)
def test_the_time_left_is_read_as_slurm_writes_it(said: str, seconds: float | None) -> None:
    assert seconds_of_time_left(said) == seconds


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("down|Not responding", "Slurm says node3 is down: Not responding"),
        ("down*|Not responding", "Slurm says node3 is down: Not responding"),
        ("drained|laggard", "Slurm says node3 is drained: laggard"),
        ("draining@|reboot ASAP : kernel", "Slurm says node3 is draining: reboot ASAP : kernel"),
        ("drained*|Kill task failed | twice", "Slurm says node3 is drained: Kill task failed | twice"),
        ("fail|none", "Slurm says node3 is fail"),
        ("inval|gres/gpu count too low (7 < 8)", "Slurm says node3 is inval: gres/gpu count too low (7 < 8)"),
        ("reboot^|(null)", "Slurm says node3 is reboot"),
        ("powering_down|None", "Slurm says node3 is powering_down"),
        ("allocated*|none", "Slurm says node3 does not respond"),
        ("allocated|none", ""),
        ("mixed$|none", ""),
        ("mixed-|none", ""),
        ("planned|none", ""),
        ("IDLE|none", ""),
        ("blocked|none", ""),
    ],
)
def test_slurm_says_what_is_wrong_with_a_node_and_nothing_if_nothing_is(said: str, word: str) -> None:
    said = f"node2|idle|none\nnode3|{said}\nnode3|{said}\n"
    assert {host: wording.node_word(found) for host, found in words_of_sinfo(said).items()} == (
        {"node3": word} if word else {}
    )
    assert words_of_sinfo("") == {}


# As `scontrol --details show job` of 22.05 writes devices, and with types, shares of GPUs and other things; later
# versions have further lines, which say nothing of devices.
RECORD = """\
JobId=7 JobName=interactive
   Partition=gpu,long AllocNode:Sid=login:4711
   ReqNodeList=(null) ExcNodeList=node[8-9],old1
   NodeList=node[1-7]
   JOB_GRES=gpu:11
     Nodes=node[1-2] CPU_IDs=0-1 Mem=0 GRES=gpu:2(IDX:0-1)
     Nodes=node3 CPU_IDs=0 Mem=0 GRES=gpu:a100:2(IDX:0,3),gpu:4090:1(IDX:2),shard:9(IDX:0)
     Nodes=nid[001,004]-ib CPU_IDs=0 Mem=0 GRES=gpu:4
     Nodes=node5 CPU_IDs=0 Mem=0 GRES=craynetwork:4
     Nodes=node6 CPU_IDs=0 Mem=0 GRES=
     Nodes=node7 CPU_IDs=0 Mem=0 GRES=shard:a100:2(2/4,0/4),mps:50(50/100)
     Nodes=node8 CPU_IDs=0 Mem=0 GRES=gpu:a100_3g.20gb:2(IDX:0-1)
     Nodes=node9 CPU_IDs=0 Mem=0 GRES=gpu:a100_1g.5gb+me:3(IDX:0,2,4),gpu:h100(CNT:1)
     Nodes=node10 CPU_IDs=0 Mem=0 GRES=gpu(CNT:4),shard(CNT:9),no-gpu:7
   MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0
   TresPerNode=gres/gpu:2
"""


def test_gpus_are_counted_for_each_node_and_shares_of_gpus_are_none() -> None:
    wholes = {"node1": 2, "node2": 2, "node3": 3, "nid001-ib": 4, "nid004-ib": 4, "node8": 2}
    wholes |= {"node9": 4, "node10": 4}  # of some, Slurm knows only how many there are
    assert gpus_of_job(RECORD) == wholes
    assert gpus_of_job("JobId=7\n   JOB_GRES=(null)\n") == {}


def test_a_record_says_which_nodes_a_job_does_not_want_and_where_it_may_run() -> None:
    assert excluded_of_job(RECORD) == ["node8", "node9", "old1"]
    assert excluded_of_job("ExcNodeList=(null)") == excluded_of_job("") == []
    assert partition_of_job(RECORD) == "gpu,long"


def test_of_the_records_of_an_array_only_that_of_the_task_counts() -> None:
    array = (
        "JobId=2 ArrayJobId=1 ArrayTaskId=1 JobName=a\n   ExcNodeList=n1\n\n"
        "JobId=1 ArrayJobId=1 ArrayTaskId=2 JobName=a\n   ExcNodeList=n2\n\n"
    )
    assert excluded_of_job(record_of_job(array, "1")) == ["n2"]
    assert name_of_job(record_of_job(array, "1")) == "1_2"
    assert name_of_job(record_of_job(RECORD, "7")) == "7"
    groups = (
        "JobId=3 HetJobId=3 HetJobOffset=0\n GRES=a\n\nJobId=4 HetJobId=3 HetJobOffset=1\n GRES=b\n\nJobId=31 GRES=c\n"
    )
    assert record_of_job(groups, "3").count("GRES=") == 2
    assert record_of_job(groups, "1") == name_of_job("") == ""


TREE = """\
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=nid[001-002]-ib
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=gpu7,nid003-ib
SwitchName=spine Level=1 LinkSpeed=1 Nodes=gpu7,nid[001-003]-ib Switches=leaf[1-2]
SwitchName=empty Level=0 LinkSpeed=1
"""
BLOCKS = """\
BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2
BlockName=b2 BlockIndex=1 Nodes=n3,gpu7 BlockSize=2
AggregatedBlock=b[1-2] BlockIndex=2 Nodes=gpu7,n[1-3] BlockSize=4
"""


LEAVES = {"nid001-ib": "leaf1", "nid002-ib": "leaf1", "nid003-ib": "leaf2", "gpu7": "leaf2"}


@pytest.mark.parametrize(
    ("said", "leaves"),
    [
        (TREE, LEAVES),
        (BLOCKS, {"n1": "b1", "n2": "b1", "n3": "b2", "gpu7": "b2"}),
        (BLOCKS + TREE, {"n1": "b1", "n2": "b1", "n3": "b2", **LEAVES}),
        ("BlockName=b1 BlockIndex=0 Nodes=(null) BlockSize=2\n", {}),
        ("No topology information available\n", {}),
    ],
    ids=["a tree", "blocks", "both", "an empty block", "no topology"],
)
def test_the_leaf_of_a_node_is_its_switch_or_its_block(said: str, leaves: dict[str, str]) -> None:
    assert leaves_of_topology(said) == leaves


def test_nodes_have_the_addresses_of_their_records() -> None:
    said = (
        "NodeName=n1 Arch=x86_64 Gres=(null) NodeAddr=10.78.0.1 NodeHostName=n1 Version=22.05.8 Comment=a NodeAddr=x\n"
        "NodeName=n2 CoresPerSocket=1 NodeAddr=n2-ib NodeHostName=n2 RealMemory=1 BcastAddr=n2-bcast\n"
        "NodeName=n3 CoresPerSocket=1 State=DOWN+NOT_RESPONDING\n"
    )
    assert addresses_of_nodes(said) == {"n1": "10.78.0.1", "n2": "n2-ib"}


@pytest.mark.parametrize(
    ("excluded", "bad", "well", "sound", "avoided"),
    [
        ([], {"n2"}, set(), {"n1", "n3", "n4"}, ["n2"]),
        ([], {"n2"}, set(), {"n1", "n2", "n3"}, ["n2"]),
        ([], {"n2"}, set(), {"n1", "n2"}, []),  # it would wait for ever
        (["old"], {"n2"}, set(), {"n1", "n2"}, ["old"]),
        (["old", "n2"], set(), {"n2"}, {"n1", "n2"}, ["old"]),  # n2 is well again
        (["n2"], {"n2", "n3"}, set(), {"n1", "n2", "n3", "n4"}, ["n2", "n3"]),
        (["n2"], {"n2", "n3"}, set(), {"n1", "n3"}, []),
        ([], set(), {"n1"}, {"n1"}, []),
    ],
)
def test_bad_nodes_are_avoided_if_the_job_can_be_started_without_them(
    excluded: list[str], bad: set[str], well: set[str], sound: set[str], avoided: list[str]
) -> None:
    assert nodes_to_avoid(excluded, bad, well, sound, 2) == avoided


@pytest.mark.parametrize(
    ("more", "is_behind"),
    [
        ({"SLURM_PTY_PORT": "33333", "SLURM_PROCID": "0", "SLURM_TASK_PID": "70"}, True),
        ({"SLURM_PTY_PORT": "33333", "SLURM_PROCID": "0", "SLURM_TASK_PID": "77"}, False),  # srun runs laggard
        ({"SLURM_PTY_PORT": "33333", "SLURM_PROCID": "1", "SLURM_TASK_PID": "70"}, False),
        ({"SLURM_PROCID": "0", "SLURM_TASK_PID": "70"}, False),  # a script on each node
        ({}, False),
    ],
)
def test_a_shell_on_a_terminal_has_one_user_however_many_tasks_its_step_has(
    more: dict[str, str], is_behind: bool
) -> None:
    assert is_behind_pty(more, 77) == is_behind


@pytest.mark.parametrize(("count", "n_tasks"), [("2", 2), ("1", 1), ("", 1), (None, 1), ("many", 1)])
def test_the_tasks_of_a_step_are_counted(count: str | None, n_tasks: int) -> None:
    assert n_tasks_of_step({} if count is None else {"SLURM_STEP_NUM_TASKS": count}) == n_tasks

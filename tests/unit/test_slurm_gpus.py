"""How many GPUs a Slurm job has on each node, and how a step gets all of them."""

from __future__ import annotations

import pytest

from laggard.resilience.allocation import slurm
from laggard.resilience.allocation.slurm import Srun, gpus_of_job
from laggard.resilience.errors import ResourceManagerError

# As `scontrol --details show job` of Slurm 22.05 writes them, and with types and further kinds of resources.
RECORD = """\
JobId=7 JobName=interactive
   JOB_GRES=gpu:11
     Nodes=node[1-2] CPU_IDs=0-1 Mem=0 GRES=gpu:2(IDX:0-1)
     Nodes=node3 CPU_IDs=0 Mem=0 GRES=gpu:a100:2(IDX:0,3),gpu:4090:1(IDX:2),shard:9(IDX:0)
     Nodes=node4 CPU_IDs=0 Mem=0 GRES=gpu:4
     Nodes=node5 CPU_IDs=0 Mem=0 GRES=craynetwork:4
     Nodes=node6 CPU_IDs=0 Mem=0 GRES=
   MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0
"""


def test_gpus_are_counted_for_each_group_of_nodes() -> None:
    assert gpus_of_job(RECORD) == [("node[1-2]", 2), ("node3", 3), ("node4", 4)]
    assert gpus_of_job("JobId=7\n   JOB_GRES=(null)\n") == []


def test_a_step_asks_for_all_gpus_of_its_node_and_for_no_share_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"job": RECORD, "hostnames": "node3\n"}
    monkeypatch.setattr(slurm, "_output_of", lambda command, _: answers[command[-2]])
    for name in ("SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("SLURM_JOB_ID", "count")
    assert Srun().command("node3", ["true"])[:4] == [
        "env",
        "--unset=SLURM_GPUS_PER_TASK",
        "--unset=SLURM_GPU_BIND",
        "srun",
    ]
    assert "--gpus=4" in Srun().command("node3", ["true"])
    assert not [word for word in Srun().command("node9", ["true"]) if word.startswith("--gpus")]


def test_without_an_answer_of_slurm_a_step_asks_for_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise ResourceManagerError("scontrol", "did not answer within 20 s")

    monkeypatch.setattr(slurm, "_output_of", refuse)
    monkeypatch.setenv("SLURM_JOB_ID", "silent")
    assert Srun().command("node3", ["true"])[0] == "srun"

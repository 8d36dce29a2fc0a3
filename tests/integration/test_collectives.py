"""Ranks that differ in a collective: it is the program's error, and no node's. Real PyTorch, two ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from laggard.kvstore.server.process import StateServer
from laggard.resilience.controller.records import Records
from tests.integration.jobs import MAIN_JOB_DEADLINE_S, RunningJob

pytest.importorskip("torch", reason="needs the extra `torch`")

DIFFERS = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(2))

def step():
    dist.all_reduce(torch.ones(8 if rank == 1 else 4))

step()
dist.barrier()
"""


def test_tensors_of_two_sizes_end_the_job_the_third_time_and_strike_no_node(
    start_job: Callable[..., RunningJob],
) -> None:
    nodes = ["--local-nodes=3", "--nodes=2", "--virtual-gpus=1", "--per-device"]
    job = start_job(*nodes, "--resilient", "--backoff=0.1", "--state-dir=state", program=DIFFERS)
    assert job.finish(MAIN_JOB_DEADLINE_S) == 134, job.everything()
    job.wait_for(r"end +rank 0 on \S+ was killed by SIGABRT .*op\.preamble\.length.*\(program: ranks differ in a coll")
    job.wait_for("the program: 3 failures without progress, the last two at the same place")
    job.wait_for("3 launches, 0 nodes excluded")
    assert "change places" not in job.account, job.everything()
    with StateServer.start(job.directory / "state", job="program") as server:
        assert Records(server.endpoint).read_ledger() == []

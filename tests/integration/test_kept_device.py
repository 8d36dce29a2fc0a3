"""A rank that waits on its device for one that is stopped: released by a thread, on a stand-in for NCCL or on GPUs."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.waiting import wait_until

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

from tests.nccl_stand_in import on_stand_in  # noqa: E402 - it needs PyTorch

PROGRAM = """
import os, signal, sys
from datetime import timedelta
import torch
import torch.distributed as dist
from laggard.kvstore.membership import Replaced
from laggard.torch.kept_device import Device
from laggard.torch.kept_group import _Own

class Records:
    def published(self, after, wait_s):
        sys.stdin.readline()
        yield "1-0", Replaced(2, 1, (1,))

def sum_up():
    work = own.backend.allreduce([values])
    print("waits", flush=True)
    work.wait()
    device.settle()
    print(values.sum().item(), flush=True)

rank, place = int(sys.argv[1]), sys.argv[3]
if place == "cuda":
    torch.cuda.set_device(rank)
made = dist.distributed_c10d._DistributedBackendOptions()
made.store, made.timeout = dist.FileStore(sys.argv[2], 2), timedelta(seconds=60)
made.group_rank, made.group_size, made.group_id, made.global_ranks_in_group = rank, 2, "0", []
made.enable_reconfigure = True
own = _Own(None, dist.distributed_c10d._create_nccl2_process_group(made, None), made.store, rank, 2)
own.meet(1)
device, values = Device(Records(), [own], 1), torch.ones(4, device=place)
sum_up()
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    sum_up()
except RuntimeError as error:
    print(error, flush=True)
device.stop()
own.reconfigure(2, [own.handle])
device.connected(2)
values.fill_(1.0)
sum_up()
os._exit(0)
"""


@pytest.mark.skipif(
    not hasattr(torch.distributed.ProcessGroupGloo._Options, "enable_reconfigure"), reason="needs PyTorch 2.14"
)
@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_rank_whose_peer_is_stopped_is_released_and_its_group_goes_on(place: str, tmp_path: Path) -> None:
    if place == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("it needs two GPUs")
    (tmp_path / "program.py").write_text(PROGRAM if place == "cuda" else on_stand_in(PROGRAM))
    command = [sys.executable, "program.py"]
    with ExitStack() as ends:
        first, second = (
            ends.enter_context(
                subprocess.Popen(
                    [*command, rank, "store", place],
                    cwd=tmp_path,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for rank in "01"
        )
        ends.callback(second.kill)
        ends.callback(first.kill)
        assert first.stdin is not None
        assert first.stdout is not None
        assert [first.stdout.readline() for _ in range(3)] == ["waits\n", "8.0\n", "waits\n"]
        wait_until(lambda: psutil.Process(second.pid).status() == psutil.STATUS_STOPPED)
        first.stdin.write("\n")  # the controller's word
        first.stdin.flush()
        released = "a process group was aborted, and what was computed with it is wrong\n"
        assert [first.stdout.readline() for _ in range(3)] == [released, "waits\n", "4.0\n"]
        assert first.wait(60) == 0

"""What kinds of process groups are kept, and when what a rank waits for on its device is aborted."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

torch: Any = pytest.importorskip("torch", reason="needs the extra `torch`")

import torch.distributed as dist  # noqa: E402 - what follows needs PyTorch

from laggard.kvstore.membership import Formation, Published, Replaced  # noqa: E402
from laggard.torch import kept_group  # noqa: E402
from laggard.torch.kept_device import Device  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

ErrorType = torch._C._distributed_c10d.ErrorType
WITH_NCCL = pytest.mark.skipif(not hasattr(dist, "ProcessGroupNCCL2"), reason="needs PyTorch 2.14 with NCCL")
KEEPS = hasattr(dist.ProcessGroupGloo._Options, "enable_reconfigure")


class Records:
    """What the controller says, as a test says it."""

    def __init__(self) -> None:
        self._said: queue.Queue[Published] = queue.Queue()
        self.n_read = 0

    def say(self, *records: Published) -> None:
        """Say it, and wait until the thread has dealt with it: then it asks for what comes next."""
        before = self.n_read
        for each in records:
            self._said.put(each)
        wait_until(lambda: self.n_read == before + len(records))

    def published(self, after: str, wait_s: float) -> Iterator[tuple[str, Published]]:
        assert after == (str(self.n_read - 1) if self.n_read else "0-0")
        assert wait_s > 0
        yield str(self.n_read), self._said.get()
        self.n_read += 1


class Backend:
    """What is known of a backend that is aborted."""

    def __init__(self) -> None:
        self.n_aborts = 0

    def abort(self) -> None:
        self.n_aborts += 1

    def get_error(self) -> Any:
        return ErrorType.COMM_ERROR if self.n_aborts else ErrorType.SUCCESS


class OnDevice:
    """The fourth device of a machine, with two backends."""

    def __init__(self, synchronize: Callable[[int | None], object] = lambda _: None) -> None:
        self.records, self.backends = Records(), [Backend(), Backend()]
        cuda = SimpleNamespace(current_device=lambda: 3, synchronize=lambda device=None: synchronize(device))
        own = [SimpleNamespace(backend=each) for each in self.backends]
        self.device = Device(cast("Any", self.records), own, None, cuda)

    @property
    def n_aborts(self) -> int:
        first, second = (each.n_aborts for each in self.backends)
        assert first == second, "not all were aborted"
        return first


@pytest.fixture
def on_device() -> OnDevice:
    return OnDevice()


def replaced(before: int) -> Replaced:
    return Replaced(before + 1, before, (1,))


def test_what_a_rank_waits_for_is_aborted_only_if_ranks_of_its_launch_are_replaced(on_device: OnDevice) -> None:
    device, records = on_device.device, on_device.records
    records.say(replaced(3))  # before this rank took part
    device.connected(4)
    records.say(Formation(4, (), 7, {}), replaced(2))
    assert on_device.n_aborts == 0
    device.settle()
    records.say(replaced(4))
    assert on_device.n_aborts == 1
    with pytest.raises(RuntimeError, match="was aborted"):
        device.settle()
    records.say(replaced(5))  # it is not connected any more
    assert on_device.n_aborts == 1


def test_a_rank_that_connects_in_a_launch_that_is_over_does_not_wait_in_it(on_device: OnDevice) -> None:
    on_device.records.say(replaced(4))
    on_device.device.connected(4)
    assert on_device.n_aborts == 1
    on_device.device.connected(5)
    assert on_device.n_aborts == 1


def test_a_rank_that_lets_go_ends_what_its_device_waits_for_once(on_device: OnDevice) -> None:
    on_device.device.stop()
    assert on_device.n_aborts == 0
    on_device.device.connected(0)
    on_device.device.stop()
    assert on_device.n_aborts == 1
    on_device.device.stop()
    on_device.records.say(replaced(0))
    assert on_device.n_aborts == 1


def test_a_device_that_fails_when_it_is_asked_is_the_ranks_own_error() -> None:
    def fail(device: int | None) -> None:
        assert device == 3, "it was another thread's device"
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        OnDevice(fail).device.stop()


def test_a_device_that_does_not_end_its_work_is_not_waited_for() -> None:
    ends = threading.Event()
    with pytest.raises(RuntimeError, match=r"CUDA error: the device has not done its work within 0\.5 s"):
        OnDevice(lambda _: ends.wait()).device.stop(0.5)
    ends.set()


@pytest.mark.skipif(not KEEPS, reason="needs PyTorch 2.14")
@pytest.mark.parametrize(
    ("backend", "gpus", "version", "kept"),
    [
        ("gloo", 0, (2, 28), "GLOO"),
        pytest.param("nccl", 1, (2, 28), "NCCL", marks=WITH_NCCL),
        pytest.param("nccl2", 8, (3, 0), "NCCL", marks=WITH_NCCL),
        ("nccl", 0, (2, 28), None),
        ("nccl", 1, (2, 27, 9), None),
        ("cpu:gloo,cuda:nccl", 1, (2, 28), None),
        (None, 0, (2, 28), "GLOO"),
        pytest.param(None, 1, (2, 28), "NCCL", marks=WITH_NCCL),
    ],
)
def test_which_process_groups_are_kept(
    backend: str | None, gpus: int, version: tuple[int, ...], kept: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = torch.device("cuda") if gpus else None
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: found)
    cuda = SimpleNamespace(device_count=lambda: gpus, nccl=SimpleNamespace(version=lambda: version))
    kind = kept_group._kind(backend, cuda)
    name = backend or ("nccl" if gpus else "gloo")
    assert (kind and (kind.name, kind.type.name, kind.has_device)) == (kept and (name, kept, kept == "NCCL"))


# Its process ends at once, since what it has made looks for a GPU when it is ended.
NCCL2 = """
import os
from datetime import timedelta
from types import SimpleNamespace
import torch
import torch.distributed as dist
from laggard.torch import kept_group
made = dist.distributed_c10d._DistributedBackendOptions()
made.store, made.group_rank, made.group_size, made.timeout = dist.HashStore(), 1, 4, timedelta(seconds=7)
made.group_id, made.global_ranks_in_group = "0", []
made.enable_reconfigure = True
backend = kept_group._kind("nccl", SimpleNamespace(device_count=lambda: 1, nccl=torch.cuda.nccl)).make(made, None)
options = backend.options
print(backend.supports_reconfigure, options.enable_reconfigure, options._timeout.seconds, backend.get_error().name,
      backend.get_reconfigure_handle(), flush=True)
os._exit(0)
"""


@WITH_NCCL
def test_what_is_asked_of_nccl2_is_what_pytorch_has() -> None:
    done = subprocess.run([sys.executable, "-c", NCCL2], env=os.environ, capture_output=True, text=True, check=True)
    assert done.stdout == "True True 7 SUCCESS nccl2:1:-1:\n"

"""A stand-in for PyTorch's nccl2, and for the GPU that waits for it: Gloo on tensors of the host.

Its collectives are those of a GPU: they do not end when a peer is lost, and `abort` ends them without an error and
without a result. Then each further one is refused until the group gets other peers.
The text of this file is the beginning of a test's program (`on_stand_in`).
"""

from __future__ import annotations

import itertools
import os
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["NcclStandIn", "install", "on_stand_in"]

c10d: Any = torch._C._distributed_c10d
_COLLECTIVES = ("allgather", "allreduce", "broadcast", "barrier", "all_gather_single", "reduce_scatter_single")


def _tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [*itertools.chain.from_iterable(map(_tensors, tree))] if isinstance(tree, list | tuple) else []


def _cloned(tree: Any) -> Any:
    if isinstance(tree, list):
        return [*map(_cloned, tree)]
    return tree.clone() if isinstance(tree, torch.Tensor) else tree


class _Kernel(c10d.Work):  # type: ignore[misc]  # PyTorch is not read by mypy
    """A collective on its way: it has its result once Gloo has, or ends without one."""

    def __init__(self, work: Any, found: list[torch.Tensor], into: list[torch.Tensor]) -> None:
        super().__init__()
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._into = into
        self._future: Any = torch.futures.Future()
        threading.Thread(target=self._run, args=(work, found), daemon=True).start()

    def _run(self, work: Any, found: list[torch.Tensor]) -> None:
        try:
            work.wait(timedelta(hours=1))
        except RuntimeError:
            return  # a peer is lost, and a GPU would go on waiting for it
        self.end(found)

    def end(self, found: list[torch.Tensor] | None = None) -> None:
        with self._lock:
            if self._ended.is_set():
                return
            with torch.no_grad():
                for into, each in zip(self._into, found or [], strict=False):
                    into.copy_(each)
            self._ended.set()
        self._future.set_result(self._into)

    def wait(self, timeout: timedelta = timedelta()) -> bool:  # noqa: ARG002 - a GPU has none
        return self._ended.wait()

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def get_future(self) -> Any:
        return self._future


class NcclStandIn(c10d.Backend):  # type: ignore[misc]  # PyTorch is not read by mypy
    """What `ProcessGroupNCCL2` does with ``enable_reconfigure``."""

    made: list[NcclStandIn] = []  # noqa: RUF012 - those of this process

    def __init__(self, made: Any, _: object) -> None:
        assert made.enable_reconfigure
        assert made.split_from is None
        super().__init__(made.group_rank, made.group_size)
        self._gloo = dist.ProcessGroupGloo(
            made.store, made.group_rank, made.group_size, timeout=made.timeout, enable_reconfigure=True
        )
        self._lock = threading.Lock()
        self._error = c10d.ErrorType.SUCCESS
        self._running: list[_Kernel] = []
        self.made.append(self)

    def getBackendName(self) -> str:  # noqa: N802 - PyTorch's
        return "nccl2"

    def get_reconfigure_handle(self) -> str:
        return str(self._gloo.get_reconfigure_handle())

    def reconfigure(self, options: Any) -> Any:
        self.abort()
        work = self._gloo.reconfigure(options)
        self._error = c10d.ErrorType.SUCCESS
        return work

    def abort(self) -> None:
        with self._lock:
            self._error = c10d.ErrorType.COMM_ERROR
            for each in self._running:
                each.end()
            self._running.clear()

    def get_error(self) -> Any:
        return self._error

    def run(self, name: str, *arguments: Any) -> Any:
        own = [*map(_cloned, arguments)]
        with self._lock:
            if self._error != c10d.ErrorType.SUCCESS:
                raise RuntimeError("NCCL operation failed: the communicator was aborted")
            kernel = _Kernel(getattr(self._gloo, name)(*own), _tensors(own), _tensors(arguments))
            self._running = [*(each for each in self._running if not each.has_ended), kernel]
        return kernel

    def synchronize(self) -> None:
        with self._lock:
            running = [*self._running]
        for each in running:
            each.wait()


for _name in _COLLECTIVES:
    setattr(NcclStandIn, _name, lambda self, *arguments, name=_name: self.run(name, *arguments))


def _synchronize(device: int | None = None) -> None:
    # Rank 2 is asked whether its device is well, once, when a test wants it to be broken.
    if [device, os.environ.get("RANK")] == [0, "2"] and (breaks := Path("breaks")).exists():
        breaks.unlink()
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    for each in NcclStandIn.made:
        each.synchronize()


def install() -> None:
    """Put this in PyTorch's place, for this process."""
    dist.distributed_c10d._create_nccl2_process_group = NcclStandIn
    dist.ProcessGroupNCCL2 = NcclStandIn
    dist.Backend.backend_capability["nccl"] = ["cpu"]
    torch.cuda.device_count, torch.cuda.current_device = lambda: 1, lambda: 0
    torch.cuda.nccl.version = lambda: (2, 28, 3)
    torch.cuda.synchronize = _synchronize


def on_stand_in(program: str) -> str:
    """Return a program of Gloo's as one of the stand-in's."""
    return Path(__file__).read_text() + "\ninstall()\n" + program.replace('("gloo")', '("nccl")')

"""The device of a rank whose process groups are NCCL's: what releases a rank that waits there for a lost one.

Gloo's connections close when a process ends, which releases all who wait for it. NCCL may wait for ever, and only
`abort`, from another thread, ends that. What is computed from then on is wrong, although no error was raised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from laggard.errors import LaggardError
from laggard.kvstore.membership import MembershipRecords, Replaced

# What a device was given before it was released takes about a step; the controller waits longer.
WELL_S = 20.0
_READ_S = 1.0  # for which the thread waits for the controller's word at a time


class DeviceError(LaggardError):
    """The device of this rank does not work any more: another process has to take its place."""

    reason: str
    template = "{reason}"


class Device:
    """Aborts what this rank waits for on its device once the controller says that ranks are replaced, in a thread."""

    def __init__(
        self,
        records: MembershipRecords,
        backends: Callable[[], list[Any]],
        cuda: Any = torch.cuda,
        well_s: float = WELL_S,
    ) -> None:
        self._records = records
        self._cuda, self._well_s = cuda, well_s
        self._backends = backends  # those that are connected, and aborted, together
        self._lock = threading.Lock()
        self._launch: int | None = None  # the one in which they are connected
        self._over = -1  # the newest one of which ranks are replaced
        threading.Thread(target=self._listen, name="laggard-abort", daemon=True).start()

    def connected(self, launch: int) -> None:
        """Take note that the backends are connected in a launch, which may be over by now."""
        with self._lock:
            self._launch = launch
            self._abort_if_over()

    def settle(self) -> None:
        """Wait until the device has done what it was given, and raise an error if it was aborted meanwhile."""
        self._cuda.synchronize()
        success = torch._C._distributed_c10d.ErrorType.SUCCESS
        with self._lock:  # who has released the device has noted it by then
            if any(backend.get_error() != success for backend in self._backends()):
                raise RuntimeError("a process group was aborted, and what was computed with it is wrong")

    def stop(self) -> None:
        """End what the device waits for, and raise an error if it does not work any more."""
        with self._lock:
            self._abort()
        if why_not := _why_not_well(self._cuda, self._well_s):
            raise DeviceError(why_not)

    def _listen(self) -> None:
        after = "0-0"
        while True:
            for entry_id, record in self._records.published(after, _READ_S):
                after = entry_id
                if isinstance(record, Replaced):
                    with self._lock:
                        self._over = record.before
                        self._abort_if_over()

    def _abort_if_over(self) -> None:
        if self._launch is not None and self._launch <= self._over:
            self._abort()

    def _abort(self) -> None:
        # Aborting several groups of NCCL's has to be one call for all, which PyTorch does not have for nccl2. But its
        # `abort` only revokes: it waits for no other rank, and what is revoked is freed once the group gets new peers.
        for backend in self._backends() if self._launch is not None else ():
            backend.abort()
        self._launch = None


def _why_not_well(cuda: Any, deadline_s: float) -> str:
    """Return what is wrong with this thread's device; empty: nothing."""
    device = cuda.current_device()  # each thread has its own
    found = [f"CUDA error: the device has not done what it was given within {deadline_s:g} s"]

    def ask() -> None:
        try:
            cuda.synchronize(device)
            found[:] = [""]
        except RuntimeError as error:
            found[:] = [str(error)]

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(deadline_s)
    return found[0]

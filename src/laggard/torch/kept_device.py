"""The device of a rank whose process groups are NCCL's: what releases a rank that waits there for a lost one.

Gloo's connections close when a process ends, which releases all who wait for it. NCCL may wait for ever, and only
`abort`, from another thread, ends that. What is computed from then on is wrong, although no error was raised.
"""

from __future__ import annotations

import math
import threading
from concurrent import futures
from typing import Any

import torch

from laggard.kvstore.membership import MembershipRecords, Replaced

# What a device was given before it was released takes about a step; the controller waits longer.
WELL_S = 20.0
_READ_S = 1.0  # for which the thread waits for the controller's word at a time


class Device:
    """Aborts what this rank waits for on its device once the controller says that ranks are replaced, in a thread."""

    def __init__(self, records: MembershipRecords, own: list[Any], launch: int | None, cuda: Any = torch.cuda) -> None:
        self._records = records
        self._own = own  # whose backends are connected, and aborted, together
        self._launch = launch  # the one in which they are connected, if they are
        self._over = -1  # the newest one of which ranks are replaced
        self._cuda = cuda
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, name="laggard-abort", daemon=True).start()

    def connected(self, launch: int) -> None:
        """Take note that the backends are connected in a launch, which may be over by now."""
        with self._lock:
            self._launch = launch
            self._abort(self._over)

    def settle(self) -> None:
        """Wait until the device has done what it was given, and raise an error if it was aborted meanwhile."""
        self._cuda.synchronize()
        success = torch._C._distributed_c10d.ErrorType.SUCCESS
        with self._lock:  # who has released the device has noted it by then
            if any(own.backend.get_error() != success for own in self._own):
                raise RuntimeError("a process group was aborted, and what was computed with it is wrong")

    def stop(self, within_s: float = WELL_S) -> None:
        """End what the device waits for, and raise an error if it does not work any more."""
        with self._lock:
            self._abort(math.inf)
        device, asked = self._cuda.current_device(), futures.Future[None]()  # each thread has a device of its own

        def ask() -> None:
            try:
                asked.set_result(self._cuda.synchronize(device))
            except RuntimeError as error:
                asked.set_exception(error)

        threading.Thread(target=ask, daemon=True).start()
        if not futures.wait([asked], within_s).done:
            raise RuntimeError(f"CUDA error: the device has not done its work within {within_s:g} s")
        asked.result()

    def _listen(self) -> None:
        after = "0-0"
        while True:
            for entry_id, record in self._records.published(after, _READ_S):
                after = entry_id
                if isinstance(record, Replaced):
                    with self._lock:
                        self._over = record.before
                        self._abort(self._over)

    def _abort(self, newest: float) -> None:
        """End what is connected, if its launch is not newer than that."""
        if self._launch is None or self._launch > newest:
            return
        # Aborting several groups of NCCL's has to be one call for all, which PyTorch does not have for nccl2. But its
        # `abort` only revokes: it waits for no other rank, and what is revoked is freed once the group gets new peers.
        for own in self._own:
            own.backend.abort()
        self._launch = None

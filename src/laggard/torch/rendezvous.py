"""The store by which ranks that were told of each other connect: in the state server, so that no rank is special."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

from laggard.kvstore.membership import MembershipRecords

_POLL_S = 0.002
_LONGEST_POLL_S = 0.05


class Rendezvous(dist.Store):  # type: ignore[misc]  # PyTorch is not read by mypy
    """What Gloo and NCCL ask of a store, for the launch that this process belongs to now."""

    def __init__(self, records: MembershipRecords, timeout: timedelta) -> None:
        super().__init__()
        self._records = records
        self.set_timeout(timeout)  # how long to wait for a key

    def set(self, key: str, value: bytes) -> None:
        """Store a value."""
        self._records.meet(key, value)

    def get(self, key: str) -> bytes:
        """Wait for a value, and return it."""
        until_s, pause_s = time.monotonic() + self.timeout.total_seconds(), _POLL_S
        while (found := self._records.met(key)) is None:
            if time.monotonic() > until_s:
                raise RuntimeError(f"no rank has stored {key} within {self.timeout.total_seconds():g} s")
            time.sleep(pause_s)  # a hash in the server has no event to wait for
            pause_s = min(2 * pause_s, _LONGEST_POLL_S)
        return found

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Store a value unless there is one, which is all that is ever expected; return what is stored then."""
        return self._records.agree(key, desired)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait for values."""
        for key in keys:
            self.get(key)

"""The number in what a program gives to ``add_data``, taken at the call: what holds it may change afterwards.

A tensor on a GPU is copied to the host without waiting for the GPU, and read once the copy is there. That is seen in
the host's memory alone: while the program captures a CUDA graph, no other thread may ask CUDA anything.
"""

from __future__ import annotations

import sys
from collections import deque
from functools import cache
from typing import Any

import numpy as np

from laggard.telemetry.errors import TelemetryError

MAX_PENDING = 10_000
_LONGEST_SHOWN = 40
# What stands where a copy has not come to yet: a NaN that no computation returns.
_NOT_YET = np.uint64(0x7FF4_1A66_A2D0_0001)
# A time may be of the job, and of the last day: others are hardly times. Clocks may differ by a minute.
OLDEST_S, AHEAD_S = 86_400.0, 60.0
NOT_IN_JOB = "not Unix time within this job and the last day: a step is not a time"


class NotANumberError(TelemetryError):
    """Why there is no number in a value, in a few words; never raised to the program."""

    reason: str
    template = "{reason}"


class Pending:
    """A number that a GPU may not have computed yet."""

    def __init__(self, torch: Any, tensor: Any) -> None:
        with torch.cuda.device(tensor.device):
            if torch.cuda.is_current_stream_capturing():
                raise NotANumberError("a tensor of a stream whose work becomes a CUDA graph")
            self._slots = _slots(torch)
            self._number = self._slots.take()
            source = tensor.detach().reshape(()).to(torch.float64)
            self._slots.pinned[self._number].copy_(source, non_blocking=True)

    def __del__(self) -> None:
        if hasattr(self, "_number") and self.ready:  # else the copy would come to somebody else's number
            self._slots.free.append(self._number)

    @property
    def ready(self) -> bool:
        """Whether the GPU has come to it; does not wait."""
        return bool(self._slots.bits[self._number] != _NOT_YET)

    def value(self) -> float:
        """Return the number, once it is ready."""
        return float(self._slots.bits[self._number].view(np.float64))


class _Slots:
    """Memory of the host that GPUs can copy to, for as many numbers as may be pending."""

    def __init__(self, torch: Any) -> None:
        self.pinned = torch.empty(MAX_PENDING, dtype=torch.float64, pin_memory=True)
        self.bits = self.pinned.numpy().view(np.uint64)
        self.free = deque(range(MAX_PENDING))

    def take(self) -> int:
        try:
            number = self.free.popleft()
        except IndexError:
            raise NotANumberError(f"{MAX_PENDING} numbers before it are not computed yet by the GPU") from None
        self.bits[number] = _NOT_YET
        return number


@cache
def _slots(torch: Any) -> _Slots:
    return _Slots(torch)


def oldest_s(began_s: float, now_s: float) -> float:
    """Return the oldest time that a sample may have, of a job that began then by the primary's clock."""
    return min(max(began_s - AHEAD_S, now_s - OLDEST_S), now_s - AHEAD_S)


def number_of(value: object) -> float | Pending:
    """Return the number in a value."""
    if value is None:
        raise NotANumberError("None")
    if isinstance(value, np.ndarray):
        if value.size != 1:
            raise NotANumberError(f"an array of shape {value.shape}")
        value = value.item()
    if isinstance(value, (str, bytes, bytearray)):
        raise NotANumberError(f"text ({value!r:.{_LONGEST_SHOWN}})")
    if type(value).__module__.partition(".")[0] == "cupy":
        raise NotANumberError("an array on a GPU; add its float() where the program waits for the GPU anyway")
    torch: Any = sys.modules.get("torch")
    try:
        if torch is not None and isinstance(value, torch.Tensor):
            return _of_tensor(torch, value)
        return float(value)  # type: ignore[arg-type]
    except NotANumberError:
        raise
    except Exception as error:  # noqa: BLE001 - converting a program's object may raise anything
        first_line, _, _ = str(error).partition("\n")  # PyTorch's errors may have a hundred
        raise NotANumberError(f"{type(value).__name__}: {first_line}") from None


def _of_tensor(torch: Any, tensor: Any) -> float | Pending:
    if tensor.numel() != 1 or tensor.is_complex():
        raise NotANumberError(f"a tensor of {tensor.dtype} of shape {tuple(tensor.shape)}")
    if tensor.device.type == "cpu":
        return float(tensor.item())
    if tensor.device.type == "cuda":
        return Pending(torch, tensor)
    raise NotANumberError(f"a tensor on {tensor.device}; add its item() where the program waits for that anyway")

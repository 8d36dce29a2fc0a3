"""Timers of work on a GPU: CUDA events of the library whose context the program uses, PyTorch's or CuPy's.

Work is submitted to a GPU long before it runs, so a clock of the host would time its submission.
"""

from __future__ import annotations

import sys
from typing import Any, TypeAlias


class TorchTimer:
    """A timer for programs that use PyTorch on a GPU."""

    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda

    def ordinal(self) -> int:
        """Return the index of the calling thread's current device."""
        return int(self._cuda.current_device())

    def mark(self) -> Any:
        """Return an event after all that was submitted so far; None while a graph is captured."""
        if self._cuda.is_current_stream_capturing():
            return None
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def is_reached(self, event: Any) -> bool:
        """Return whether the device has reached an event."""
        return bool(event.query())

    def seconds(self, begun: Any, ended: Any) -> float:
        """Return the seconds between two events."""
        return float(begun.elapsed_time(ended)) / 1000


class CupyTimer:
    """A timer for programs that use CuPy."""

    def __init__(self, cupy: Any) -> None:
        self._cuda = cupy.cuda

    def ordinal(self) -> int:
        """Return the index of the calling thread's current device."""
        return int(self._cuda.Device().id)

    def mark(self) -> Any:
        """Return an event in the current stream."""
        if self._cuda.get_current_stream().is_capturing():
            return None
        event = self._cuda.Event()
        event.record()
        return event

    def is_reached(self, event: Any) -> bool:
        """Return whether the device has reached an event."""
        return bool(event.done)

    def seconds(self, begun: Any, ended: Any) -> float:
        """Return the seconds between two events."""
        return float(self._cuda.get_elapsed_time(begun, ended)) / 1000


DeviceTimer: TypeAlias = TorchTimer | CupyTimer
"""Marks moments in the current stream of the calling thread, and tells the time between two of them."""


def find_device_timer() -> DeviceTimer | None:
    """Return a timer if the calling thread uses a GPU through PyTorch or CuPy; loads neither, creates no context."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        return TorchTimer(torch)
    cupy = sys.modules.get("cupy")
    # On ROCm there are no contexts to ask for.
    if cupy is not None and hasattr(cupy, "cuda") and not cupy.cuda.runtime.is_hip:
        return CupyTimer(cupy) if cupy.cuda.driver.ctxGetCurrent() else None
    return None

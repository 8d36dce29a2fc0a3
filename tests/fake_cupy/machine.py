"""The machine that the stand-in for CuPy runs on: its boards, their memory, their speed and their faults."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "UNINITIALIZED",
    "Board",
    "CUDARuntimeError",
    "Machine",
    "Memory",
    "OutOfMemoryError",
    "Speed",
    "cupy_on",
    "install",
    "the_machine",
]

ALLOCATION_UNIT = 512
UNINITIALIZED = 0xCD
MODULES = (
    "",
    ".cuda",
    ".cuda.device",
    ".cuda.driver",
    ".cuda.memory",
    ".cuda.pinned_memory",
    ".cuda.runtime",
    ".cuda.stream",
)

_STATUS = {
    1: "cudaErrorInvalidValue: invalid argument",
    46: "cudaErrorDevicesUnavailable: CUDA-capable device(s) is/are busy or unavailable",
    100: "cudaErrorNoDevice: no CUDA-capable device is detected",
    101: "cudaErrorInvalidDevice: invalid device ordinal",
    400: "cudaErrorInvalidResourceHandle: invalid resource handle",
    900: "cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing",
}


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(_STATUS.get(status, f"error {status}"))


class OutOfMemoryError(MemoryError):
    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes).")
        self._limit = limit


@dataclass
class Speed:
    """What a board's parts do; every time is multiplied by ``share``, as if that many kernels took turns."""

    flop_s: float = 60e12
    memory_bytes_s: float = 3e12
    bus_bytes_s: float = 50e9
    link_bytes_s: float = 400e9
    launch_s: float = 2e-6
    cache_read_s: float = 200e-9
    memory_read_s: float = 600e-9
    clocks_hz: tuple[float, ...] = (1.98e9, 1.98e9)
    share: float = 1.0


@dataclass(frozen=True)
class Work:
    """One operation that ran on a board."""

    name: str
    stream: Any
    seconds: float


@dataclass(eq=False)
class Board:
    """A GPU: what it is, how fast, and what is wrong with it.

    Attributes
    ----------
    others_bytes
        How much of its memory other processes hold.
    peak_bytes
        The most of its memory that this process has held; CuPy's pool gives none of it back.
    events_that_sleep, events_that_spin
        How many events were made for which the host waits asleep, or in a loop.
    wrong_by
        What one number of each matrix product is wrong by.
    lost, stuck
        No call succeeds; no kernel ends.
    wait_s, events_count_waiting
        How long what is submitted waits for a neighbour's slice of time, and whether it does so after the first event
        or before.
    peers
        The boards that it can reach directly.
    rate_to
        Bytes per second of a copy to another board, by its number, where that is not the usual rate.
    """

    number: int = 0
    name: str = "NVIDIA H100 80GB HBM3"
    memory_bytes: int = 80 << 30
    others_bytes: int = 0
    cache_bytes: int = 50 << 20
    doubles_ratio: int = 2
    is_amd: bool = False
    speed: Speed = field(default_factory=Speed)
    wrong_by: float = 0.0
    lost: bool = False
    stuck: bool = False
    wait_s: float = 0.0
    events_count_waiting: bool = True
    peers: frozenset[int] = frozenset()
    rate_to: dict[int, float] = field(default_factory=dict)
    peak_bytes: int = 0
    events_that_sleep: int = 0
    events_that_spin: int = 0
    log: list[Work] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.now_s = 0.0
        self.memories: weakref.WeakSet[Memory] = weakref.WeakSet()
        self.enabled_peers: set[int] = set()
        self.last_product: object = None
        self._has_turn = False
        self._live_bytes = 0
        self._cached: list[tuple[int, int]] = []

    @contextmanager
    def having(self, **changes: object) -> Iterator[None]:
        """Change what the board is, how fast, or what is wrong with it, for a while."""
        before = {name: getattr(self, name) for name in changes}
        vars(self).update(changes)
        yield
        vars(self).update(before)

    @property
    def address(self) -> str:
        """As on the bus."""
        return f"0000:{self.number:02x}:00.0"

    @property
    def uuid(self) -> bytes:
        return bytes([*range(16, 31), 200 + self.number])

    @property
    def free_bytes(self) -> int:
        return self.memory_bytes - self.others_bytes - self.peak_bytes

    def used(self) -> Board:
        """Return itself, or fail as the driver does for a board that is lost."""
        if self.lost:
            raise CUDARuntimeError(46)
        return self

    def synchronize(self) -> None:
        if self.used().stuck:
            threading.Event().wait()  # for ever, as in a driver that does not answer
        self._has_turn = False

    def reach_event(self) -> float:
        """Return when an event is reached that is recorded now: after a neighbour's slice of time, or before it."""
        recorded_s = self.used().now_s
        if not self._has_turn:
            self.now_s += self.wait_s
        self._has_turn = True
        return recorded_s if self.events_count_waiting else self.now_s

    def works(self, name: str, stream: Any, seconds: float, *touched: NDArray[Any]) -> None:
        """Take so long over an operation that reads or writes these numbers."""
        if getattr(stream, "records", None) is not None:
            raise CUDARuntimeError(900)
        self.used().log.append(Work(name, stream, seconds * self.speed.share))
        self.now_s += self.log[-1].seconds
        for numbers in touched:
            self._touch(*np.lib.array_utils.byte_bounds(numbers))

    def take(self, n_bytes: int) -> None:
        n_bytes = -(-n_bytes // ALLOCATION_UNIT) * ALLOCATION_UNIT
        if self.used()._live_bytes + n_bytes > self.memory_bytes - self.others_bytes:
            raise OutOfMemoryError(n_bytes, self._live_bytes)
        self._live_bytes += n_bytes
        self.peak_bytes = max(self.peak_bytes, self._live_bytes)

    def give_back(self, n_bytes: int) -> None:
        self._live_bytes -= -(-n_bytes // ALLOCATION_UNIT) * ALLOCATION_UNIT

    def memory_at(self, pointer: int, n_bytes: int) -> NDArray[np.uint8]:
        """Return the bytes that a pointer points to; they must lie in one piece of this board's memory."""
        for memory in self.memories:
            offset = pointer - memory.ptr
            if offset >= 0 and offset + n_bytes <= memory.size:
                return memory.bytes[offset : offset + n_bytes]
        raise AssertionError(f"{n_bytes} bytes at {pointer:#x} are not in the memory of device {self.number}")

    def caches(self, numbers: NDArray[Any]) -> bool:
        """Tell whether all of these numbers lie in the cache."""
        first, end = np.lib.array_utils.byte_bounds(numbers)
        return any(low <= first and end <= high for low, high in self._cached)

    def _touch(self, first: int, end: int) -> None:
        self._cached = [span for span in self._cached if span[1] <= first or end <= span[0]] + [(first, end)]
        while sum(high - low for low, high in self._cached) > self.cache_bytes:
            self._cached.pop(0)


class Memory:
    """A piece of a board's memory, which ends with the last array in it."""

    def __init__(self, board: Board, content: NDArray[Any]) -> None:
        board.take(content.nbytes)
        self.bytes: NDArray[np.uint8] = content.reshape(-1).view(np.uint8)
        self.board, self.device_id = board, board.number
        self.ptr, self.size = self.bytes.ctypes.data, content.nbytes
        board.memories.add(self)
        weakref.finalize(self, board.give_back, self.size).atexit = False


class Machine:
    """Boards, and which of them a thread uses now."""

    def __init__(self, boards: tuple[Board, ...]) -> None:
        self.boards = boards
        self.is_hip = any(board.is_amd for board in boards)
        self.pinned: weakref.WeakSet[Any] = weakref.WeakSet()
        self._thread = threading.local()
        for number, board in enumerate(boards):
            board.number = number

    @property
    def device(self) -> int:
        """The number of the thread's current device."""
        return getattr(self._thread, "device", 0)

    @device.setter
    def device(self, number: int) -> None:
        self.board(number)
        self._thread.device = number

    @property
    def streams(self) -> dict[int, list[Any]]:
        """The streams that the thread uses, by device, the current one last."""
        if not hasattr(self._thread, "streams"):
            self._thread.streams = {number: [] for number in range(len(self.boards))}
        return self._thread.streams  # type: ignore[no-any-return]

    def board(self, number: int | None = None) -> Board:
        """Return a board, the thread's current one unless another is asked for."""
        number = self.device if number is None else number
        if not 0 <= number < len(self.boards):
            raise CUDARuntimeError(101 if self.boards else 100)
        return self.boards[number]


_machine = Machine(())


def the_machine() -> Machine:
    """Return the machine that CuPy runs on now."""
    return _machine


def install(*boards: Board) -> Any:
    """Have ``import cupy`` find the stand-in on a machine with these boards, to the end of the process; return it."""
    for target, value in _parts_of_laggard().items():
        module, _, name = target.rpartition(".")
        setattr(importlib.import_module(module), name, value)
    return _installed(*boards)


def _installed(*boards: Board) -> Any:
    global _machine
    _machine = Machine(boards)
    modules = {f"cupy{name}": importlib.import_module(f"tests.fake_cupy{name}") for name in MODULES}
    sys.modules.update(modules)
    return modules["cupy"]


def _parts_of_laggard() -> dict[str, Any]:
    """Return what stands in for the host's clock, since time is virtual, by its name."""
    return {"laggard.collectors.device.perf_counter": lambda: _machine.board().now_s}


@contextlib.contextmanager
def no_cupy() -> Iterator[None]:
    """Have ``import cupy`` fail within a block."""
    with mock.patch.dict(sys.modules, {"cupy": None}):
        yield


@contextlib.contextmanager
def cupy_on(*boards: Board) -> Iterator[Any]:
    """Do so within a block."""
    global _machine
    before = _machine
    try:
        with mock.patch.dict(sys.modules), contextlib.ExitStack() as stack:
            cupy = _installed(*boards)
            for target, value in _parts_of_laggard().items():
                stack.enter_context(mock.patch(target, value))
            yield cupy
    finally:
        _machine = before

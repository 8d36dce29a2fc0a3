"""Arrays in a board's memory: NumPy does the work, and what CuPy refuses is refused."""

from __future__ import annotations

from typing import Any, SupportsIndex

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import DTypeLike, NDArray

from tests.fake_cupy.cuda.memory import MemoryPointer
from tests.fake_cupy.cuda.stream import Stream, get_current_stream
from tests.fake_cupy.machine import UNINITIALIZED, Board, Memory, the_machine

__all__ = ["arange", "array", "asarray", "current", "empty", "full", "ndarray", "zeros"]


class ndarray(NDArrayOperatorsMixin):  # noqa: N801 - CuPy's name
    """Numbers in a piece of a board's memory; ``host`` is how the tests see them."""

    def __init__(self, host: NDArray[Any], memory: Memory) -> None:
        self.host, self._memory = host, memory
        self.data = MemoryPointer(memory, host.ctypes.data - memory.ptr if host.size else 0)
        self.dtype, self.shape, self.size, self.nbytes = host.dtype, host.shape, host.size, host.nbytes

    def __len__(self) -> int:
        return len(self.host)

    def __array__(self, *_: object, **__: object) -> NDArray[Any]:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def __int__(self) -> int:
        return int(self.get())

    def __getitem__(self, place: Any) -> ndarray:
        return self._view(self.host[place] if not isinstance(place, SupportsIndex) else self.host[place, ...])

    def __setitem__(self, place: Any, value: Any) -> None:
        numbers = operand(value)
        current(self)[place] = numbers
        self._works("copy", self.host[place])

    def view(self, dtype: Any = None) -> ndarray:
        return self._view(self.host.view(dtype))

    def reshape(self, *shape: Any, order: str = "C") -> ndarray:
        assert order == "C"
        return self._view(self.host.reshape(*shape, copy=False))

    @property
    def T(self) -> ndarray:  # noqa: N802
        return self._view(self.host.T)

    def fill(self, value: Any) -> None:
        current(self).fill(value)
        self._works("fill", self.host)

    def astype(self, dtype: DTypeLike) -> ndarray:
        return self._made("astype", current(self).astype(dtype))

    def sum(self, axis: int | None = None) -> ndarray:
        return self._made("sum", np.asarray(current(self).sum(axis=axis)))

    def max(self) -> ndarray:
        return self._made("max", np.asarray(current(self).max()))

    def get(self, stream: Stream | None = None, order: str = "C", out: Any = None, blocking: bool = True) -> Any:
        assert stream is None
        assert out is None
        assert blocking
        board = self._memory.board
        board.synchronize()
        board.works("get", get_current_stream(), self.nbytes / board.speed.bus_bytes_s, self.host)
        return np.array(self.host, order="C" if order == "C" else "F")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__":
            return NotImplemented
        numbers = [operand(value) for value in inputs]
        if "out" not in kwargs:
            return self._made(ufunc.__name__, np.asarray(ufunc(*numbers)))
        (target,) = kwargs["out"]
        ufunc(*numbers, out=current(target))
        self._works(ufunc.__name__, target.host)
        return target

    def _view(self, host: NDArray[Any]) -> ndarray:
        return ndarray(host, self._memory)

    def _made(self, name: str, result: NDArray[Any]) -> ndarray:
        made = _new(np.require(result, requirements="C"))
        self._works(name, self.host, made.host)
        return made

    def _works(self, name: str, *touched: NDArray[Any]) -> None:
        board = self._memory.board
        n_bytes = sum(numbers.nbytes for numbers in touched)
        board.works(name, get_current_stream(), n_bytes / board.speed.memory_bytes_s, *touched)


def current(numbers: ndarray) -> NDArray[Any]:
    """Return an array's numbers; it must be one of the current device."""
    device = the_machine().device
    if numbers.data.device_id != device:
        raise ValueError(
            f"Array device must be same as the current device: array device = {numbers.data.device_id} "
            f"while current = {device}"
        )
    return numbers.host


def operand(value: Any) -> Any:
    """Return what CuPy computes with: an array of its own, or a plain number."""
    if isinstance(value, ndarray):
        return current(value)
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    return value


def empty(shape: Any, dtype: DTypeLike = float, order: str = "C") -> ndarray:
    assert order == "C"
    n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    _check_room(the_machine().board(), n_bytes)
    return _new(np.full(n_bytes, UNINITIALIZED, np.uint8).view(dtype).reshape(shape))


def zeros(shape: Any, dtype: DTypeLike = float, order: str = "C") -> ndarray:
    assert order == "C"
    return _new(np.zeros(shape, dtype))


def full(shape: Any, fill_value: Any, dtype: Any = None) -> ndarray:
    return _new(np.full(shape, fill_value, dtype))


def arange(start: int, stop: int | None = None, step: int = 1, dtype: Any = None) -> ndarray:
    first, end = (0, start) if stop is None else (start, stop)
    return _new(np.arange(first, end, step, dtype=dtype))


def array(obj: Any, dtype: Any = None) -> ndarray:
    return _new(np.array(obj, dtype, order="C"))


def asarray(
    a: Any, dtype: Any = None, order: str | None = None, *, copy: bool | None = None, blocking: bool = False
) -> ndarray:
    assert (order, copy, blocking) == (None, None, False)
    if isinstance(a, ndarray):
        return a
    board = the_machine().board()
    made = array(a, dtype)
    board.works("asarray", get_current_stream(), made.nbytes / board.speed.bus_bytes_s, made.host)
    return made


def _check_room(board: Board, n_bytes: int) -> None:
    """Fail before so much of the host's memory is taken."""
    board.take(n_bytes)
    board.give_back(n_bytes)


def _new(content: NDArray[Any]) -> ndarray:
    return ndarray(content, Memory(the_machine().board(), content))

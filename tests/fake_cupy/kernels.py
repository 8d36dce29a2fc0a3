"""Custom kernels, compiled for the host and run: the same source text that a GPU's compiler gets."""

from __future__ import annotations

import ctypes
import functools
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.fake_cupy.arrays import current, ndarray
from tests.fake_cupy.cuda.stream import get_current_stream
from tests.fake_cupy.machine import Board, the_machine

__all__ = ["ElementwiseKernel", "RawModule", "host_compiler", "on_host"]

# The one instruction of PTX that the probes have.
_GLOBAL_TIMER = re.compile(r'asm volatile\("mov\.u64 %0, %%globaltimer;" : "=l"\((\w+)\) :: "memory"\);')
_KERNEL = r'extern "C" __global__ void {name}\(([^)]*)\)'
_C_TYPES = {"float32": "float"}
_POINTERS = {"unsigned": np.uint32, "long long": np.int64, "float": np.float32}
_NUMBERS = {"long long": (np.int64, ctypes.c_longlong)}


def host_compiler() -> str | None:
    """Return the host's C++ compiler."""
    return shutil.which("g++") or shutil.which("c++")


@functools.cache
def on_host(source: str) -> ctypes.CDLL:
    """Compile a text of CUDA for the host and load it."""
    header = Path(__file__).with_name("host_cuda.h")
    with tempfile.TemporaryDirectory(prefix="laggard-kernels-") as directory:
        text, library = Path(directory, "kernels.cpp"), Path(directory, "kernels.so")
        text.write_text(_GLOBAL_TIMER.sub(r"\1 = globaltimer();", source))
        flags = "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-include", header
        subprocess.run([str(host_compiler()), *flags, "-o", library, text], check=True, timeout=60)
        return ctypes.CDLL(str(library))


class RawModule:
    """Kernels from a text."""

    def __init__(self, *, code: str) -> None:
        self._code = code

    def get_function(self, name: str) -> RawKernel:
        kernel = RawKernel(self._code, name)
        kernel.load()  # as CuPy does: for the device that is current now
        return kernel


class RawKernel:
    """One kernel; its arguments are checked against its text, which a GPU would not do."""

    def __init__(self, code: str, name: str) -> None:
        self._name, self._library = name, on_host(code)
        found = re.search(_KERNEL.format(name=name), code)
        assert found, f"there is no kernel {name}"
        self._parameters = [parameter.strip() for parameter in found[1].split(",") if parameter.strip()]

    def load(self) -> None:
        the_machine().board().works("load", get_current_stream(), 0.0)

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...]) -> None:
        assert all(isinstance(given, tuple) for given in (grid, block, args))
        assert len(args) == len(self._parameters), f"{self._name} takes {len(self._parameters)} arguments"
        values = [_as_c(argument, parameter) for argument, parameter in zip(args, self._parameters, strict=True)]
        board = the_machine().board()
        seconds = _seconds(board, self._name, args)
        kernel = getattr(self._library, self._name)
        _set(self._library, "cycles_an_operation", ctypes.c_double, 4 * board.speed.share)
        for number in range(grid[0]):
            _set(self._library, "blockIdx", ctypes.c_uint, number)
            _set(self._library, "clock_hz", ctypes.c_double, board.speed.clocks_hz[number])
            for thread in range(block[0]):
                _set(self._library, "threadIdx", ctypes.c_uint, thread)
                kernel(*values)
        board.works(self._name, get_current_stream(), seconds)


class ElementwiseKernel:
    """One line of C++ for each element."""

    def __init__(self, in_params: str, out_params: str, operation: str, name: str = "kernel") -> None:
        self._name = name
        self._types, names = zip(*(text.split() for text in f"{in_params}, {out_params}".split(", ")), strict=True)
        c_types = [_C_TYPES[dtype] for dtype in self._types]
        declared = ", ".join(f"{c_type}* {place}_" for c_type, place in zip(c_types, names, strict=True))
        element = " ".join(f"{c_type}& {place} = {place}_[i];" for c_type, place in zip(c_types, names, strict=True))
        self._library = on_host(
            f'extern "C" void {name}(long long n, {declared}) {{\n'
            f"    for (long long i = 0; i < n; ++i) {{ {element} {operation}; }}\n}}\n"
        )

    def __call__(self, *args: ndarray) -> None:
        assert [argument.dtype for argument in args] == list(self._types)
        numbers = [current(argument) for argument in args]
        getattr(self._library, self._name)(ctypes.c_longlong(args[0].size), *_pointers(args))
        board = the_machine().board()
        moved = sum(argument.nbytes for argument in args) + args[-1].nbytes  # the last is read and written
        board.works(self._name, get_current_stream(), moved / board.speed.memory_bytes_s, *numbers)


def _pointers(arrays: Sequence[ndarray]) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(array.data.ptr) for array in arrays]


def _as_c(argument: Any, parameter: str) -> Any:
    """Return an argument for C: CuPy passes on the bytes of what it is given, so its type must be the kernel's."""
    declared = parameter.removeprefix("const ").rpartition(" ")[0]
    if declared.endswith("*"):
        assert current(argument).dtype == _POINTERS[declared[:-1]], f"{argument.dtype} for {parameter}"
        return ctypes.c_void_p(argument.data.ptr)
    dtype, c_type = _NUMBERS[declared]
    assert type(argument) is dtype, f"{type(argument)} for {parameter}"
    return c_type(int(argument))


def _set(library: ctypes.CDLL, name: str, c_type: Any, value: float) -> None:
    c_type.in_dll(library, name).value = value


def _seconds(board: Board, name: str, args: Sequence[Any]) -> float:
    """Return how long one of the probes' kernels takes."""
    if name == "clock_ratio":
        return int(args[0]) * 4 / min(board.speed.clocks_hz)
    if name == "chase":
        read_s = board.speed.cache_read_s if board.caches(args[0].host) else board.speed.memory_read_s
        return int(args[1]) * read_s
    return board.speed.launch_s

"""The stand-in for CuPy has only names, arguments and constants that CuPy has, where CuPy is installed."""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tests import fake_cupy

PARTS = [
    "cuda",
    "cuda.cublas",
    "cuda.device",
    "cuda.driver",
    "cuda.memory",
    "cuda.pinned_memory",
    "cuda.runtime",
    "cuda.stream",
]
CLASSES = [
    "ndarray",
    "ElementwiseKernel",
    "RawModule",
    "cuda.Device",
    "cuda.Event",
    "cuda.MemoryPointer",
    "cuda.Stream",
]
# By these the tests look into the stand-in, and the stand-in into itself.
OURS = {"UNINITIALIZED", "stream_of", "host", "mem", "multiply"}


@pytest.fixture(scope="module")
def cupy() -> ModuleType:
    real = pytest.importorskip("cupy")
    assert isinstance(real, ModuleType)
    return real


def own(of: Any) -> dict[str, Any]:
    """Return the functions and numbers of a module or class that are not from elsewhere."""
    where = of.__module__ if inspect.isclass(of) else of.__name__
    return {
        name: value
        for name, value in vars(of).items()
        if not name.startswith("_") and name not in OURS
        if isinstance(value, int) or getattr(value, "__module__", "") == where
    }


def parameters(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's parameters; a compiled one tells them in the first line of its docstring."""
    try:
        names = list(inspect.signature(function).parameters)
    except ValueError:
        (inside,) = re.findall(r"^[\w.]+\((.*?)\)(?: ->|$)", (function.__doc__ or "").splitlines()[0])
        names = [part.partition("=")[0].split()[-1].strip("*") for part in inside.split(",") if part]
    return [name for name in names if name not in ("self", "", "args", "kwargs")]


@pytest.mark.parametrize("part", PARTS)
def test_its_functions_and_constants_are_cupys(cupy: ModuleType, part: str) -> None:
    ours, theirs = (operator.attrgetter(part)(module) for module in (fake_cupy, cupy))
    for name, value in own(ours).items():
        if isinstance(value, int):
            assert getattr(theirs, name) == value, name
        elif inspect.isfunction(value):
            assert parameters(getattr(theirs, name))[: len(parameters(value))] == parameters(value), name


@pytest.mark.parametrize("kind", CLASSES)
def test_its_methods_are_cupys(cupy: ModuleType, kind: str) -> None:
    ours, theirs = (operator.attrgetter(kind)(module) for module in (fake_cupy, cupy))
    for name, value in own(ours).items():
        method = getattr(theirs, name)
        if inspect.isfunction(value) and method.__doc__:  # a few of the compiled ones tell nothing
            assert set(parameters(value)) <= set(parameters(method)), name


def test_memory_that_is_short_is_a_memory_error_and_errors_have_a_status(cupy: ModuleType) -> None:
    assert issubclass(cupy.cuda.memory.OutOfMemoryError, MemoryError)
    assert cupy.cuda.runtime.CUDARuntimeError(2).status == 2
    assert cupy.cuda.cublas.CUBLASError(3).status == 3

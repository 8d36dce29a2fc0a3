"""Neighbours: processes that load a device, or its host, on request.

``python -m benchmarks.neighbour KIND GPU`` prints ``ready``. From then on each line on its standard input starts or
stops the load, and is answered with ``busy`` or ``resting``. It exits when its input is closed, so it never outlives
the process that started it.
"""

from __future__ import annotations

import hashlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from benchmarks.probers import PROBERS
from laggard.collectors.device import Device, GpuDevice, local_devices
from laggard.collectors.probes.exact_pattern import pattern

__all__ = ["KINDS", "ONE_THREAD", "Neighbour", "kinds_on"]

ROOT = Path(__file__).parents[1]
READY_WITHIN_S = 120.0  # loading CuPy and creating a context takes a while
ANSWER_WITHIN_S = 30.0
MIB = 1 << 20
GPU_MATRIX, GPU_ELEMENTS, GPU_COPY_BYTES = 4096, 64 * MIB, 64 * MIB
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Environment variables for programs on virtual devices: a device is worth one core, as in a job."""

Work = Callable[[], object]


class Neighbour:
    """A process that contends with ours for a resource; a context manager that ends it.

    Parameters
    ----------
    kind
        One of :data:`KINDS`.
    gpu
        The device's name on this node.
    environ
        Environment variables added to ours: those that define virtual devices.

    Raises
    ------
    RuntimeError
        If it does not start.

    Examples
    --------
    ::

        with Neighbour("compute", device.gpu, environ) as user:
            with user.at_work():
                ...  # the device is busy
    """

    def __init__(self, kind: str, gpu: str, environ: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.neighbour", kind, gpu],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **ONE_THREAD, **(environ or {})},
        )
        try:
            self._expect("ready", READY_WITHIN_S)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Apply the load for the length of a block: it starts before the block is entered and stops when it is left."""
        self._switch("busy")
        try:
            yield
        finally:
            self._switch("resting")

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: PT018, S101 - for mypy
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(ANSWER_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _switch(self, answer: str) -> None:
        assert self._process.stdin is not None  # noqa: S101 - for mypy
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self._expect(answer, ANSWER_WITHIN_S)

    def _expect(self, expected: str, within_s: float) -> None:
        assert self._process.stdout is not None  # noqa: S101 - for mypy
        readable, _, _ = select.select([self._process.stdout], [], [], within_s)
        answer = self._process.stdout.readline().strip() if readable else f"nothing for {within_s:.0f} s"
        if answer != expected:
            raise RuntimeError(f"neighbour {self.kind!r} answered {answer!r} instead of {expected!r}: did it die?")


# ---------------------------------------------------------------------------------------------------------------------
# The kinds. Each returns what its threads repeat; one repetition takes about 10 ms, so that the load stops quickly.


def compute(device: Device) -> Sequence[Work]:
    """Multiply large matrices back to back, with one product always queued behind the running one."""
    size, products = (GPU_MATRIX, 8) if isinstance(device, GpuDevice) else (768, 1)
    module: Any = device.array_module

    def matrix(seed: int) -> Any:
        return device.run(lambda: pattern(size, seed, module).astype(np.float32))

    def multiplied() -> Work:
        left, right, product = matrix(1), matrix(2), matrix(3)
        return lambda: device.run(lambda: [module.matmul(left, right, out=product) for _ in range(products)])

    return [multiplied(), multiplied()]


def memory(device: Device) -> Sequence[Work]:
    """Add arrays too large for any cache, back to back."""
    elements, sums = (GPU_ELEMENTS, 24) if isinstance(device, GpuDevice) else (4 * MIB, 1)
    return [_sums(device.array_module, device.run, elements, sums) for _ in range(2)]


def bus(device: Device) -> Sequence[Work]:
    """Copy between the GPU and the host's pinned memory, in both directions at once, two copies queued in each."""
    return [_copies(device, kind) for kind in ("memcpyHostToDevice", "memcpyDeviceToHost") for _ in range(2)]


def processor(device: Device) -> Sequence[Work]:
    """Keep every core busy with two threads that need no memory."""
    del device
    return [lambda: hashlib.pbkdf2_hmac("sha256", b"", b"", 20_000)] * (2 * (os.cpu_count() or 1))


def host_memory(device: Device) -> Sequence[Work]:
    """Add arrays too large for any cache in the host's memory, on half of its cores."""
    del device
    return [_sums(np, lambda kernel: kernel(), 4 * MIB, 1) for _ in range(max(1, (os.cpu_count() or 1) // 2))]


def _sums(module: Any, run: Callable[[Work], object], elements: int, sums: int) -> Work:
    arrays: list[Any] = []
    run(lambda: arrays.extend(module.full(elements, value, np.float32) for value in (0, 1, 2)))
    a, b, c = arrays

    def add() -> None:
        for _ in range(sums):
            module.multiply(c, 3.0, out=a)
            module.add(a, b, out=a)

    return lambda: run(add)


def _copies(device: Device, kind: str) -> Work:
    import cupy

    size, copies = GPU_COPY_BYTES, 8
    runtime = cupy.cuda.runtime
    there = device.run(lambda: cupy.empty(size, np.uint8))
    here = device.run(lambda: cupy.cuda.alloc_pinned_memory(size))
    stream = device.run(lambda: cupy.cuda.Stream(non_blocking=True))

    def copy() -> None:
        ends = (there.data.ptr, here.ptr) if kind == "memcpyHostToDevice" else (here.ptr, there.data.ptr)
        with stream:
            for _ in range(copies):
                runtime.memcpyAsync(*ends, size, getattr(runtime, kind), stream.ptr)
            stream.synchronize()

    return lambda: device.run(copy)


KINDS: Mapping[str, Callable[[Device], Sequence[Work]]] = {
    "compute": compute,
    "memory": memory,
    "bus": bus,
    "processor": processor,
    "host memory": host_memory,
}
"""For each kind, the function that returns what its threads repeat."""


def kinds_on(device: Device) -> list[str]:
    """Return the kinds that apply to a device: a virtual one has no bus."""
    return [kind for kind in KINDS if kind != "bus" or isinstance(device, GpuDevice)]


# ---------------------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """Start and stop the load as requested on standard input."""
    kind, gpu = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it exits with its input, even if the terminal interrupts both of us
    (device,) = [device for device in local_devices() if device.gpu == gpu]
    works = {**KINDS, **PROBERS}[kind](device)
    resting = threading.Event()

    def go_on(work: Work) -> None:
        while not resting.is_set():
            work()

    with ThreadPoolExecutor(len(works)) as pool:
        works[0]()  # warm up: the first call loads libraries
        print("ready", flush=True)
        while sys.stdin.readline():
            resting.clear()
            running = [pool.submit(go_on, work) for work in works]
            works[0]()  # once it is done, the others have started
            print("busy", flush=True)
            line = sys.stdin.readline()
            resting.set()
            for each in running:
                each.result()
            if line:
                print("resting", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

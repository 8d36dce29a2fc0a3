"""``python -m laggard.resilience.agent.node_check``: the state of this node.

It waits for its agent's own command (:class:`laggard.resilience.wire.checks.CheckNode`) on its standard input. The
agent asks when the job begins and after a failure, and ends it if it takes too long: a driver or a file system that
hangs must not hold up the agent. What cannot be read is left out. The answer is written again with all that is known in
addition, so that the last line says as much as there was time for.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from laggard.collectors.device import VIRTUAL_DEVICE_DIR
from laggard.kvstore.client.environment import ENDPOINT_FILE
from laggard.resilience.decision.evidence import GpuHealth, Memory, NodeCheck
from laggard.resilience.reading.prefixes import clean_line
from laggard.resilience.reading.signatures import signature_of
from laggard.resilience.wire import decode, encode
from laggard.resilience.wire.checks import CheckNode, NodeChecked
from laggard.system.memory import oom_kills

KERNEL_LOG = Path("/dev/kmsg")
KERNEL_WINDOW_S = 600.0
MAX_KERNEL_LINES = 20
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - it is looked at, not written to
_RECORD_BYTES = 1 << 14


def main(asked: CheckNode, driver: Any = None, agent_pid: int | None = None) -> None:
    """Print the state of this node and of these devices, and if asked what is wrong with a test kernel there."""
    own_folder = str(Path(os.environ.get(ENDPOINT_FILE, "")).absolute().parent)
    check = NodeCheck(
        time.time(),
        {} if VIRTUAL_DEVICE_DIR in os.environ else {name: gpu_health(name, driver) for name in asked.devices},
        dict(_free_bytes([str(Path.cwd()), own_folder, SHARED_MEMORY])),
        oom_kills(),
        tuple(hardware_lines(recent_kernel_lines(time.monotonic() - KERNEL_WINDOW_S)))[-MAX_KERNEL_LINES:],
    )
    _write(check)
    # A walk through all processes: it may take its time.
    check = replace(check, memory=_memory(agent_pid or os.getppid()))
    _write(check)
    if asked.probe and check.gpus:
        faults: dict[str, str] = {}
        for name, fault in _probed():
            faults[name] = fault
            _write(replace(check, faults={name: fault for name, fault in faults.items() if fault}))


def _write(check: NodeCheck) -> None:
    sys.stdout.buffer.write(encode(NodeChecked(check)))
    sys.stdout.buffer.flush()


def _probed() -> Iterator[tuple[str, str]]:
    """Yield each GPU with what is wrong with the results of a test kernel; none that cannot run one now."""
    from laggard.collectors.device import device_makers  # they load the GPU's libraries, after all else is done
    from laggard.collectors.errors import NoDeviceError
    from laggard.collectors.probes import gemm_probe

    with contextlib.suppress(NoDeviceError):
        for name, make in device_makers().items():
            # The program that is ending may have all of the memory, and CuPy or a library of its may be missing.
            with contextlib.suppress(RuntimeError, MemoryError, OSError, ImportError):
                probe = gemm_probe(make())
                probe.seconds()
                yield name, probe.fault()


def _memory(agent_pid: int) -> Memory:
    """Return this machine's memory; what the agent's descendants hold counts as free, since they are being ended."""
    machine = psutil.virtual_memory()
    held_bytes = 0
    for process in psutil.Process(agent_pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            held_bytes += process.memory_info().rss  # what several share is counted for each: rather too much than not
    return Memory(machine.total, min(machine.total, machine.available + held_bytes))


def gpu_health(name: str, driver: Any = None) -> GpuHealth:
    """Return the state of a GPU of NVIDIA's; one whose driver (None: NVML) does not know it is lost."""
    import pynvml as nvml

    from laggard.collectors.metrics.nvml import field_values, nvml_handle

    driver = nvml if driver is None else driver
    fields = (nvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL, nvml.NVML_FI_DEV_REMAPPED_FAILURE)
    try:
        driver.nvmlInit()
        values = dict(field_values(nvml_handle(name, driver), fields, driver))
    except nvml.NVMLError:
        return GpuHealth(lost=True)
    return GpuHealth(
        uncorrectable=int(values.get(nvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL, 0)),
        remap_failed=bool(values.get(nvml.NVML_FI_DEV_REMAPPED_FAILURE, 0)),
    )


def recent_kernel_lines(since_s: float, log: Path = KERNEL_LOG) -> Iterator[str]:
    """Yield the lines of the kernel's log since a monotonic time; none where it may not be read."""
    with contextlib.suppress(OSError):
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
        try:
            while record := os.read(descriptor, _RECORD_BYTES):  # one record, then BlockingIOError after the last
                head, _, text = record.decode(errors="replace").partition(";")
                if int(head.split(",")[2]) / 1e6 >= since_s:
                    yield text.partition("\n")[0]
        finally:
            os.close(descriptor)


def hardware_lines(lines: Iterable[str]) -> list[str]:
    """Return the lines that are about failing hardware."""
    found = ((line, signature_of(clean_line(line))) for line in lines)
    return [line for line, signature in found if signature is not None and signature.kind == "hardware"]


def _free_bytes(paths: Iterable[str]) -> Iterator[tuple[str, int]]:
    for path in paths:
        with contextlib.suppress(OSError):
            state = os.statvfs(path)
            yield path, state.f_bavail * state.f_frsize


if __name__ == "__main__" and (_question := sys.stdin.buffer.readline()):  # empty if the agent has ended
    main(decode(_question, CheckNode))

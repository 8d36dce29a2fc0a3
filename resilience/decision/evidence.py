"""What speaks against a node after a failure: its devices, disks, memory and kernel, compared with before. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from laggard.detectors.verdict import Evidence
from laggard.resilience.reading.signatures import signature_of

OfGpu = Literal["gpu lost", "gpu gone", "memory errors", "broken row", "wrong results", "no reading", "slow"]
FindingKind = Literal[OfGpu, "disk full", "memory lost", "memory in use", "kernel line"]

# A disk with less than this is full: a checkpoint, a log or a socket no longer fits.
FULL_BELOW_BYTES = 16 << 20
# With less of its memory than this, a node would have a relaunched program killed for want of memory.
SCARCE_BELOW_SHARE = 0.05
# A machine's total memory differs a little from one start of its kernel to the next.
LOST_ABOVE_SHARE = 0.02
MAX_KERNEL_LINE = 160


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """The state of one GPU."""

    lost: bool = False  # whether its driver no longer reaches it
    uncorrectable: int = 0  # memory errors that could not be corrected, since the driver was loaded
    remap_failed: bool = False  # whether a broken row of its memory could not be replaced


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one machine."""

    total_bytes: int  # all of it
    free_bytes: int  # what is free, or is held by what the agent has started and can end

    @property
    def is_scarce(self) -> bool:
        """Whether others hold nearly all of it."""
        return self.free_bytes < SCARCE_BELOW_SHARE * self.total_bytes


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """The state of a node at one moment."""

    time_s: float  # Unix time by the node's own clock
    # The state of each of its GPUs, by name; empty without GPUs
    gpus: Mapping[str, GpuHealth] = field(default_factory=dict)
    free_bytes: Mapping[str, int] = field(default_factory=dict)  # free space of its file systems, by path
    # Processes that the kernel has killed for want of memory, since the machine or its container started
    oom_kills: int = 0
    # Lines that the kernel has written in the last ten minutes about failing hardware
    kernel_lines: tuple[str, ...] = ()
    # What was wrong with the results of a test kernel, by the name of the GPU; only of those that had the time
    faults: Mapping[str, str] = field(default_factory=dict)
    memory: Memory | None = None  # the memory of the machine; None if there was no time to add it up


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that speaks against a node."""

    kind: FindingKind  # what it is
    of: str = ""  # the GPU, the path or the kernel's line; empty if it is of the whole node
    number: float = 0.0  # how many errors; or gigabytes, to one digit, so that two nodes of one machine have the same
    total: float = 0.0
    fault: str = ""  # what is wrong with the results of the GPU
    slow: Evidence | None = None  # what was found of a GPU that is slow, or computes wrong results in reserve


@dataclass(frozen=True, slots=True)
class Found:
    """What speaks against a node."""

    host: str
    findings: tuple[Finding, ...]


def evidence_against(checks: Mapping[str, tuple[NodeCheck, NodeCheck]]) -> tuple[Found, ...]:
    """Return what speaks against each node; nodes against which nothing speaks are left out."""
    # What is found on more than one node and on more than half of them has a cause that they share, such as a file
    # system or, for virtual nodes, the machine: it speaks against none of them.
    found = {host: tuple(_findings(before, after)) for host, (before, after) in checks.items()}
    on_nodes = Counter(finding for findings in found.values() for finding in findings)
    shared = {finding for finding, number in on_nodes.items() if number > 1 and number > len(checks) / 2}
    own = (Found(host, tuple(each for each in of_host if each not in shared)) for host, of_host in found.items())
    return tuple(each for each in own if each.findings)


def memory_ran_out(before: NodeCheck, after: NodeCheck) -> bool:
    """Return whether the kernel has killed a process of a node for want of memory in between."""
    return after.oom_kills > before.oom_kills


def _findings(before: NodeCheck, after: NodeCheck) -> Iterator[Finding]:
    for name, gpu in after.gpus.items():
        earlier = before.gpus.get(name, GpuHealth())
        if gpu.lost and not earlier.lost:
            yield Finding("gpu lost", name)
        if gpu.uncorrectable > earlier.uncorrectable:
            yield Finding("memory errors", name, gpu.uncorrectable - earlier.uncorrectable)
        if gpu.remap_failed and not earlier.remap_failed:
            yield Finding("broken row", name)
    yield from (Finding("gpu gone", name) for name in sorted(before.gpus.keys() - after.gpus.keys()))
    yield from (Finding("wrong results", name, fault=fault) for name, fault in after.faults.items())
    for path, free in after.free_bytes.items():
        if free < FULL_BELOW_BYTES <= before.free_bytes.get(path, FULL_BELOW_BYTES):
            yield Finding("disk full", path)
    if before.memory is not None and after.memory is not None:
        yield from _memory_findings(before.memory, after.memory)
    for line in after.kernel_lines:
        signature = signature_of(line)
        if line not in before.kernel_lines and signature is not None and signature.kind == "hardware":
            yield Finding("kernel line", line[:MAX_KERNEL_LINE])


def _memory_findings(before: Memory, after: Memory) -> Iterator[Finding]:
    total_gb, free_gb = round(after.total_bytes / 1e9, 1), round(after.free_bytes / 1e9, 1)
    if after.total_bytes < (1 - LOST_ABOVE_SHARE) * before.total_bytes:
        yield Finding("memory lost", number=total_gb, total=round(before.total_bytes / 1e9, 1))
    if after.is_scarce and not before.is_scarce:
        yield Finding("memory in use", number=free_gb, total=total_gb)

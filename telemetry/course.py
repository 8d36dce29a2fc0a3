"""The course of a job as its controller records it, as far as telemetry shows it too: one frozen record each."""

from __future__ import annotations

from dataclasses import dataclass

from laggard.kvstore.control import NodeRecord


@dataclass(frozen=True, slots=True)
class JobBegan:
    """A job began, and its record: the first entry."""

    name: str
    id: str
    command: tuple[str, ...]  # the program's command line
    nodes: tuple[NodeRecord, ...]  # all nodes of the allocation
    level: int  # level of the telemetry, and port of its server
    port: int
    pid: int = 0  # the controller's process, and the host name of its machine
    machine: str = ""
    folder: str | None = None  # folder of the record; None: there is none


@dataclass(frozen=True, slots=True)
class Gap:
    """The time from the decision to relaunch to the start of the next program, in seconds."""

    stop_s: float  # until the old program had ended
    # Then, until it could write no more, what it wrote was on disk, and nothing of it ran on the primary
    fence_s: float
    # Then, until the bad node had left the cluster, the new one had joined, and nothing of the old launch was left
    nodes_s: float

    @property
    def total_s(self) -> float:
        """The whole gap, in seconds."""
        return self.stop_s + self.fence_s + self.nodes_s


@dataclass(frozen=True, slots=True)
class LaunchBegan:
    """A launch began: its number, the host names in use and in reserve, the primary, and the gap before it."""

    launch: int
    nodes: tuple[str, ...]
    reserve: tuple[str, ...]
    primary: str
    gap: Gap | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a launch had come: when that was first seen (Unix time), the commits by all launches, its newest step."""

    time_s: float
    commits: int
    step: float | None


@dataclass(frozen=True, slots=True)
class LaunchProgressed:
    """A launch has come further."""

    launch: int
    progress: Progress

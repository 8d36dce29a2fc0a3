"""What the user asked for, checked: pure, so that every wrong usage is one line of a table test."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from resilience.hang import HangTimeout
from resilience.policy import Settings

__all__ = ["JobOptions", "UsageError"]

MAX_LOCAL_NODES = 250
MAX_HANG_S = 1_000_000


class UsageError(ValueError):
    """The options do not fit together; the message names the offending value and the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The options of ``laggard run``, as given.

    Attributes
    ----------
    local_nodes
        Virtual nodes on this machine.
    nodes
        Nodes in use; ``None``: all but the idle ones.
    idle
        Nodes kept in reserve; ``None``: all that are not in use.
    resilient, exhaust_resources, quarantine_s, max_restarts, max_restarts_per_hour
        For the policy.
    virtual_gpus
        Virtual devices per node; 0: the machine's own GPUs.
    telemetry_level
        0 to 4.
    telemetry_config
        File with the telemetry's settings.
    hang_timeout
        Seconds that the program may be silent, as text, or ``auto``; ``None``: as long as it likes.
    per_node
        Run a copy of the program on every node.
    detect
        What to look for beside the program; ``None``: nothing.
    detect_interval_s
        Seconds from one round of probes to the next.
    grace_s
        Seconds that the program may take to save its state.
    state_dir
        Where State is kept; ``None``: a temporary folder.
    state_port, ray_port
        Ports to use; ``None``: free ones.
    keeps_report, report_dir
        Whether a record and a report of the job are kept, and where; ``None``: with the state, or in the user's folder.
    """

    local_nodes: int = 1
    nodes: int | None = None
    idle: int | None = None
    resilient: bool = False
    exhaust_resources: bool = False
    quarantine_s: float = 86400.0
    max_restarts: int | None = None
    max_restarts_per_hour: int = 60
    virtual_gpus: int = 0
    telemetry_level: int = 0
    telemetry_config: Path | None = None
    hang_timeout: str | None = None
    per_node: bool = False
    detect: Literal["slow-gpu"] | None = None
    detect_interval_s: float = 3.0
    grace_s: float = 10.0
    state_dir: Path | None = None
    state_port: int | None = None
    ray_port: int | None = None
    keeps_report: bool = True
    report_dir: Path | None = None

    def settings(self) -> Settings:
        """Return the policy's settings for these options.

        Raises
        ------
        UsageError
            If they contradict each other or the size of the allocation.
        """
        total = self.local_nodes
        if not 1 <= total <= MAX_LOCAL_NODES:
            raise UsageError(
                f"--local-nodes={total} is out of range: 1 to {MAX_LOCAL_NODES} virtual nodes are possible"
            )
        if self.exhaust_resources and not self.resilient:
            raise UsageError("--exhaust-resources says how far to relaunch, so it needs --resilient")
        return Settings(
            self._active_nodes(total),
            self.resilient,
            self.exhaust_resources,
            self.quarantine_s,
            self.max_restarts,
            self.max_restarts_per_hour,
        )

    def hang_timeout_s(self) -> HangTimeout | None:
        """Return the timeout as a number, ``"auto"`` or None.

        Raises
        ------
        UsageError
            If it is anything else.
        """
        if self.hang_timeout is None:
            return None
        if self.hang_timeout == "auto":
            return "auto"
        try:
            seconds = float(self.hang_timeout)
        except ValueError:
            seconds = 0.0
        if not 1 <= seconds <= MAX_HANG_S:
            raise UsageError(f"--hang-timeout={self.hang_timeout} is no time: give 1 to {MAX_HANG_S} seconds, or auto")
        return seconds

    def reports(self) -> Path | None:
        """Return the folder for the job's report; ``None``: the user's folder for state."""
        return self.report_dir or (None if self.state_dir is None else self.state_dir / "reports")

    def _active_nodes(self, total: int) -> int:
        if self.nodes is not None and self.nodes < 1:
            raise UsageError(f"--nodes={self.nodes} leaves no node to run on: use 1 to {total}")
        if self.idle is not None and not 0 <= self.idle < total:
            raise UsageError(
                f"--idle={self.idle} leaves no node to run on: the allocation has {total}, use 0 to {total - 1}"
            )
        nodes = total - (self.idle or 0) if self.nodes is None else self.nodes
        if nodes > total:
            raise UsageError(
                f"--nodes={nodes} is more than the allocation of {total}: use at most {total}, or ask for more nodes"
            )
        if self.idle is not None and nodes + self.idle > total:
            raise UsageError(
                f"--nodes={nodes} and --idle={self.idle} are more than the allocation of {total}: leave one out"
            )
        return nodes

"""The options of ``laggard run``, and which of them fit together. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from laggard.detectors.errors import GroupsError
from laggard.resilience.decision.events import OnFailure, Settings
from laggard.resilience.decision.hang import HangTimeout
from laggard.resilience.decision.warm_start import Preload, parse_preload
from laggard.resilience.errors import UsageError
from laggard.resilience.text import abbreviated

if TYPE_CHECKING:  # every agent imports this module, and needs no client of the state server
    from laggard.kvstore.control import NodeRecord
    from laggard.kvstore.server.process import Fsync

__all__ = ["MANAGERS", "JobOptions", "Manager", "UsageError", "Watched"]

Watched = Literal["slow-gpu", "sections", "slow-link"]
"""What ``--detect`` can watch for."""

Manager = Literal["local", "slurm", "ssh", "pbs", "lsf", "ray"]
MANAGERS: tuple[Manager, ...] = ("local", "slurm", "ssh", "pbs", "lsf", "ray")
# Variables by which a job of each manager is found; of LSF's each job has at least the last.
_OF_JOBS: Mapping[Manager, tuple[str, ...]] = {
    "slurm": ("SLURM_JOB_ID",),
    "pbs": ("PBS_NODEFILE",),
    "lsf": ("LSB_DJOB_HOSTFILE", "LSB_MCPU_HOSTS", "LSB_HOSTS"),
    "ray": ("RAY_ADDRESS",),
}
_NEEDED: Mapping[Manager, tuple[str, str]] = {
    "slurm": ("needs a Slurm job (SLURM_JOB_ID)", "run laggard inside salloc or sbatch"),
    "pbs": ("needs a PBS job (PBS_NODEFILE)", "run laggard inside qsub"),
    "lsf": ("needs an LSF job (LSB_MCPU_HOSTS)", "run laggard inside bsub"),
    "ray": ("needs a Ray cluster", "set RAY_ADDRESS to host:port of its head"),
}

MAX_LOCAL_NODES = 250
MAX_HANG_S = 1_000_000
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?)(?:i?B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The options of ``laggard run``, as given.

    Attributes
    ----------
    wlm
        What manages the nodes; ``None``: detected.
    hostlist, hostfile
        Hosts to reach by ssh, as a comma-separated list or in a file, one per line.
    local_nodes
        Number of virtual nodes on this machine; ``None``: one, unless another manager is detected.
    nodes
        Number of nodes in use; ``None``: all but the idle ones.
    idle
        Number of nodes kept in reserve; ``None``: all that are not in use.
    resilient, exhaust_resources, quarantine_s, wait_for_nodes_s, grow_back, max_restarts, max_restarts_per_hour,
    on_failure, backoff_s
        Passed on to the policy (`Settings`).
    virtual_gpus
        Virtual devices per node; 0: the machine's own GPUs.
    telemetry_level
        0 to 4.
    telemetry_config
        File with the telemetry settings.
    hang_timeout
        How long the program may be silent, in seconds, or ``auto``; ``None``: forever.
    heartbeat_timeout_s
        How long an agent may be silent before its node is lost; ``None``: 3.5 s, or 15 s on an existing Ray cluster.
    per_node
        Whether to run a copy of the program on every node.
    per_device
        Whether to run a copy of the program on every device of every node.
    preload
        What warm processes load: modules, ``auto`` or ``none``; ``None``: ``auto``.
    detect
        What to watch for beside the program; ``None``: nothing.
    detect_interval_s
        Seconds from one round of probes to the next.
    probes_in_turn
        Names of further probes, one of which runs with each round: ``A,B`` or ``all``; ``None``: none.
    inline_probes
        Whether the program runs the probes itself.
    groups
        File with the labels of ranks, devices and nodes; ``None``: there is none.
    link_interface
        The network interfaces of which links are probed; ``None``: those of the nodes' addresses.
    restart_cost_s
        What a restart for a slow device costs; ``None``: as measured.
    expected_duration_s
        How long the job is expected to run; ``None``: not known.
    grace_s
        How long the program may take to save its state, in seconds.
    state_dir
        Where State is kept; ``None``: in a temporary folder.
    state_port, ray_port
        Ports to use; ``None``: free ones.
    state_fsync
        When a commit to State is flushed to disk.
    checkpoint_memory, checkpoint_dir
        How much of a node's memory checkpoints may use, as ``200G``; a shared directory for a further copy of them.
    keeps_report, report_dir
        Whether to keep a record and a report of the job, and where; ``None``: in ``state_dir``, else in the user's
        folder for state.
    """

    wlm: Manager | None = None
    hostlist: str | None = None
    hostfile: Path | None = None
    local_nodes: int | None = None
    nodes: int | None = None
    idle: int | None = None
    resilient: bool = False
    exhaust_resources: bool = False
    quarantine_s: float = 86400.0
    max_restarts: int | None = None
    max_restarts_per_hour: int = 60
    on_failure: OnFailure = "relaunch"
    backoff_s: float = 10.0
    wait_for_nodes_s: float = 300.0
    grow_back: bool = False
    virtual_gpus: int = 0
    telemetry_level: int = 0
    telemetry_config: Path | None = None
    hang_timeout: str | None = None
    heartbeat_timeout_s: float | None = None
    per_node: bool = False
    per_device: bool = False
    preload: str | None = None
    detect: Watched | None = None
    detect_interval_s: float = 3.0
    probes_in_turn: str | None = None
    inline_probes: bool = False
    groups: Path | None = None
    link_interface: str | None = None
    restart_cost_s: float | None = None
    expected_duration_s: float | None = None
    grace_s: float = 10.0
    state_dir: Path | None = None
    state_port: int | None = None
    state_fsync: Fsync = "always"
    checkpoint_memory: str | None = None
    checkpoint_dir: Path | None = None
    ray_port: int | None = None
    keeps_report: bool = True
    report_dir: Path | None = None

    def manager(self, environ: Mapping[str, str]) -> Manager:
        """Return what manages the nodes: as named, else as other options imply, else the first that is detected.

        Raises
        ------
        UsageError
            If the options contradict each other, or that manager is not available here.
        """
        hosts = self.hostlist is not None or self.hostfile is not None
        named = self.wlm or ("ssh" if hosts else None) or ("local" if self.local_nodes is not None else None)
        self._check_local_nodes(named)
        if hosts and named != "ssh":
            raise UsageError("--hostlist and --hostfile", f"are for ssh, not for --wlm={named}", "leave one out")
        if named == "ssh" and not hosts:
            raise UsageError("--wlm=ssh", "needs hosts", "name them with --hostlist=A,B or --hostfile=FILE")
        found = [manager for manager, variables in _OF_JOBS.items() if any(environ.get(name) for name in variables)]
        if named is None:
            return found[0] if found else "local"
        if named in _NEEDED and named not in found:
            raise UsageError(f"--wlm={named}", *_NEEDED[named])
        return named

    def _check_local_nodes(self, manager: Manager | None) -> None:
        given = self.local_nodes
        if given is not None and manager != "local":
            raise UsageError(f"--local-nodes={given}", f"is for virtual nodes, not for {manager}", "leave it out")
        if given is not None and not 1 <= given <= MAX_LOCAL_NODES:
            raise UsageError(f"--local-nodes={given}", "is out of range", f"use 1 to {MAX_LOCAL_NODES}")

    def may_miss(self, total: int) -> int:
        """Return how many nodes of an allocation of ``total`` the job can begin without."""
        if not self.resilient:
            return 0
        return total - 1 if self.exhaust_resources else total - self._active_nodes(total)

    def settings(self, total: int, *, varies: bool = False) -> Settings:
        """Return the policy's settings for these options.

        Parameters
        ----------
        total
            Number of nodes in the allocation.
        varies
            Whether the allocation may once have had more: with ``exhaust_resources`` the job then begins with fewer.

        Raises
        ------
        UsageError
            If the options contradict each other or the size of the allocation.
        """
        if self.exhaust_resources and not self.resilient:
            raise UsageError("--exhaust-resources", "has no effect without --resilient", "add it, or leave this out")
        if self.grow_back and not self.exhaust_resources:
            raise UsageError("--grow-back", "has no effect without --exhaust-resources", "add it, or leave this out")
        return Settings(
            self._active_nodes(total, may_be_fewer=varies and self.exhaust_resources),
            self.resilient,
            self.exhaust_resources,
            self.quarantine_s,
            self.max_restarts,
            self.max_restarts_per_hour,
            self.on_failure,
            self.backoff_s,
            self.wait_for_nodes_s,
            self.grow_back,
        )

    def hang_timeout_s(self) -> HangTimeout | None:
        """Return the timeout as a number of seconds, ``"auto"`` or None.

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
            accepted = f"give 1 to {MAX_HANG_S} seconds, or auto"
            raise UsageError(f"--hang-timeout={self.hang_timeout}", "is not a valid timeout", accepted)
        return seconds

    def runs_copies(self) -> bool:
        """Return whether copies of the program run on the nodes, without Ray.

        Raises
        ------
        UsageError
            If they are to run both on every node and on every device.
        """
        if self.per_node and self.per_device:
            raise UsageError("--per-node and --per-device", "cannot be combined", "leave one out")
        return self.per_node or self.per_device

    def preloaded(self) -> Preload:
        """Return what warm processes load; ``None``: there are none.

        Raises
        ------
        UsageError
            If it is not valid, or no copies of the program run.
        """
        if self.preload is not None and not self.runs_copies():
            given = f"--preload={self.preload}"
            raise UsageError(given, "has no effect without --per-node or --per-device", "add one, or leave this out")
        return parse_preload("auto" if self.preload is None else self.preload)

    def check_devices(self, nodes: Sequence[NodeRecord]) -> None:
        """Check that each node has a device, if each device is to have a copy of the program.

        Raises
        ------
        UsageError
            If one has none.
        """
        without = abbreviated([node.hostname for node in nodes if not node.devices])
        if self.per_device and without:
            raise UsageError(
                "--per-device", f"finds no devices on {without}", "add --virtual-gpus=K, or use --per-node"
            )

    def probe_names(self) -> tuple[str, ...]:
        """Return the names of the further probes.

        Raises
        ------
        UsageError
            If there is no such probe, or ``--detect`` is not given.
        """
        if self.detect != "slow-gpu":
            given = {"--probes-in-turn": self.probes_in_turn is not None, "--inline-probes": self.inline_probes}
            for option in (name for name, is_given in given.items() if is_given):
                no_effect = "has no effect without --detect=slow-gpu"
                raise UsageError(option, no_effect, "add it, or leave this out")
            return ()
        from laggard.collectors.probes import PROBE_NAMES  # every agent imports this module, and needs no probes

        if self.probes_in_turn == "all":
            return PROBE_NAMES
        names = tuple(filter(None, (self.probes_in_turn or "").split(",")))
        for unknown in (name for name in names if name not in PROBE_NAMES):
            raise UsageError(f"--probes-in-turn={unknown}", "is not a probe", f"use {', '.join(PROBE_NAMES)}, or all")
        return names

    def group_file(self) -> Path | None:
        """Return the file with the labels, wherever it is read from.

        Raises
        ------
        UsageError
            If it is not valid, or ``--detect`` is not given.
        """
        if self.groups is None:
            return None
        if self.detect is None:
            raise UsageError(f"--groups={self.groups}", "has no effect without --detect", "add it, or leave this out")
        from laggard.detectors.groups import read_groups  # every agent imports this module, and needs no labels

        try:
            read_groups(self.groups)
        except GroupsError as error:
            raise UsageError(f"--groups={self.groups}", "is not valid", error.reason) from error
        return self.groups.absolute()

    def checkpoint_bytes(self) -> int | None:
        """Return how much of a node's memory checkpoints may use, in bytes; ``None``: the default.

        Raises
        ------
        UsageError
            If it is not a size.
        """
        if self.checkpoint_memory is None:
            return None
        match = _SIZE.fullmatch(self.checkpoint_memory.strip())
        if match is None or not (size_bytes := int(float(match[1]) * _UNITS[match[2].upper()])):
            given = f"--checkpoint-memory={self.checkpoint_memory}"
            raise UsageError(given, "is not a size", "give a number and K, M, G or T, as 200G")
        return size_bytes

    def probed_interface(self) -> str:
        """Return the network interfaces of which links are probed; empty: those of the nodes' addresses.

        Raises
        ------
        UsageError
            If it is given without ``--detect=slow-link``, or names none.
        """
        given = f"--link-interface={self.link_interface}"
        if self.link_interface is not None and self.detect != "slow-link":
            raise UsageError(given, "has no effect without --detect=slow-link", "add it, or leave this out")
        if self.link_interface is not None and not self.link_interface.strip("^=,"):
            raise UsageError(given, "names no interface", "give the beginnings of names, as ib,eth1")
        return self.link_interface or ""

    def restart_cost(self) -> float | None:
        """Return what a restart for a slow device costs, in seconds; ``None``: as measured.

        Raises
        ------
        UsageError
            If it is given without ``--detect``.
        """
        if self.restart_cost_s is not None and self.detect is None:
            given = f"--restart-cost={self.restart_cost_s:g}"
            raise UsageError(given, "has no effect without --detect", "add it, or leave this out")
        return self.restart_cost_s

    def ends_s(self, now_s: float, time_left_s: float | None) -> float | None:
        """Return when the job is expected to end, as Unix time; ``None`` if that is not known.

        Parameters
        ----------
        now_s
            Unix time at which the job begins.
        time_left_s
            How long the allocation lasts; ``None``: for ever, or not known.
        """
        known_s = [length_s for length_s in (self.expected_duration_s, time_left_s) if length_s is not None]
        return now_s + min(known_s) if known_s else None

    def reports(self) -> Path | None:
        """Return the folder for the job's report; None: below the user's folder for state."""
        return self.report_dir or (None if self.state_dir is None else self.state_dir / "reports")

    def _active_nodes(self, total: int, *, may_be_fewer: bool = False) -> int:
        more = "ask for more nodes" + (" (--local-nodes makes virtual ones)" if total == 1 else "")
        if self.nodes is not None and self.nodes < 1:
            raise UsageError(f"--nodes={self.nodes}", "leaves no node to run on", f"use 1 to {total}")
        if self.idle is not None and not 0 <= self.idle < total:
            use = f"the allocation has {total}, use 0 to {total - 1}, or {more}"
            raise UsageError(f"--idle={self.idle}", "leaves no node to run on", use)
        nodes = total - (self.idle or 0) if self.nodes is None else self.nodes
        if nodes > total and not may_be_fewer:
            use = f"use at most {total}, or {more}"
            raise UsageError(f"--nodes={nodes}", f"is more than the allocation of {total}", use)
        if self.idle is not None and nodes + self.idle > total:
            given = f"--nodes={nodes} and --idle={self.idle}"
            raise UsageError(given, f"together are more than the allocation of {total}", "leave one out")
        return nodes

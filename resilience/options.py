"""What the user asked for, checked: pure, so that every wrong usage is one line of a table test."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from resilience.hang import HangTimeout
from resilience.policy import Settings

if TYPE_CHECKING:  # else each node's agent would load the server's whole client, and it has none
    from kvstore.server import Fsync

__all__ = ["MANAGERS", "JobOptions", "Manager", "UsageError"]

Manager = Literal["local", "slurm", "ssh", "ray"]
MANAGERS: tuple[Manager, ...] = ("local", "slurm", "ssh", "ray")

MAX_LOCAL_NODES = 250
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
MAX_HANG_S = 1_000_000


class UsageError(ValueError):
    """The options do not fit together; the message names the offending value and the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The options of ``laggard run``, as given.

    Attributes
    ----------
    wlm
        Who manages the nodes; ``None``: found by itself.
    hostlist, hostfile
        Hosts to reach by ssh, as a list or in a file, one a line.
    local_nodes
        Virtual nodes on this machine; ``None``: one, unless another manager is found.
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
    probes_in_turn
        Names of other probes, one of which runs with each round: ``A,B`` or ``all``; ``None``: none.
    in_gaps
        The program runs the probes itself.
    grace_s
        Seconds that the program may take to save its state.
    state_dir
        Where State is kept; ``None``: a temporary folder.
    state_port, ray_port
        Ports to use; ``None``: free ones.
    state_fsync
        When a commit to State is on disk.
    keeps_report, report_dir
        Whether a record and a report of the job are kept, and where; ``None``: with the state, or in the user's folder.
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
    virtual_gpus: int = 0
    telemetry_level: int = 0
    telemetry_config: Path | None = None
    hang_timeout: str | None = None
    per_node: bool = False
    detect: Literal["slow-gpu"] | None = None
    detect_interval_s: float = 3.0
    probes_in_turn: str | None = None
    in_gaps: bool = False
    grace_s: float = 10.0
    state_dir: Path | None = None
    state_port: int | None = None
    state_fsync: Fsync = "always"
    ray_port: int | None = None
    keeps_report: bool = True
    report_dir: Path | None = None

    def manager(self, environ: Mapping[str, str]) -> Manager:
        """Return who manages the nodes: as named, else as the other options say, else Slurm or Ray if we are in there.

        Raises
        ------
        UsageError
            If the options contradict each other, or there is no such manager here.
        """
        hosts = self.hostlist is not None or self.hostfile is not None
        named = self.wlm or ("ssh" if hosts else None) or ("local" if self.local_nodes is not None else None)
        self._check_local_nodes(named)
        if hosts and named != "ssh":
            raise UsageError(f"--hostlist and --hostfile are for ssh, not for --wlm={named}: leave one out")
        if named == "ssh" and not hosts:
            raise UsageError("--wlm=ssh needs hosts: name them with --hostlist=A,B or --hostfile=FILE")
        in_slurm = "SLURM_JOB_ID" in environ
        if named == "slurm" and not in_slurm:
            raise UsageError("--wlm=slurm needs a job of Slurm's (SLURM_JOB_ID): run laggard inside salloc or sbatch")
        in_ray = bool(environ.get("RAY_ADDRESS"))
        if named == "ray" and not in_ray:
            raise UsageError("--wlm=ray needs a Ray cluster: set RAY_ADDRESS to host:port of its head")
        return named or ("slurm" if in_slurm else "ray" if in_ray else "local")

    def _check_local_nodes(self, manager: Manager | None) -> None:
        given = self.local_nodes
        if given is not None and manager != "local":
            raise UsageError(f"--local-nodes={given} is for virtual nodes, not for {manager}: leave it out")
        if given is not None and not 1 <= given <= MAX_LOCAL_NODES:
            raise UsageError(
                f"--local-nodes={given} is out of range: 1 to {MAX_LOCAL_NODES} virtual nodes are possible"
            )

    def hosts(self) -> tuple[str, ...]:
        """Return the hosts of ``hostlist`` or ``hostfile``, in order.

        Raises
        ------
        UsageError
            If there are both or none, the file cannot be read, or a host is named twice or has no host's name.
        """
        if self.hostlist is not None and self.hostfile is not None:
            raise UsageError(f"--hostlist={self.hostlist} and --hostfile={self.hostfile} are two lists: leave one out")
        named = self.hostlist.split(",") if self.hostlist is not None else self._read_hostfile()
        hosts = [host.strip() for host in named if host.strip()]
        if not hosts:
            raise UsageError("no hosts are named: give --hostlist=A,B or a --hostfile with one host a line")
        for host in hosts:
            if not _HOST.fullmatch(host):
                raise UsageError(
                    f"{host!r} is no host's name: letters, digits, dots and dashes; users go to ~/.ssh/config"
                )
            if hosts.count(host) > 1:
                raise UsageError(f"host {host} is named twice: each host is one node")
        return tuple(hosts)

    def _read_hostfile(self) -> list[str]:
        if self.hostfile is None:
            return []
        try:
            lines = self.hostfile.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"--hostfile={self.hostfile} cannot be read: {getattr(error, 'strerror', None) or error}"
            ) from error
        # What follows a host in its line (slots=8) is for other programs.
        return [line.partition("#")[0].split()[0] for line in lines if line.partition("#")[0].strip()]

    def settings(self, total: int) -> Settings:
        """Return the policy's settings for these options.

        Parameters
        ----------
        total
            Nodes of the allocation.

        Raises
        ------
        UsageError
            If the options contradict each other or the size of the allocation.
        """
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

    def probe_names(self) -> tuple[str, ...]:
        """Return the names of the probes in turn.

        Raises
        ------
        UsageError
            If there is no such probe, or nothing is detected.
        """
        if self.detect is None:
            given = {"--probes-in-turn": self.probes_in_turn is not None, "--in-gaps": self.in_gaps}
            for option in (name for name, is_given in given.items() if is_given):
                raise UsageError(f"{option} says how --detect probes: add --detect=slow-gpu, or leave it out")
            return ()
        from collectors.probes import PROBE_NAMES  # each node's agent reads this module, and needs no probes

        if self.probes_in_turn == "all":
            return PROBE_NAMES
        names = tuple(filter(None, (self.probes_in_turn or "").split(",")))
        for unknown in (name for name in names if name not in PROBE_NAMES):
            raise UsageError(f"--probes-in-turn={unknown} is no probe: there are {', '.join(PROBE_NAMES)}, and all")
        return names

    def reports(self) -> Path | None:
        """Return the folder for the job's report; ``None``: the user's folder for state."""
        return self.report_dir or (None if self.state_dir is None else self.state_dir / "reports")

    def _active_nodes(self, total: int) -> int:
        virtual = " (--local-nodes makes virtual ones)" if total == 1 else ""
        if self.nodes is not None and self.nodes < 1:
            raise UsageError(f"--nodes={self.nodes} leaves no node to run on: use 1 to {total}")
        if self.idle is not None and not 0 <= self.idle < total:
            raise UsageError(
                f"--idle={self.idle} leaves no node to run on: the allocation has {total}, use 0 to {total - 1}, "
                f"or ask for more nodes{virtual}"
            )
        nodes = total - (self.idle or 0) if self.nodes is None else self.nodes
        if nodes > total:
            raise UsageError(
                f"--nodes={nodes} is more than the allocation of {total}: use at most {total}, "
                f"or ask for more nodes{virtual}"
            )
        if self.idle is not None and nodes + self.idle > total:
            raise UsageError(
                f"--nodes={nodes} and --idle={self.idle} are more than the allocation of {total}: leave one out"
            )
        return nodes

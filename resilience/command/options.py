"""The options of ``laggard run``, and which of them fit together. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from laggard.kvstore.client.connection import JOB_ID_RULE, is_job_id
from laggard.kvstore.control import NodeRecord
from laggard.kvstore.server.site import NO_JOB, endpoint_of, is_url
from laggard.resilience.allocation.place import PORT, SECRET_VARIABLE
from laggard.resilience.command.option import declared_in, flag_of, option
from laggard.resilience.decision.events import OnFailure, Settings
from laggard.resilience.decision.hang import HangTimeout
from laggard.resilience.errors import UsageError
from laggard.resilience.text import abbreviated
from laggard.resilience.wire.detection import Watched

Preload = Literal["auto", "none"]
Manager = Literal["local", "slurm", "ssh", "pbs", "lsf", "ray", "join"]
# Variables that identify a job of each manager, and the error without them; every LSF job has the last one.
_NEEDED: Mapping[Manager, tuple[tuple[str, ...], str, str]] = {
    "slurm": (("SLURM_JOB_ID",), "needs a Slurm job (SLURM_JOB_ID)", "run laggard inside salloc or sbatch"),
    "pbs": (("PBS_NODEFILE",), "needs a PBS job (PBS_NODEFILE)", "run laggard inside qsub"),
    "lsf": (
        ("LSB_DJOB_HOSTFILE", "LSB_MCPU_HOSTS", "LSB_HOSTS"),
        *("needs an LSF job (LSB_MCPU_HOSTS)", "run laggard inside bsub"),
    ),
    "ray": (("RAY_ADDRESS",), "needs a Ray cluster", "set RAY_ADDRESS to host:port of its head"),
}

NO_LEAVES: Mapping[str, str] = MappingProxyType({})
MAX_HANG_S = 1_000_000
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?)(?:i?B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The options of ``laggard run``, as given, in the order of its help."""

    nodes: int | None = option(
        None, "Nodes in use; the rest are the reserve.", "N", short="-N", least=1, unset="all, less --idle"
    )
    idle: int | None = option(None, "Nodes kept in reserve, to replace bad ones.", "N", short="-i", least=0)

    resilient: bool = option(False, "Relaunch when a node is slow or lost, or when the program fails.", short="-r")
    exhaust_resources: bool = option(
        False,
        "With --resilient: continue on fewer than --nodes nodes, down to the primary alone.",
        short="-e",
        needs=("--resilient",),
    )
    quarantine_s: float = option(
        86400,
        "How long a bad node stays excluded; twice as long each further time, up to 7 times; with --state-dir or "
        "--state-server, from later jobs there too.",
        "SECONDS",
        least=1,
    )
    max_restarts: int | None = option(None, "Limit on relaunches in total.", "N", least=0, unset="none")
    max_restarts_per_hour: int = option(60, "Limit on relaunches in any hour.", "N", least=0)
    on_failure: OnFailure = option(
        "relaunch",
        "With --resilient: what to do when the program fails. An error in the program itself ends the job if it "
        "repeats without progress.",
    )
    backoff_s: float = option(
        10.0,
        "Shortest wait before the second relaunch in a row after failures without progress; it grows up to 5 min.",
        "SECONDS",
        least=0,
    )
    give_up_after_s: float = option(
        7200, "With --resilient: end the job when it has made no progress for this long.", "SECONDS", least=0
    )
    fixed_ranks: bool = option(
        default=False,
        help="After a failure, keep each rank on its node, for instance because its data is on that node's disk. "
        "Without this, suspects swap places at random, which tells a bad node from a bad program.",
        needs=("--per-node", "--per-device"),
    )
    wait_for_nodes_s: float = option(
        300,
        "With --resilient: how long to wait for lost nodes to return before the job ends for lack of nodes. With "
        "--join: how long the nodes wait for each other.",
        "SECONDS",
        least=0,
    )
    heartbeat_timeout_s: float | None = option(
        None,
        "How long a node may be silent before it counts as lost; more than the network's longest pause.",
        "SECONDS",
        least=2,
        most=3600,
        unset="3.5",
    )
    hang_timeout: str | None = option(
        None,
        "Relaunch if the program shows no sign of life (a commit, a step, processor time, traffic) for this long, and "
        "name the rank that the others wait for; auto: ten times the longest silence so far, within limits.",
        "SECONDS|auto",
        unset="off",
    )

    telemetry_level: int = option(
        0,
        "0 off, 1 the program's metrics, 2 + nodes, 3 + GPUs, 4 + the telemetry's own.",
        "0..4",
        short="-T",
        least=0,
        most=4,
    )
    telemetry_config: Path | None = option(
        None, "YAML file with telemetry settings.", "FILE", exists=True, also="LAGGARD_TELEMETRY_CONFIG"
    )

    wlm: Manager | None = option(
        None,
        "Workload manager that provides the nodes.",
        unset="ssh if hosts are given, join if there is a secret for it, slurm, pbs or lsf inside such a job, ray if "
        "RAY_ADDRESS is set, else local",
    )
    join: str | None = option(
        None,
        "Something else starts this command on every node: the node at this address is the primary, and the others "
        "join it.",
        "HOST[:PORT]",
        unset=f"MASTER_ADDR, or the Job's pod with index 0; port {PORT}",
    )
    join_secret_file: Path | None = option(
        None, "File with the secret that all nodes share.", "FILE", exists=True, unset=f"from {SECRET_VARIABLE}"
    )
    hostlist: str | None = option(
        None, "Hosts to reach by ssh, as host, user@host:port or node[01-16]; the first is this machine.", "A,B"
    )
    hostfile: Path | None = option(None, "File with such hosts, or in MPI's format: host slots=8.", "FILE")
    srun_args: str | None = option(
        None,
        "Options for each srun, for instance of a container, or a command that runs what follows it in one.",
        "WORDS",
        also="LAGGARD_SRUN_ARGS",
    )
    local_nodes: int | None = option(None, "Virtual nodes on this machine.", "N", least=1, most=250, unset="1")
    virtual_gpus: int = option(
        0,
        "Virtual devices per node, for machines without GPUs.",
        "K",
        least=0,
        most=64,
        unset="use the GPUs",
        also="LAGGARD_VIRTUAL_GPUS",
    )

    module: bool = option(False, "PROGRAM is the name of a module, run as 'python -m' does.", short="-m")
    per_node: bool = option(
        False,
        "Run PROGRAM on every node, without Ray, with NODE_RANK, NNODES, MASTER_ADDR and MASTER_PORT set, "
        "and for other launchers LAGGARD_HOSTFILE and LAGGARD_HOSTLIST.",
    )
    per_device: bool = option(
        False,
        "Run PROGRAM once for each device of each node, without Ray, with the variables that torchrun sets: "
        "RANK, LOCAL_RANK, WORLD_SIZE and the rest.",
    )
    preload: Preload = option(
        "auto",
        "With --per-node or --per-device: what a process on each node loads in advance, from which a relaunch of a "
        "Python program is forked; auto: the libraries that the last launch loaded.",
        needs=("--per-node", "--per-device"),
    )

    detect: tuple[Watched, ...] = option(
        (),
        "slow-gpu: watch for slow GPUs, without changes to the program, and compare its ranks by its own timings "
        "(laggard.section); sections: only the latter; slow-link: time transfers between nodes, to find slow NICs and "
        "cables. With --resilient, relaunch without slow nodes. Several: --detect slow-gpu,slow-link.",
    )
    detect_interval_s: float = option(
        3, "With --detect: time between rounds of probes, and of the program's own timings.", "SECONDS", least=0.1
    )
    groups: Path | None = option(
        None,
        "With --detect: YAML file that labels ranks or devices with equal work, such as 'rank 0-7: stage 0' or 'node2 "
        "gpu 1: big'; only those with the same label are compared. For slow-link: the switch of each node, such as "
        "'node2: leaf1'.",
        "FILE",
        exists=True,
        needs=("--detect",),
    )
    link_interface: str | None = option(
        None,
        "With --detect=slow-link: probe the links of each node's first network interface whose name begins with A, "
        "else B, as in NCCL_SOCKET_IFNAME; =A: of exactly this name; ^A: of any other.",
        "A,B",
        unset="that of the node's address",
        needs=("--detect=slow-link",),
    )
    inline_probes: bool = option(
        False,
        "With --detect: the program runs the probes itself, when its devices are free (laggard.InlineProbe).",
        needs=("--detect=slow-gpu",),
    )
    restart_cost_s: float | None = option(
        None,
        "With --detect: relaunch without a slow device once it has cost the job this much; 0: at once.",
        "SECONDS",
        least=0,
        unset="as measured, from a launch's start to its first progress and since the newest checkpoint",
        needs=("--detect",),
    )
    expected_duration_s: float | None = option(
        None,
        "How long the job will run, so that no relaunch is made that can no longer earn its cost.",
        "SECONDS",
        least=1,
        unset="up to Slurm's time limit, or not known",
    )

    grace_s: float = option(
        10, "How long the program may take to save its state after SIGTERM or Ctrl-C.", "SECONDS", least=0, most=3600
    )
    state_dir: Path | None = option(
        None,
        "Keep the program's state here; the same command resumes from it later.",
        "DIR",
        unset="a temporary folder",
    )
    checkpoint_memory: str | None = option(
        None, "How much of each node's memory checkpoints may use, e.g. 200G.", "SIZE", unset="most of /dev/shm"
    )
    checkpoint_dir: Path | None = option(
        None,
        "Also keep a copy of each checkpoint in this directory, shared by all nodes.",
        "DIR",
        unset="in the memory of two nodes only",
    )
    port_range: str | None = option(
        None,
        "Ports on which the job may listen, where a firewall blocks all others.",
        "FIRST-LAST",
        unset="any that are free",
        also="LAGGARD_PORT_RANGE",
    )
    state_port: int | None = option(None, "Port of the state server.", "PORT", least=1, most=65535, unset="a free one")
    state_server: str | None = option(
        None,
        "Keep the program's state in the site's own Valkey or Redis, such as rediss://HOST:PORT/0; the same command "
        "resumes from it, on any machine.",
        "URL",
        unset="one that laggard starts",
    )
    job_name: str | None = option(
        None, "Name of the job, and of its state in --state-server.", "NAME", unset="the program's"
    )
    state_password_file: Path | None = option(
        None,
        "File with the password for the site's server, which only you can read.  [also: LAGGARD_STATE_PASSWORD, the "
        "password itself]",
        "FILE",
        exists=True,
        needs=("--state-server", "--node-history"),
    )
    state_ca: Path | None = option(
        None,
        "PEM file with the certificate authority of the site's server.",
        "FILE",
        exists=True,
        unset="those that each node trusts",
        needs=("--state-server", "--node-history"),
    )
    state_replicas: int = option(
        0, "How many replicas of --state-server must have a commit before it counts.", "N", needs=("--state-server",)
    )
    state_in_memory: bool = option(
        False, "Accept a --state-server that keeps nothing on disk.", needs=("--state-server",)
    )
    ray_port: int | None = option(None, "Port of the Ray head node.", "PORT", least=1, most=65535, unset="a free one")

    verbose: bool = option(
        False, "Log what laggard does, here and in its processes' own logs.  [also: LAGGARD_LOG=debug]", short="-v"
    )
    report: bool = option(
        True,
        "Keep a record of the job, with its logs if it fails, and write a report of it at the end.",
        unset="report",
        also="LAGGARD_REPORT=0",
    )
    report_dir: Path | None = option(
        None,
        "Where to put the report's folder.",
        "DIR",
        unset="reports in --state-dir, else ~/.local/state/laggard, which keeps the last 20 jobs",
    )

    node_history: str | None = option(
        None,
        "Where the site's jobs share what they learn about its nodes: a shared folder, or the URL of the site's own "
        "Valkey or Redis. Nodes that failed before are used last; 'laggard nodes' lists them.",
        "DIR|URL",
        unset="nothing",
        also="LAGGARD_NODE_HISTORY",
    )
    notify: str | None = option(
        None,
        "Post a line there for each verdict, failure and relaunch, and at the end, in the format of Slack and others. "
        "Keep a secret address in the variable, since others on the machine can read the command line.",
        "URL",
        unset="nowhere",
        also="LAGGARD_NOTIFY",
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            value, needs = getattr(self, each.name), declared_in(each).needs
            if needs and value != each.default and not any(self._has(flag) for flag in needs):
                given = flag_of(each.name)
                if value is not True:
                    given += f"={value:g}" if isinstance(value, float) else f"={value}"
                fix = f"add {'it' if len(needs) == 1 else 'one'}, or leave this out"
                raise UsageError(given, f"has no effect without {' or '.join(needs)}", fix)
        if self.job_name is not None and not is_job_id(self.job_name):
            raise UsageError(f"--job-name={self.job_name}", "cannot be a job's name", f"use {JOB_ID_RULE}")
        if self.state_server is not None:
            self._check_state_server(self.state_server)
        if self.node_history is not None and is_url(self.node_history):
            endpoint_of(self.node_history, NO_JOB, "")

    def history_folder(self) -> Path | None:
        """Return the folder of --node-history, if it is one."""
        return None if self.node_history is None or is_url(self.node_history) else Path(self.node_history)

    def _check_state_server(self, url: str) -> None:
        if self.job_name is None:
            raise UsageError("--state-server", "needs --job-name", "it tells this job's State there from others'")
        endpoint_of(url, self.job_name, "")
        for flag, given in (("--state-dir", self.state_dir), ("--state-port", self.state_port)):
            if given is not None:
                raise UsageError(f"--state-server and {flag}", "cannot be combined", "leave one out")

    def _has(self, wanted: str) -> bool:
        """Return whether an option is given: ``--detect``, or with this value ``--detect=slow-gpu``."""
        name, _, value = wanted.removeprefix("--").partition("=")
        found = getattr(self, name.replace("-", "_"))
        return bool(value in found if value else found)

    def manager(self, environ: Mapping[str, str]) -> Manager:
        """Return what manages the nodes: as named, else as other options imply, else the first that is detected."""
        hosts = self.hostlist is not None or self.hostfile is not None
        named = self.wlm or ("ssh" if hosts else None) or ("local" if self.local_nodes is not None else None)
        if named is None and (self.join or self.join_secret_file or environ.get(SECRET_VARIABLE)):
            named = "join"
        if self.local_nodes is not None and named != "local":
            given = f"--local-nodes={self.local_nodes}"
            raise UsageError(given, f"is for virtual nodes, not for {named}", "leave it out")
        if hosts and named != "ssh":
            raise UsageError("--hostlist and --hostfile", f"are for ssh, not for --wlm={named}", "leave one out")
        if named == "ssh" and not hosts:
            raise UsageError("--wlm=ssh", "needs hosts", "name them with --hostlist=A,B or --hostfile=FILE")
        found = [manager for manager, (variables, *_) in _NEEDED.items() if any(map(environ.get, variables))]
        if named is None:
            return found[0] if found else "local"
        if named in _NEEDED and named not in found:
            raise UsageError(f"--wlm={named}", *_NEEDED[named][1:])
        return named

    def may_miss(self, total: int) -> int:
        """Return how many nodes of an allocation of ``total`` the job can begin without."""
        if not self.resilient:
            return 0
        return total - 1 if self.exhaust_resources else total - self._active_nodes(total)

    def settings(self, total: int, *, varies: bool = False, leaves: Mapping[str, str] = NO_LEAVES) -> Settings:
        """Return the policy's settings for these options, on nodes with these leaf switches."""
        given = {each.name: getattr(self, each.name) for each in fields(Settings) if hasattr(self, each.name)}
        nodes = self._active_nodes(total, may_be_fewer=varies and self.exhaust_resources)
        places_ranks = self.runs_copies() and not self.fixed_ranks
        return Settings(**given | {"nodes": nodes, "places_ranks": places_ranks, "leaves": leaves})

    def hang_timeout_s(self) -> HangTimeout | None:
        """Return the timeout as a number of seconds, ``"auto"`` or None."""
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
        """Return whether the program runs on all nodes, without Ray."""
        if self.per_node and self.per_device:
            raise UsageError("--per-node and --per-device", "cannot be combined", "leave one out")
        return self.per_node or self.per_device

    def check_devices(self, nodes: Sequence[NodeRecord]) -> None:
        """Check that each node has a device, if the program runs for each device."""
        without = abbreviated([node.hostname for node in nodes if not node.devices])
        if self.per_device and without:
            raise UsageError(
                "--per-device", f"finds no devices on {without}", "add --virtual-gpus=K, or use --per-node"
            )

    def check_notify(self) -> None:
        """Check that lines are sent to an address that can be."""
        if self.notify is not None and not re.match(r"https?://[^/]", self.notify):
            raise UsageError(f"--notify={self.notify}", "is not a web address", "give one that begins with https://")

    def checkpoint_bytes(self) -> int | None:
        """Return how much of a node's memory checkpoints may use, in bytes; ``None``: the default."""
        if self.checkpoint_memory is None:
            return None
        match = _SIZE.fullmatch(self.checkpoint_memory.strip())
        if match is None or not (size_bytes := int(float(match[1]) * _UNITS[match[2].upper()])):
            given = f"--checkpoint-memory={self.checkpoint_memory}"
            raise UsageError(given, "is not a size", "give a number and K, M, G or T, for instance 200G")
        return size_bytes

    def probed_interface(self) -> str:
        """Return the network interfaces of which links are probed; empty: those of the nodes' addresses."""
        if self.link_interface is not None and not self.link_interface.strip("^=,"):
            given = f"--link-interface={self.link_interface}"
            raise UsageError(given, "names no interface", "give the beginnings of names, for instance ib,eth1")
        return self.link_interface or ""

    def ends_s(self, now_s: float, time_left_s: float | None) -> float | None:
        """Return when the job is expected to end, as Unix time; ``None`` if that is not known."""
        known_s = [length_s for length_s in (self.expected_duration_s, time_left_s) if length_s is not None]
        return now_s + min(known_s) if known_s else None

    def report_folder(self) -> Path | None:
        """Return the folder for the job's report; None: below the user's folder for state."""
        return self.report_dir or (None if self.state_dir is None else self.state_dir / "reports")

    def _active_nodes(self, total: int, *, may_be_fewer: bool = False) -> int:
        more = "ask for more nodes" + (" (--local-nodes makes virtual ones)" if total == 1 else "")
        if self.idle is not None and self.idle >= total:
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

"""Real Slurm daemons on simulated machines: slurmctld on the login machine, slurmd on each node, one munged."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from tests.clusters.machines import Machine, Network, wait_for

__all__ = ["PROGRAMS", "SlurmCluster"]

PROGRAMS = ("slurmctld", "slurmd", "srun", "salloc", "sbatch", "squeue", "scontrol", "scancel", "munged")
STOP_DEADLINE_S = 10.0

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost=login({login})
SlurmctldPort=26817
SlurmdPort=26818
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=defer_batch,requeue_setup_env_fail
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=300
KillWait=20
MinJobAge=300
OverTimeLimit=0
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class SlurmCluster:
    """A Slurm cluster on a network; use it in a ``with`` block.

    Parameters
    ----------
    folder
        Where its files are.
    network
        Its machines.
    n_gpus
        How many GPUs Slurm has on each node: devices like /dev/null.
    shares
        Into how many parts, and of which kind, the GPUs of some nodes can be divided: ``{"node1": "shard:8"}``.
    topology
        The content of topology.conf, of a tree; empty: there is none.
    """

    def __init__(
        self,
        folder: Path,
        network: Network,
        n_gpus: int = 0,
        shares: Mapping[str, str] | None = None,
        topology: str = "",
    ) -> None:
        self.folder = folder
        self._topology = topology
        self._n_gpus = n_gpus
        self._shares = shares or {}
        self.network = network
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SLURM")},
            "SLURM_CONF": str(folder / "slurm.conf"),
        }

    def __enter__(self) -> SlurmCluster:
        self._start_munge()
        n_cpus = os.cpu_count()
        nodes = "\n".join(
            f"NodeName={name} NodeAddr={machine.address} CPUs={n_cpus} RealMemory=1000{self._gres(name)} State=UNKNOWN"
            for name, machine in self.network.nodes.items()
        )
        (self.folder / "state").mkdir()
        configuration = _CONFIGURATION.format(folder=self.folder, login=self.network.login.address, nodes=nodes)
        if self._n_gpus:
            configuration = f"GresTypes=gpu,shard,mps\n{configuration}"
            for gpu in range(self._n_gpus):
                os.mknod(self.folder / f"gpu{gpu}", stat.S_IFCHR | 0o600, os.makedev(1, 3))
            files = f"{self.folder}/gpu[0-{self._n_gpus - 1}]"
            lines = ["AutoDetect=off", f"Name=gpu File={files}"]
            for name, share in self._shares.items():
                kind, count = share.split(":")
                lines.append(f"NodeName={name} Name={kind} Count={count} Flags=nvidia_gpu_env")
            (self.folder / "gres.conf").write_text("\n".join(lines) + "\n")
        if self._topology:
            configuration = f"TopologyPlugin=topology/tree\n{configuration}"
            (self.folder / "topology.conf").write_text(self._topology)
        (self.folder / "slurm.conf").write_text(configuration)
        # Without it slurmd uses the control groups of the host.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        self._start("slurmctld", self.network.login, "slurmctld", "-D", "-i")
        for name in self.network.nodes:
            self.start_slurmd(name)
        self.wait_until_idle()
        return self

    def __exit__(self, *_: object) -> None:
        # A machine may get another cluster afterwards, on the same ports.
        for daemon in reversed(self._daemons.values()):
            _end(daemon)

    def _gres(self, name: str) -> str:
        kinds = [f"gpu:{self._n_gpus}" if self._n_gpus else "", self._shares.get(name, "")]
        return f" Gres={','.join(filter(None, kinds))}" if any(kinds) else ""

    def start_slurmd(self, name: str) -> None:
        """Start a node's daemon."""
        self._start(name, self.network.nodes[name], "slurmd", "-D", "-N", name)

    @contextlib.contextmanager
    def shell_on_node(self) -> Iterator[None]:
        """Have ``salloc`` give its shell on the first node, until the end of the block."""
        file = self.folder / "slurm.conf"
        configuration = file.read_text()
        file.write_text(f"LaunchParameters=use_interactive_step\n{configuration}")
        try:
            yield
        finally:
            file.write_text(configuration)

    @contextlib.contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """Have a node's daemon stand still, until the end of the block."""
        entered = psutil.Process(self._daemons[name].pid)  # stops with its child, but does not go on with it
        (slurmd,) = entered.children()
        slurmd.suspend()
        try:
            wait_for(lambda: entered.status() == psutil.STATUS_STOPPED, "a daemon that stands still")
            yield
        finally:
            slurmd.resume()
            entered.resume()

    def run(self, *argv: str, check: bool = True) -> str:
        """Run a command on the login machine."""
        return self.network.login.run(*argv, environment=self.environment, check=check)

    def only_job(self, what: str) -> str:
        """Return one thing about the only job, as ``squeue`` formats it."""
        (found,) = set(self.run("squeue", "--noheader", f"--format={what}").split())
        return found

    def states(self) -> dict[str, str]:
        """Return the state of each node."""
        return dict(line.split() for line in self.run("sinfo", "-h", "-N", "-o", "%N %T", check=False).splitlines())

    def replace_crashed(self) -> None:
        """Replace the machines that have crashed by new ones."""
        for name, machine in list(self.network.nodes.items()):
            if machine.has_crashed():
                self._daemons[name].wait(STOP_DEADLINE_S)
                self.network.replace(name)
                self.start_slurmd(name)

    def repair(self) -> None:
        """Undo what was done to nodes and wait until all are free."""
        self.replace_crashed()
        for name in self.network.nodes:
            self.network.mend(name)
            self.run("scontrol", "update", f"nodename={name}", "state=resume", check=False)
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        """Wait until all nodes are free."""
        wait_for(lambda: set(self.states().values()) == {"idle"}, f"idle nodes ({self.states()})")

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={self.folder}/munge.{name}" for option, name in files.items()]
        self._start("munged", self.network.login, "munged", "--foreground", "--force", *options)
        wait_for((self.folder / "munge.socket").exists, "munge's socket")

    def _start(self, name: str, machine: Machine, *argv: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as output:
            self._daemons[name] = machine.start(*argv, output=output, environment=self.environment)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    """End a daemon, which is the child of the process that entered its machine; that one ends with it."""
    entered = psutil.Process(daemon.pid).children() if daemon.poll() is None else []
    for process in entered:
        process.terminate()
    try:
        daemon.wait(STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        for process in entered:
            process.kill()
        daemon.wait(STOP_DEADLINE_S)

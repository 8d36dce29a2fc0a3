"""The job that an outsider attacks, and the outsider: on virtual nodes of this machine, or on a Slurm cluster."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Self, cast

import psutil

from benchmarks import outsider_attack
from benchmarks.outsider_job import COUNTER, END
from laggard.kvstore.client.connection import is_loopback
from tests.clusters import slurm_daemons
from tests.clusters.jobs import ClusterJob
from tests.clusters.machines import Machine, missing_for_machines
from tests.clusters.site import NODES, UID, Site
from tests.clusters.slurm_daemons import SlurmCluster
from tests.integration.jobs import RunningJob
from tests.waiting import wait_until

__all__ = ["Outsider", "Place", "Watched", "missing_for_slurm", "slurm_site", "virtual_site"]

OUTSIDERS_ADDRESS = "127.1.1.1"
N_NODES = 2
N_FIRST_STEPS = 10
OPTIONS = ("--virtual-gpus=1", "--detect=slow-link", "--telemetry-level=2", "--per-node")
PROGRAM = Path(__file__).resolve().with_name("outsider_job.py")
# What is in the command line of whatever listens; the first that fits.
OWNERS = {
    "kvstore.checkpoints.server": "shard servers",
    "redis-server": "state server",
    "valkey-server": "state server",
    "agent.detect": "link probes",
    "telemetry.server": "telemetry server",
    "srun": "srun",
    "laggard": "agents' port",
}
LISTENING = "0A"
ANY = "0.0.0.0"  # noqa: S104 - of others

Place = tuple[str, int]
Machines = Callable[[], Mapping[str, Iterable[psutil.Process]]]


class Outsider:
    """The process that attacks.

    Parameters
    ----------
    address
        From where.
    prefix
        The command that runs a command in its place.
    """

    def __init__(self, address: str, prefix: Sequence[str]) -> None:
        command = [*prefix, sys.executable, "-I", outsider_attack.__file__, address]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        cast("IO[str]", self._process.stdin).close()
        self._process.wait()

    def attack(self, what: str, seconds: float, places: Sequence[Place]) -> None:
        """Begin an attack."""
        order = cast("IO[str]", self._process.stdin)
        order.write(json.dumps([what, seconds, places]) + "\n")
        order.flush()

    def connections(self) -> int:
        """Wait until the attack is over, and return how many connections came about."""
        return int(cast("IO[str]", self._process.stdout).readline())


class Rates(NamedTuple):
    """Of a stretch of time, per second."""

    steps: float
    processor: float


class Watched:
    """The job's program and its other processes, from outside.

    Parameters
    ----------
    folder
        Where the program counts its steps.
    machines
        Returns the job's processes, by the address of the machine that they run on.
    """

    def __init__(self, folder: Path, machines: Machines) -> None:
        self._files = _step_files(folder)
        self._ranks: list[psutil.Process] = []
        self._servers: dict[psutil.Process, str] = {}
        for address, processes in machines().items():
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    if str(PROGRAM) in process.cmdline()[1:2]:
                        self._ranks.append(process)
                    else:
                        self._servers[process] = address

    def rates(self, seconds: float) -> Rates:
        """Look on for so long."""
        began, began_s = self._look(), time.perf_counter()
        time.sleep(seconds)
        took_s = time.perf_counter() - began_s
        return Rates(*((now - before) / took_s for now, before in zip(self._look(), began, strict=True)))

    def _look(self) -> tuple[float, float]:
        processor_s = 0.0
        for process in self._servers:
            with contextlib.suppress(psutil.Error):
                processor_s += sum(process.cpu_times()[:2])
        return sum(_steps(self._files)), processor_s

    def separate(self, own: int, others: Sequence[int]) -> None:
        """Leave a processor to the program, and the other ones to the rest of the job."""
        for processes, processors in ((self._ranks, [own]), (self._servers, others)):
            for process in processes:
                with contextlib.suppress(psutil.Error, ProcessLookupError):
                    for thread in process.threads():
                        os.sched_setaffinity(thread.id, processors)

    def ports(self) -> dict[str, list[Place]]:
        """Return where the job listens, by what does."""
        found: dict[str, set[Place]] = {owner: set() for owner in OWNERS.values()}
        for process, address in self._servers.items():
            with contextlib.suppress(psutil.Error, OSError):
                line = " ".join(process.cmdline())
                owner = next((owner for word, owner in OWNERS.items() if word in line), line)
                places = {(address if ip == ANY else ip, port) for ip, port in _listens_at(process.pid)}
                found.setdefault(owner, set()).update(each for each in places if _is_near(each[0], address))
        return {owner: sorted(places) for owner, places in sorted(found.items()) if places}

    def works(self) -> bool:
        """Whether the program works, and all nodes watch their links."""
        return min(_steps(self._files)) > N_FIRST_STEPS and len(self.ports().get("link probes", [])) >= N_NODES


def _is_near(ip: str, address: str) -> bool:
    """Whether an outsider can reach an address of a machine: loopback only where he is on it."""
    return is_loopback(address) or not is_loopback(ip)


def _listens_at(pid: int) -> list[Place]:
    """Return where a process listens, on whichever machine it runs."""
    own = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
    lines = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    places = [fields[1].split(":") for fields in lines if fields[3] == LISTENING and f"socket:[{fields[9]}]" in own]
    return [(socket.inet_ntoa(bytes.fromhex(ip)[::-1]), int(port, 16)) for ip, port in places]


def _step_files(folder: Path) -> list[Path]:
    return [folder / f"steps{rank}" for rank in range(N_NODES)]


def _steps(files: Sequence[Path]) -> list[int]:
    return [COUNTER.unpack(file.read_bytes())[0] for file in files]


def _pinned(processors: Sequence[int]) -> list[str]:
    return ["taskset", "--cpu-list", ",".join(map(str, processors))] if processors else []


@contextlib.contextmanager
def _watched(folder: Path, job: RunningJob | ClusterJob, machines: Machines) -> Iterator[Watched]:
    """Watch a job from the time when it works, and end it."""
    try:
        wait_until(lambda: job.process.poll() is not None or Watched(folder, machines).works())
        if job.process.poll() is None:
            yield Watched(folder, machines)
            (folder / END).touch()
        said = job.everything() if isinstance(job, RunningJob) else job.output
        if job.finish() != 0 or "launch    1" in said:
            raise RuntimeError(f"the job did not go on as it began:\n{said}")
    finally:
        job.end()


@contextlib.contextmanager
def virtual_site(outsiders: Sequence[int]) -> Iterator[tuple[Watched, Outsider]]:
    """Have the job run on virtual nodes, and an outsider on these processors."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in _step_files(folder):
            file.write_bytes(COUNTER.pack(0))
        job = RunningJob(folder, name, f"--local-nodes={N_NODES}", *OPTIONS, sys.executable, str(PROGRAM), name)

        def machines() -> dict[str, set[psutil.Process]]:
            # What writes its title where its environment was is found as a child.
            return {"127.0.0.1": {*job.processes(), *psutil.Process(job.process.pid).children()}}

        with _watched(folder, job, machines) as watched, Outsider(OUTSIDERS_ADDRESS, _pinned(outsiders)) as outsider:
            yield watched, outsider


def missing_for_slurm() -> str | None:
    """Return why there can be no Slurm cluster here; None if there can."""
    return missing_for_machines(*slurm_daemons.PROGRAMS)


@contextlib.contextmanager
def slurm_site(outsiders: Sequence[int]) -> Iterator[tuple[Watched, Outsider]]:
    """Have the job run on nodes of a Slurm cluster, and an outsider on another node, on these processors."""
    with tempfile.TemporaryDirectory(prefix="lb-") as name, contextlib.ExitStack() as stack:
        shared = Path(name)
        shared.chmod(0o755)
        site = Site(shared, NODES[: N_NODES + 1])
        stack.callback(site.shut_down)
        *of_job, last = site.network.nodes.values()
        (shared / "slurm").mkdir()
        slurm = stack.enter_context(SlurmCluster(shared / "slurm", site.network))
        folder = site.folder_of_user()
        for file in _step_files(folder):
            file.write_bytes(COUNTER.pack(0))
            site.give(file)
        salloc = ("salloc", f"--nodes={N_NODES}", "--exclusive", f"--nodelist={','.join(each.name for each in of_job)}")
        command = (*salloc, "laggard", *OPTIONS, sys.executable, str(PROGRAM), str(folder))
        job = ClusterJob(site, site.network.login, slurm.environment, *command)

        def machines() -> dict[str, list[psutil.Process]]:
            # On the login machine `srun` runs our command on the primary. Our command there has inherited a port of
            # salloc's, which is not ours.
            sruns = _of_user(site.network.login, "srun")
            return {site.network.login.address: sruns, **{each.address: _of_user(each) for each in of_job}}

        watched = stack.enter_context(_watched(folder, job, machines))
        yield watched, stack.enter_context(Outsider(last.address, last.command(*_pinned(outsiders))))


def _of_user(machine: Machine, name: str = "") -> list[psutil.Process]:
    found = []
    for process in machine.processes():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == UID and process.name().startswith(name):
                found.append(process)
    return found

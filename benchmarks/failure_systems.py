"""Runs the toy program with one fault under laggard or torchrun, and reads what became of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.failure_kinds import CGROUPS, STEPS, Kind
from laggard.system.ports import free_port

__all__ = ["SYSTEMS", "Outcome", "runs_on"]

PROGRAM = str(Path(__file__).with_name("failing_training.py"))
RAY_PROGRAM = str(Path(__file__).with_name("failing_ray.py"))
RING_IN_C = Path(__file__).with_name("failing_ring.c")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1")
# Less than a start of PyTorch takes on two busy cores would be taken for a hang.
HANG_TIMEOUT_S = 30
LAGGARD = (
    *(sys.executable, "-m", "laggard", "--local-nodes=3", "--nodes=2", "--resilient", "--grace=2"),
    *(f"--hang-timeout={HANG_TIMEOUT_S}", "--report", "--report-dir=reports"),
)
MARKER = "LAGGARD_BENCHMARK_MARKER"
CGROUP_BYTES = 100 << 20
DISK_BYTES = 64 << 10
POLL_S = 0.05
END_DEADLINE_S = 20.0
NODES = ("node1", "node2")
FAULTS_IN_C = """
#include <assert.h>
#include <stdlib.h>
void asserts(int size) { assert(size > 0); }
void frees_twice(int size) { char *volatile block = malloc(99 + size); free(block); free(block); }
void writes_to_null(int size) { *(volatile char *)(long)size = 1; }
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one run.

    Attributes
    ----------
    finished
        Whether all steps were done and the launcher ended with 0.
    exit_code
        How the launcher ended; None if it had to be stopped.
    launches
        How often the program was started.
    named
        The nodes that were named as the cause.
    again_s
        Seconds from the fault to the first step that had not been done before; None if there was none.
    repeated
        Steps that were done more than once.
    took_s
        Seconds in all.
    """

    finished: bool
    exit_code: int | None
    launches: int
    named: frozenset[str]
    again_s: float | None
    repeated: int
    took_s: float


def of_laggard(kind: Kind, limit_s: float) -> Outcome:
    """Run under laggard: two nodes in use, one in reserve."""
    two_a_node = ("--per-device", "--virtual-gpus=2")
    programs: dict[str, Callable[[Path], Sequence[str]]] = {
        "gloo": lambda _: ("--per-node", *TORCHRUN, PROGRAM),
        "sockets": lambda _: (*two_a_node, PROGRAM),
        "C": lambda folder: (*two_a_node, str(folder / "ring")),
        "Ray": lambda _: (RAY_PROGRAM,),
    }
    return _outcome(
        kind, limit_s, lambda folder: [((*LAGGARD, *programs[kind.program](folder)), {})], _named_by_laggard
    )


def of_torchrun(kind: Kind, limit_s: float) -> Outcome:
    """Run under torchrun: an agent for each of two nodes."""

    def commands(folder: Path) -> list[tuple[Sequence[str], Mapping[str, str]]]:
        rendezvous = f"--rdzv-endpoint=127.0.0.1:{free_port('127.0.0.1')}"
        agent = (*TORCHRUN, "--nnodes=2", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-id=toy", rendezvous)
        program = ("--no-python", str(folder / "ring")) if kind.program == "C" else (PROGRAM,)
        return [((*agent, *program), {"TOY_NODE": node}) for node in NODES]

    return _outcome(kind, limit_s, commands, _named_by_torchrun)


SYSTEMS: Mapping[str, Callable[[Kind, float], Outcome]] = {"laggard": of_laggard, "torchrun": of_torchrun}


def runs_on(system: str, kind: Kind) -> bool:
    """Return whether a system can run a kind of program: actors of Ray are nothing for torchrun."""
    return system == "laggard" or kind.program != "Ray"


_Commands = Callable[[Path], Sequence[tuple[Sequence[str], Mapping[str, str]]]]


def _outcome(kind: Kind, limit_s: float, commands: _Commands, named: Callable[[Path], frozenset[str]]) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="lt-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with _surroundings(kind, folder) as environment, _running(commands(folder), environment, folder) as processes:
            began_s = time.monotonic()
            while any(process.poll() is None for process in processes) and time.monotonic() < began_s + limit_s:
                if (folder / "kill-launcher").exists():
                    (folder / "kill-launcher").unlink()
                    processes[0].kill()
                time.sleep(POLL_S)
            exit_code, took_s = processes[0].poll(), time.monotonic() - began_s
        return _read(folder, exit_code, took_s, named(folder))


@contextlib.contextmanager
def _surroundings(kind: Kind, folder: Path) -> Iterator[dict[str, str]]:
    """Make what a kind of fault needs; yield the variables of the program's environment."""
    environment = {
        **{"TOY_FOLDER": str(folder), "TOY_FAULT": kind.environment(), "LAGGARD_RUNTIME_ROOT": str(folder)},
        **{"TOY_ACTION": kind.action, "TOY_FAULTY_NODE": kind.node, "TOY_OFTEN": str(int(kind.often))},
        "TOY_STEPS": str(STEPS),
    }
    for node in (*NODES, "node3"):
        (folder / f"scratch-{node}").mkdir()
    with contextlib.ExitStack() as stack:
        if kind.needs == "disk":
            disk = str(folder / "scratch-node2")
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", disk], check=True)
            stack.callback(subprocess.run, ["umount", "--lazy", disk], check=True)
        if kind.program == "C":
            subprocess.run(["cc", "-O1", "-o", str(folder / "ring"), str(RING_IN_C)], check=True)
        elif kind.needs == "cc":
            (folder / "faults.c").write_text(FAULTS_IN_C)
            library = str(folder / "faults.so")
            subprocess.run(["cc", "-shared", "-fPIC", "-O0", "-o", library, str(folder / "faults.c")], check=True)
        if kind.needs == "cgroup":
            root, limit = next((root, limit) for root, limit in CGROUPS if (root / "cgroup.procs").exists())
            group = root / folder.name
            group.mkdir()
            stack.callback(_remove, group)
            (group / limit).write_text(str(CGROUP_BYTES))
            environment["TOY_CGROUP"] = str(group)
        yield environment


@contextlib.contextmanager
def _running(
    commands: Sequence[tuple[Sequence[str], Mapping[str, str]]], environment: Mapping[str, str], folder: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    marker = secrets.token_hex(8)
    path = os.pathsep.join(filter(None, [str(Path.cwd()), str(Path.cwd() / "src"), os.environ.get("PYTHONPATH")]))
    shared = {**os.environ, **environment, MARKER: marker, "PYTHONPATH": path}
    processes = []
    try:
        for number, (command, own) in enumerate(commands, start=1):
            with (folder / f"log{number}").open("w") as log:
                processes.append(
                    subprocess.Popen(
                        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**shared, **own}
                    )
                )
        yield processes
    finally:
        _kill_all(marker)
        for process in processes:
            process.wait(END_DEADLINE_S)


def _kill_all(marker: str) -> None:
    """Kill whatever a run has left, also what is stopped or was started while we looked."""
    while left := [process for process in psutil.process_iter() if _is_marked(process, marker)]:
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, END_DEADLINE_S)


def _is_marked(process: psutil.Process, marker: str) -> bool:
    try:
        return process.environ().get(MARKER) == marker and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def _remove(group: Path) -> None:
    """Remove a control group; the kernel may still be collecting what was killed in it."""
    until_s = time.monotonic() + END_DEADLINE_S
    while True:
        try:
            return group.rmdir()
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(POLL_S)


def _read(folder: Path, exit_code: int | None, took_s: float, named: frozenset[str]) -> Outcome:
    faults = [float(line[0]) for line in _lines(folder / "faults")]
    steps = [(float(line[0]), int(line[1]), line[2]) for line in _lines(folder / "steps")]
    again_s = None
    if faults:
        old = {pid for time_s, _, pid in steps if time_s < faults[0]}
        best = max((step for _, step, pid in steps if pid in old), default=-1)
        after = [time_s for time_s, step, pid in steps if pid not in old and step > best]
        again_s = min(after) - faults[0] if after else None
    numbers = {step for _, step, _ in steps}
    return Outcome(
        finished=exit_code == 0 and STEPS - 1 in numbers,
        exit_code=exit_code,
        launches=len(_lines(folder / "starts0")),
        named=named,
        again_s=again_s,
        repeated=len(steps) - len(numbers),
        took_s=took_s,
    )


def _lines(file: Path) -> list[list[str]]:
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def _named_by_laggard(folder: Path) -> frozenset[str]:
    """Return the nodes that the journal names as the beginning of a failure or a hang, or as lost."""
    named = set()
    for journal in folder.glob("reports/*/job.jsonl"):
        for entry in map(json.loads, journal.read_text().splitlines()):
            match entry["is"]:
                case "FailureFound":
                    named.add(entry["failure"]["host"])
                case "HangFound":
                    named.add(entry["hang"]["suspect"])
                case "LaunchEnded":
                    named.update(fact["host"] for fact in entry["why"] if fact["is"] == "NodeLost")
    return frozenset(filter(None, named))


def _named_by_torchrun(folder: Path) -> frozenset[str]:
    """Return the nodes whose agents say that one of their own workers failed."""
    return frozenset(
        node
        for number, node in enumerate(NODES, start=1)
        if re.search(r"failed \(exitcode: -?\d+\) local_rank", (folder / f"log{number}").read_text(errors="replace"))
    )

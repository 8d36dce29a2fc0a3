"""Real jobs on a growing number of virtual nodes of this machine: their startup time and memory."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["Start", "measure"]

DEADLINE_S = 600.0
LAGGARD = (sys.executable, "-m", "laggard")
# One actor on each node shows that all nodes work; then the job waits to be measured.
PROGRAM = """
import time

import ray

from laggard.collectors.ray_actors import node_strategy
from laggard.resilience import Job

print("first line", flush=True)
ray.init()

@ray.remote(num_cpus=0)
def name():
    return ray.get_runtime_context().get_node_id()

nodes = Job.current().nodes
found = ray.get([name.options(scheduling_strategy=node_strategy(node)).remote() for node in nodes])
print("nodes", len(set(found)), flush=True)
time.sleep(3600)
"""


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a job.

    Attributes
    ----------
    nodes
        Number of virtual nodes, all in use.
    seconds
        Time from the command to the program's first line, with all nodes in the cluster.
    cpu_s
        CPU time of all processes until then.
    megabytes
        Proportional set size of all processes, once a task has run on every node.
    processes
        Number of processes.
    """

    nodes: int
    seconds: float
    cpu_s: float
    megabytes: float
    processes: int


def measure(nodes: int) -> Start:
    """Start a job on this number of virtual nodes, measure it, and end it."""
    with tempfile.TemporaryDirectory() as folder:
        program, output = Path(folder) / "program.py", Path(folder) / "output"
        program.write_text(PROGRAM)
        options = f"--local-nodes={nodes}", "--virtual-gpus=1", "--grace=1", f"--state-dir={folder}/state"
        begun_s = time.perf_counter()
        with output.open("w") as file:
            job = subprocess.Popen([*LAGGARD, *options, str(program)], stdout=file, stderr=subprocess.STDOUT)
        try:
            _wait_for("first line", output, job)
            seconds = time.perf_counter() - begun_s
            cpu_s = sum(map(_cpu_s, _processes(job.pid)))
            _wait_for(f"nodes {nodes}\n", output, job)
            processes = _processes(job.pid)
            return Start(nodes, seconds, cpu_s, sum(map(_megabytes, processes)), len(processes))
        finally:
            job.terminate()
            job.wait(DEADLINE_S)


def _wait_for(text: str, output: Path, job: subprocess.Popen[bytes]) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while text not in output.read_text():
        if job.poll() is not None or time.monotonic() > until_s:
            raise RuntimeError(f"the job did not print {text!r}:\n{output.read_text()}")
        time.sleep(0.05)


def _processes(pid: int) -> list[psutil.Process]:
    return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]


def _cpu_s(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0


def _megabytes(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):
        return float(process.memory_full_info().pss) / 1e6
    return 0.0

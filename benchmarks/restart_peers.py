"""Time from killing one worker until every worker is working again: laggard compared with what users have today.

All candidates run the same toy program: two workers, each of which writes a line every 20 ms and needs nothing else, so
that none has to load a framework. One worker is killed; the clock stops once a new process writes in its place and
every worker has then written once more.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = [
    "CANDIDATES",
    "LAGGARD_LIMITS",
    "TORCHRUN",
    "Candidate",
    "running",
    "seconds_after_a_kill",
    "seconds_of",
    "wait",
    "wait_until_all_work",
]

DEADLINE_S = 300.0
POLL_S = 0.01
RANKS = (0, 1)
WORK = """
import os, threading, time

def settle(rank):
    if "LAGGARD_LAUNCH" in os.environ:
        from laggard.resilience import Job
        Job.current().progress(Job.current().launch)  # launches in a row without progress would end the job
    with open(f"{os.environ['TOY']}/settled{rank}", "a") as file:
        file.write(f"{os.getpid()}\\n")

def work(rank):
    threading.Thread(target=settle, args=[rank]).start()
    with open(f"{os.environ['TOY']}/steps{rank}", "a", buffering=1) as file:
        while True:
            file.write(f"{os.getpid()}\\n")
            time.sleep(0.02)
"""
ALONE = """
import os
from work import work

work(int(os.environ.get("RANK", os.environ.get("NODE_RANK", "0"))))
"""
ACTORS = """
import os, sys
sys.path.insert(0, os.environ["TOY"])
import ray
ray.init({init}runtime_env={{"env_vars": {{"TOY": os.environ["TOY"], "PYTHONPATH": os.environ["PYTHONPATH"]}}}},
         logging_level="ERROR", log_to_driver=False)

@ray.remote({options})
class Worker:
    def work(self, rank):
        from work import work
        work(rank)

ray.get([worker.work.remote(rank) for rank, worker in enumerate([Worker.remote(), Worker.remote()])])
"""
TRAIN = """
import os
import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

ray.init(num_cpus=3, include_dashboard=False, logging_level="ERROR", log_to_driver=False,
         runtime_env={"env_vars": {"TOY": os.environ["TOY"], "PYTHONPATH": os.environ["PYTHONPATH"]}})

def loop():
    from work import work
    work(ray.train.get_context().get_world_rank())

DataParallelTrainer(
    loop,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(failure_config=FailureConfig(max_failures=-1), storage_path=os.environ["TOY"]),
).fit()
"""
LOCAL = "num_cpus=2, include_dashboard=False, "
LAGGARD = ("-m", "laggard", "--local-nodes=2", "--virtual-gpus=1", "--resilient", "--grace=1")
LAGGARD_LIMITS = ("--max-restarts-per-hour=1000",)
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1000")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to recover from a killed worker.

    Attributes
    ----------
    name
        Name in the table.
    program
        Source code of the program.
    command
        Arguments between the interpreter and the program's name.
    needs
        Module that must be installed.
    replaces
        What it can replace besides a process.
    """

    name: str
    program: str
    command: Sequence[str] = ()
    needs: str = ""
    replaces: str = ""

    @property
    def is_available(self) -> bool:
        """Whether it can run in this environment."""
        return not self.needs or importlib.util.find_spec(self.needs) is not None


CANDIDATES = (
    Candidate("laggard --per-node", ALONE, (*LAGGARD, *LAGGARD_LIMITS, "--per-node"), replaces="a node"),
    Candidate(
        "laggard, Ray actors", ACTORS.format(init="", options="num_gpus=1"), (*LAGGARD, *LAGGARD_LIMITS), "", "a node"
    ),
    Candidate("torchrun elastic", ALONE, TORCHRUN, "torch", "a node, with --nnodes=MIN:MAX"),
    Candidate("Ray Train", TRAIN, (), "pyarrow", "a node"),
    Candidate(
        "Ray actor, max_restarts",
        ACTORS.format(init=LOCAL, options="max_restarts=-1, max_task_retries=-1"),
        replaces="nothing else",
    ),
)


def seconds_of(candidates: Sequence[Candidate], repeats: int) -> dict[str, list[float]]:
    """Return, by candidate, the seconds from each kill until every worker is working again.

    All candidates run at once and take turns, so that other load on the machine affects them equally.
    """
    seconds: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
    with contextlib.ExitStack() as stack:
        in_progress = {candidate.name: stack.enter_context(running(candidate)) for candidate in candidates}
        for _ in range(repeats):
            for name, (toy, process) in in_progress.items():
                seconds[name].append(seconds_after_a_kill(toy, process))
    return seconds


@contextlib.contextmanager
def running(candidate: Candidate) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """Run a candidate's program; yields its folder, where its log is, and the command's process."""
    with tempfile.TemporaryDirectory(prefix="lt-", dir="/tmp", ignore_cleanup_errors=True) as name:  # short, for Ray
        toy = Path(name)
        (toy / "work.py").write_text(WORK)
        (toy / "toy.py").write_text(candidate.program)
        path = os.pathsep.join(filter(None, [name, str(Path.cwd()), os.environ.get("PYTHONPATH")]))
        with (toy / "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, *candidate.command, "toy.py"],
                cwd=name,
                stdout=log,
                stderr=log,
                env={**os.environ, "TOY": name, "PYTHONPATH": path, "LAGGARD_RUNTIME_ROOT": name},
            )
            try:
                yield toy, process
            finally:
                _end(process)


def seconds_after_a_kill(toy: Path, process: subprocess.Popen[bytes], longest_s: float = DEADLINE_S) -> float:
    """Kill a worker; return the seconds until every worker is working again.

    Raises
    ------
    RuntimeError
        They are not within `longest_s`, or the command has ended.
    """
    wait_until_all_work(toy, process)
    wait(
        lambda: all(_newest_pid(toy / f"settled{rank}") == _newest_pid(toy / f"steps{rank}") for rank in RANKS),
        toy,
        process,
    )
    victim = _newest_pid(toy / "steps1")
    began_s = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    wait(lambda: _newest_pid(toy / "steps1") != victim, toy, process, longest_s)
    wait_until_all_work(toy, process, longest_s)
    return time.monotonic() - began_s


def wait_until_all_work(toy: Path, process: subprocess.Popen[bytes], longest_s: float = DEADLINE_S) -> None:
    """Wait until each worker has written once more."""
    before = [_size(toy, rank) for rank in RANKS]
    wait(lambda: all(_size(toy, rank) > before[rank] for rank in RANKS), toy, process, longest_s)


def wait(done: Callable[[], bool], toy: Path, process: subprocess.Popen[bytes], longest_s: float = DEADLINE_S) -> None:
    """Wait for a condition; raise with the end of the log if the command ends, or it takes too long."""
    until_s = time.monotonic() + longest_s
    while not done():
        if time.monotonic() > until_s or process.poll() is not None:
            raise RuntimeError(f"the workers are not working again:\n{(toy / 'log').read_text()[-4000:]}")
        time.sleep(POLL_S)


def _size(toy: Path, rank: int) -> int:
    steps = toy / f"steps{rank}"
    return steps.stat().st_size if steps.exists() else 0


def _newest_pid(file: Path) -> int:
    pids = file.read_text().split() if file.exists() else []
    return int(pids[-1]) if pids else 0


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate the candidate, then kill any process it has left behind."""
    descendants = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for descendant in descendants:
        if descendant.is_running():
            descendant.kill()

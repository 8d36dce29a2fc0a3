"""A job on virtual nodes counts in State while its processes are hit, and what must be true afterwards."""

from __future__ import annotations

import contextlib
import math
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import psutil

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.client.fence import current_launch
from laggard.kvstore.server.process import StateServer
from laggard.kvstore.state.mapping import State
from laggard.resilience.decision.events import EXIT_NO_PROGRESS, EXIT_TOO_FEW_NODES
from tests.integration.jobs import RunningJob, is_warm
from tests.long.plan import ON_SITE, WITH_RAY, WITHOUT_RAY, Blow, Fault, Victim, plan_of
from tests.processes import command_line, command_lines, seen_of
from tests.site_servers import SiteServer, site_server
from tests.waiting import wait_until

__all__ = ["ACTORS", "COUNT", "Outcome", "storm"]

# Four nodes, of which two are in use; an excluded one may come back after a second.
OPTIONS = (
    "--local-nodes=4",
    "--nodes=2",
    "--virtual-gpus=1",
    "--resilient",
    "--grace=1",
    "--quarantine=1",
    "--wait-for-nodes=5",
    "--max-restarts-per-hour=100000",
    "--backoff=0.1",
    "--hang-timeout=10",
)
# Counts until a file appears; each committed number is then noted in a separate file.
COUNT = """
import os, signal, time
from laggard.kvstore import State

folder = os.getcwd()

def fail(signum, frame):
    os._exit(3)

def throw(signum, frame):
    raise RuntimeError("told to")

def count(rank):
    state = State.current()
    if "NODE_RANK" in os.environ:  # a worker of Ray's is not in its main thread
        signal.signal(signal.SIGUSR1, fail)
        signal.signal(signal.SIGUSR2, throw)

    def add_one(transaction):
        n = transaction.get(f"n{rank}", 0) + 1
        transaction[f"n{rank}"] = n
        transaction.append(f"log{rank}", n)
        return n

    while not os.path.exists(f"{folder}/enough"):
        n = state.update_with(add_one)
        with open(f"{folder}/committed{rank}", "a") as file:
            file.write(f"{n}\\n")
        time.sleep(0.02)
"""
COUNT_ON_NODE = """
count(int(os.environ["NODE_RANK"]))
"""
# In most launches Ray restarts a killed worker itself; in every fourth the program fails because of it.
SOMETIMES = """
from laggard.resilience import Job
often = -1 if Job.current().launch % 4 else 0
"""
# ``often`` is how often Ray restarts a worker.
ACTORS = """
import ray

ray.init(logging_level="ERROR", log_to_driver=False)

@ray.remote(num_gpus=1, max_restarts=often, max_task_retries=often)
class Counter:
    def count(self, rank):
        count(rank)

counters = [Counter.remote() for _ in range(2)]
ray.get([counter.count.remote(rank) for rank, counter in enumerate(counters)])
"""
RANKS = (0, 1)
JOB = "program"
EXPECTED_ENDINGS = (0, EXIT_TOO_FEW_NODES, EXIT_NO_PROGRESS, -signal.SIGKILL)
# A program that fails in the same way again before it has counted ends the job with its own exit code.
ENDS_AS_BEFORE = r"end +.* failures without progress, the last two at the same place"
# A job that was hit before its first launch has nothing to resume, and says so.
NEVER_UP = r"laggard: (node1 is not up|the state server did not start: it ended with code -9)"
SIGNALS: Mapping[Blow, signal.Signals] = {
    "killed": signal.SIGKILL,
    "stopped": signal.SIGSTOP,
    "fails": signal.SIGUSR1,
    "raises": signal.SIGUSR2,
}
COMMANDS = {"agent": "laggard.resilience.agent.agent", "raylet": "raylet/raylet", "head": "gcs_server"}


@dataclass
class Outcome:
    """What a storm did, and what was left afterwards."""

    hit: Counter[str] = field(default_factory=Counter)
    blows: Counter[str] = field(default_factory=Counter)
    commands: int = 1
    launches: int = 0
    increments: int = 0
    endings: Counter[int] = field(default_factory=Counter)


class _Storm:
    def __init__(self, directory: Path, chance: random.Random, site: SiteServer | None, *, ray: bool) -> None:
        self._ray, self._site = ray, site
        (directory / "program.py").write_text(COUNT + (SOMETIMES + ACTORS if ray else COUNT_ON_NODE))
        options = OPTIONS if ray else (*OPTIONS, "--per-node")
        self._options = (*options, *(["--state-dir=state"] if site is None else site.options(JOB)))
        self._worker = "ray::Counter" if ray else f"{sys.executable} program.py"
        self._directory = directory
        self._chance = chance
        self._stopped: list[tuple[float, psutil.Process]] = []
        self.outcome = Outcome()
        self.job = self._start()

    def _start(self) -> RunningJob:
        return RunningJob(self._directory, str(self._directory), *self._options, "program.py")

    def strike(self, fault: Fault) -> None:
        """Hit the victims of a fault, and run the command again if it has ended."""
        if fault.settled:
            self._wait_until_it_counts()
        time.sleep(fault.pause_s)  # the time of the fault, not a wait for an event
        self._run_again_if_ended()
        for victim, blow in zip(fault.victims, fault.blows, strict=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if found := self._processes(victim):
                    process = self._chance.choice(found)
                    blow = blow if blow in {"killed", "stopped"} or not self._ray else "killed"
                    process.send_signal(SIGNALS[blow])
                    if self._site is not None and victim == "state server" and blow == "killed":
                        self._site.kill()
                        self._site.start()
                    if blow == "stopped":
                        self._stopped.append((time.monotonic() + fault.stopped_s, process))
                    self.outcome.hit[victim] += 1
                    self.outcome.blows[blow] += 1

    def finish(self) -> None:
        """Let the job finish."""
        self._wait_until_it_counts()
        self._continue_stopped(all_of_them=True)
        (self._directory / "enough").touch()
        while self.job.finish() != 0:
            self._run_again_if_ended()
        self._note_ending()

    def _wait_until_it_counts(self) -> None:
        before = self._committed()

        def counts() -> bool:
            self._continue_stopped()
            self._run_again_if_ended()
            return all(now > then for now, then in zip(self._committed(), before, strict=True))

        wait_until(counts, lambda: f"it does not count again:\n{self.job.everything()}")

    def _continue_stopped(self, *, all_of_them: bool = False) -> None:
        """Let those go on that were stopped for long enough."""
        due = [each for each in self._stopped if all_of_them or each[0] <= time.monotonic()]
        for each in due:
            self._stopped.remove(each)
            with contextlib.suppress(psutil.NoSuchProcess):
                each[1].send_signal(signal.SIGCONT)

    def _run_again_if_ended(self) -> None:
        if self.job.process.poll() is not None:
            self._note_ending()
            self.outcome.commands += 1
            self.job = self._start()

    def _note_ending(self) -> None:
        job = self.job
        self.outcome.endings[job.process.returncode] += 1
        never_up = job.process.returncode == 1 and re.search(NEVER_UP, job.account)
        as_expected = job.process.returncode in EXPECTED_ENDINGS or re.search(ENDS_AS_BEFORE, job.account)
        assert never_up or as_expected, job.everything()
        self._continue_stopped(all_of_them=True)
        wait_until(lambda: not job.processes(), lambda: f"left: {command_lines(job.processes())}")

    def _committed(self) -> list[int]:
        files = [self._directory / f"committed{rank}" for rank in RANKS]
        return [file.stat().st_size if file.exists() else 0 for file in files]

    def _processes(self, victim: Victim) -> list[psutil.Process]:
        controller = psutil.Process(self.job.process.pid)
        if victim == "controller":
            return [controller]
        if victim == "state server" and self._site is not None and self._site.process is not None:
            return [psutil.Process(self._site.process.pid)]
        if command := self._worker if victim == "worker" else COMMANDS.get(victim):
            found = [process for process in self.job.processes() if command in command_line(process)]
            return [process for process in found if seen_of([process], is_warm) == [False]]
        sought = "valkey-server" if victim == "state server" else "program.py"
        return [child for child in controller.children() if sought in command_line(child)]


def storm(seed: int, n_faults: int, longest_s: float = math.inf, *, ray: bool, site: str = "") -> Outcome:
    """Run a job through ``n_faults`` faults, or through as many as begin within ``longest_s`` seconds.

    Parameters
    ----------
    seed
        Of the plan of faults.
    n_faults
        Faults in all.
    longest_s
        When to begin no more.
    ray
        The program's workers are Ray's actors; otherwise they are ranks of it, one on each node.
    site
        Kind of the site's server that keeps State; without one, the job has its own.

    Raises
    ------
    AssertionError
        If an increment was lost or counted twice, if something did not end in time, or if a process was left.
    """
    with contextlib.ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="lt-", dir="/tmp"))
        )  # for Ray's sockets
        server = stack.enter_context(site_server(site, directory / "site")) if site else None
        course = _Storm(directory, random.Random(seed), server, ray=ray)
        plan = plan_of(seed, n_faults, WITH_RAY if ray else ON_SITE if site else WITHOUT_RAY)
        try:
            until_s = time.monotonic() + longest_s
            for fault in takewhile(lambda _: time.monotonic() < until_s, plan):
                course.strike(fault)
            course.finish()
        finally:
            course.job.end()
        if server is None:
            endpoint = stack.enter_context(StateServer.start(directory / "state", job=JOB)).endpoint
        check(directory, course.outcome, endpoint if server is None else server.endpoint(JOB))
    return course.outcome


def check(directory: Path, outcome: Outcome, endpoint: Endpoint) -> None:
    """Compare State with what was acknowledged to the workers."""
    with endpoint.connect() as client:
        outcome.launches = (current_launch(client, endpoint) or 0) + 1
        state = State(client, endpoint, launch=0)
        for rank in RANKS:
            acknowledged = [int(line) for line in (directory / f"committed{rank}").read_text().split()]
            n = state[f"n{rank}"]
            assert state[f"log{rank}"] == list(range(1, n + 1)), f"rank {rank}: something counts twice or is missing"
            assert len(acknowledged) == len(set(acknowledged)), f"rank {rank}: a committed increment was undone"
            assert max(acknowledged) <= n, f"rank {rank}: a committed increment is lost"
            outcome.increments += n

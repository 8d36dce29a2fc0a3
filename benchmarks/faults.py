"""Faults: time from a kill until laggard notices it, and until the program is counting again.

A job on virtual nodes, two of them active with one device each, counts in State on every device. For comparison, a
Ray actor that Ray itself restarts (``max_restarts=-1``) counts as well; that replaces one process, never a node.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.machine import description
from tests.integration.jobs import RunningJob
from tests.long.storm import ACTORS, COUNT
from tests.waiting import wait_until

Victims = Callable[[RunningJob], list[psutil.Process]]

STATE_SERVER = "state server killed"
RAY_RESTART = "worker killed, Ray's own actor restart"
LOSSES: dict[str, tuple[Victims, signal.Signals]] = {
    "a node's raylet killed": (lambda job: [job.process_of(_last_node(job), "raylet/raylet")], signal.SIGKILL),
    "a node's agent killed": (lambda job: [job.agent_of(_last_node(job))], signal.SIGKILL),
    "a node's agent hung": (lambda job: [job.agent_of(_last_node(job))], signal.SIGSTOP),
    "a node frozen": (
        lambda job: [job.agent_of(_last_node(job)), *job.processes_of(_last_node(job))],
        signal.SIGSTOP,
    ),
}
FAULTS: dict[str, tuple[Victims, signal.Signals]] = {
    "program killed": (lambda job: [job.process_of("node1", "program.py")], signal.SIGKILL),
    "worker killed": (lambda job: [job.process_of("node1", "ray::Counter")], signal.SIGKILL),
    STATE_SERVER: (lambda job: [job.state_server()], signal.SIGKILL),
    "Ray's head killed": (lambda job: [job.process_of("node1", "gcs_server")], signal.SIGKILL),
    **LOSSES,
}
RAY_ACTOR = """
import os, time, ray
ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)

@ray.remote(max_restarts=-1, max_task_retries=-1)
class Counter:
    def count(self):
        while True:
            with open("counted", "a") as file:
                file.write(f"{os.getpid()}\\n")
            time.sleep(0.02)

ray.get(Counter.remote().count.remote())
"""


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks faults", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="repetitions of each fault (default: %(default)s)")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only faults whose name contains TEXT (default: all)"
    )
    options = parser.parse_args(arguments)
    chosen = [name for name in (*FAULTS, RAY_RESTART) if options.only in name]
    if not chosen:
        parser.error(f"no fault has {options.only!r} in its name; the faults are: {', '.join((*FAULTS, RAY_RESTART))}")
    console = Console()
    console.print(description())
    table = Table(title=f"seconds since the kill, median of {options.repeats} (worst)", title_justify="left")
    for column in ("fault", "noticed", "counting again"):
        table.add_column(column, justify="left" if column == "fault" else "right")
    if faults := [name for name in chosen if name in FAULTS]:
        for name, (noticed, again) in of_laggard(faults, options.repeats).items():
            table.add_row(name, _shown(noticed), _shown(again))
    if RAY_RESTART in chosen:
        table.add_row(RAY_RESTART, "", _shown(of_ray_actor(options.repeats)))
    console.print(table)
    return 0


def of_laggard(faults: Sequence[str], repeats: int) -> dict[str, tuple[list[float], list[float]]]:
    """Return, for each fault, the seconds until it was noticed and until the program was counting again."""
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in faults}
    nodes = 2 + repeats * len(LOSSES.keys() & found.keys())
    with tempfile.TemporaryDirectory(prefix="lt-", dir="/tmp") as name:
        directory = Path(name)
        (directory / "program.py").write_text(f"{COUNT}often = 0\n{ACTORS}")
        job = RunningJob(
            directory,
            name,
            f"--local-nodes={nodes}",
            "--nodes=2",
            "--virtual-gpus=1",
            "--resilient",
            "--grace=1",
            "--max-restarts-per-hour=1000",
            "program.py",
        )
        try:
            for _ in range(repeats):
                for fault in faults:
                    victims, signum = FAULTS[fault]
                    _wait_until_it_counts(job)
                    noticed, launches = _noticed(job), _launches(job)
                    processes = victims(job)
                    began_s = time.monotonic()
                    for process in processes:
                        process.send_signal(signum)
                    wait_until(lambda noticed=noticed: _noticed(job) > noticed, job.everything)  # type: ignore[misc]
                    found[fault][0].append(time.monotonic() - began_s)
                    _wait_for_a_launch(job, launches + (fault != STATE_SERVER))
                    _wait_until_it_counts(job)
                    found[fault][1].append(time.monotonic() - began_s)
        finally:
            job.end()
    return found


def of_ray_actor(repeats: int) -> list[float]:
    """Return the seconds from killing an actor's process until Ray's replacement counts."""
    seconds = []
    with tempfile.TemporaryDirectory() as name:
        counted = Path(name) / "counted"
        counted.touch()
        ray = subprocess.Popen([sys.executable, "-c", RAY_ACTOR], cwd=name, stdout=subprocess.DEVNULL)
        try:
            for _ in range(repeats):
                wait_until(lambda: counted.stat().st_size > 0, str)
                pid = int(counted.read_text().split()[-1])
                known = set(counted.read_text().split())
                began_s = time.monotonic()
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda known=known: set(counted.read_text().split()) > known, str)  # type: ignore[misc]
                seconds.append(time.monotonic() - began_s)
        finally:
            ray.terminate()
            ray.wait()
    return seconds


def _shown(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f} ({max(seconds):.1f})"


def _last_node(job: RunningJob) -> str:
    return str(re.findall(r"launch +\d+ on \S+, (\S+) ", job.account)[-1])


def _noticed(job: RunningJob) -> int:
    """Count the faults that laggard has noticed so far."""
    return len(re.findall(r"relaunch  |was restarted with all of its log", job.account))


def _wait_for_a_launch(job: RunningJob, number: int) -> None:
    wait_until(lambda: _launches(job) >= number, job.everything)


def _launches(job: RunningJob) -> int:
    return len(re.findall(r"launch +\d+ on ", job.account))


def _wait_until_it_counts(job: RunningJob) -> None:
    def sizes() -> list[int]:
        files = [job.directory / "committed0", job.directory / "committed1"]
        return [file.stat().st_size if file.exists() else 0 for file in files]

    before = sizes()
    wait_until(lambda: all(now > then for now, then in zip(sizes(), before, strict=True)), job.everything)

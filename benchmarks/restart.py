"""Restart: time from a verdict to the program's first line in the next launch, and what it is spent on.

A job on virtual nodes has two active ones, with two virtual devices each. In every launch the program starts one actor
on each device, then a verdict accuses its last node, and the controller relaunches with a reserve node. Also measured:
the time from the command to the program's first line, with three virtual nodes, the recovery from a killed worker
compared with other tools (:mod:`benchmarks.restart_peers`), and that of training with PyTorch
(:mod:`benchmarks.restart_ddp`).
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.machine import description
from benchmarks.restart_ddp import KEEPS, LONGEST_S, PYTORCH, SLOW_START, TRANSFORMERS, Recovery, recoveries
from benchmarks.restart_peers import CANDIDATES, seconds_of

PROGRAM = """
import time
print("first line", time.time(), flush=True)

import sys
import ray
from laggard.detectors import Verdict
from laggard.detectors.evidence import WrongResults
from laggard.detectors.verdict import Evidence
from laggard.kvstore.control import Control
from laggard.kvstore.client.connection import current_session
from laggard.resilience import Job

job = Job.current()
if not job.reserve:
    sys.exit(0)
ray.init()

@ray.remote(num_gpus=1)
class Worker:
    def ready(self):
        return True

workers = [Worker.remote() for node in job.nodes for _ in node.devices]
ray.get([worker.ready.remote() for worker in workers])
job.progress(job.launch)  # launches in a row without progress would end the job
session = current_session()
control = Control(session.client, session.endpoint, session.environment.launch)
host = job.nodes[-1].hostname
evidence = Evidence(host, "0", WrongResults("the benchmark accuses it"))
verdict = Verdict(host, "0", 2.0, "very slow", evidence, action="restart")
print("verdict", time.time(), flush=True)
control.ask("verdicts", [verdict.to_fields()])
time.sleep(600)
"""
DEADLINE_S = 600


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks restart", description=__doc__)
    parser.add_argument(
        "--relaunches", type=int, default=10, help="relaunches caused by a verdict (default: %(default)s)"
    )
    parser.add_argument("--startups", type=int, default=5, help="starts of the command (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=10, help="kills of each candidate's worker (default: %(default)s)")
    parser.add_argument(
        "--ddp-kills", type=int, default=4, help="kills of a rank of a PyTorch program (default: %(default)s)"
    )
    parser.add_argument(
        "--transformers-kills", type=int, default=4, help="the same, importing Transformers (default: %(default)s)"
    )
    parser.add_argument(
        "--slow-start-kills",
        type=int,
        default=4,
        help="the same, with a wait of 10 s in its start (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    console = Console()
    console.print(description())
    if options.kills:
        compare_with_peers(console, options.kills)
    if options.ddp_kills or options.transformers_kills or options.slow_start_kills:
        compare_training(console, options.ddp_kills, options.transformers_kills, options.slow_start_kills)
    if options.relaunches:
        from_verdict_to_first_line(console, options.relaunches, options.startups)
    return 0


def compare_with_peers(console: Console, kills: int) -> None:
    """Print how long each candidate takes to recover from a killed worker."""
    available = [candidate for candidate in CANDIDATES if candidate.is_available]
    for candidate in CANDIDATES:
        if candidate not in available:
            console.print(f"{candidate.name} is skipped: {candidate.needs} is not installed")
    table = Table(title=f"seconds from a kill until all workers are working again, {kills} kills", title_justify="left")
    for column in ("", "median", "worst", "best", "can replace"):
        table.add_column(column, justify="right" if column in {"median", "worst", "best"} else "left")
    seconds = seconds_of(available, kills)
    for candidate in available:
        table.add_row(candidate.name, *spread(seconds[candidate.name]), candidate.replaces)
    console.print(table)


def compare_training(console: Console, kills: int, transformers_kills: int, slow_start_kills: int) -> None:
    """Print how long training with DistributedDataParallel takes to recover from a killed rank."""
    if importlib.util.find_spec("torch") is None:
        console.print("training is skipped: torch is not installed")
        return
    if not KEEPS:
        console.print("ranks that keep their processes are skipped: they need PyTorch 2.14")
    found: dict[str, Recovery] = {}
    runs = (PYTORCH, kills), (TRANSFORMERS, transformers_kills), (SLOW_START, slow_start_kills)
    for candidates, n_kills in runs:
        if n_kills and all(candidate.is_available for candidate in candidates):
            found |= recoveries(candidates, n_kills)
        elif n_kills:
            console.print(f"training is skipped: {candidates[0].needs} is not installed")
    table = Table(title="seconds from a kill until all ranks have trained a step again", title_justify="left")
    for column in ("", "median", "worst", "best", "MiB", "MiB warm"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for name, recovery in found.items():
        seconds = spread(recovery.seconds) if recovery.seconds else ("", "", "")
        table.add_row(name, *seconds, f"{recovery.mib:.0f}", f"{recovery.warm_mib:.0f}")
    console.print(table)
    for name, recovery in found.items():
        if recovery.failures:
            times = len(recovery.seconds) + recovery.failures
            console.print(
                f"{name}: did not come back from {recovery.failures} of {times} kills within {LONGEST_S:.0f} s"
            )


def spread(values: list[float]) -> tuple[str, str, str]:
    """Format the median, the largest and the smallest value."""
    return f"{statistics.median(values):.2f}", f"{max(values):.2f}", f"{min(values):.2f}"


def from_verdict_to_first_line(console: Console, relaunches: int, n_startups: int) -> None:
    """Print how long a relaunch takes, and what the time is spent on."""
    startups = [startup_s() for _ in range(n_startups)]
    output, account = run(PROGRAM, relaunches + 2)
    firsts = [float(moment) for moment in re.findall(r"first line (\S+)", output)]
    verdicts = [float(moment) for moment in re.findall(r"verdict (\S+)", output)]
    gaps = [first - verdict for first, verdict in zip(firsts[1:], verdicts, strict=True)]
    phases = [
        [float(seconds) for seconds in found]
        for found in re.findall(r"gap was \S+ s: (\S+) s .*?, (\S+) s .*?, (\S+) s ", account)
    ]
    ends, fences, changes = (list(values) for values in zip(*phases, strict=True))
    rows = {
        f"verdict to first line, {len(gaps)} relaunches": gaps,
        "- program shutdown": ends,
        "- fencing, log to disk, cleanup": fences,
        "- replacing nodes": changes,
        "- receiving the verdict, starting Python": [gap - sum(parts) for gap, parts in zip(gaps, phases, strict=True)],
        f"command to first line, {len(startups)} starts": startups,
    }
    table = Table(title="seconds")
    for column in ("", "median", "worst", "best"):
        table.add_column(column, justify="right" if column else "left")
    for name, values in rows.items():
        table.add_row(name, *spread(values))
    console.print(table)


def startup_s() -> float:
    """Return the seconds from the command to the program's first line."""
    began_s = time.time()
    output, _ = run("import time; print(time.time())", 3)
    return float(output) - began_s


def run(source: str, nodes: int) -> tuple[str, str]:
    """Run a job on virtual nodes, two of them active; return the program's output and laggard's account."""
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "program.py"
        program.write_text(source)
        command = [sys.executable, "-m", "laggard", f"--local-nodes={nodes}", "--nodes=2"]
        done = subprocess.run(
            [*command, "--virtual-gpus=2", "--resilient", str(program)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(f"the job failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout, done.stderr

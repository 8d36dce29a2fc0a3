"""A job saves checkpoints without a pause while whole nodes are killed, and what must be true of what it restores."""

from __future__ import annotations

import contextlib
import json
import math
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.integration.jobs import RunningJob
from tests.processes import command_line
from tests.waiting import wait_until

__all__ = ["Outcome", "chaos", "kill_node", "main"]

NODES = ("node1", "node2", "node3")
OPTIONS = (
    "--local-nodes=4",
    "--nodes=3",
    "--resilient",
    "--per-node",
    "--preload=none",  # a warm process of the reserve looks as if the program ran there
    "--grace=1",
    "--quarantine=1",
    "--max-restarts-per-hour=100000",
    "--backoff=0.1",
)
AGENT = "laggard.resilience.agent.agent"
# Every rank looks into every shard: all must be of the same launch and step.  It notes what it has restored, and the
# checkpoints that counted.  Two are saved in a row, so that one may be overtaken.
PROGRAM = """
import json, os
import numpy as np
from laggard import Checkpointer, Job, State

rank, ranks = int(os.environ["NODE_RANK"]), int(os.environ["NNODES"])
launch, folder = Job.current().launch, os.getcwd()
checkpoints = Checkpointer(State.current(), rank=rank, ranks=ranks)

def note(what, **values):
    with open(f"{folder}/{what}{rank}", "a") as file:
        file.write(json.dumps({"launch": launch, **values}) + "\\n")

step = checkpoints.latest()
if step is not None:
    origins = set()
    for other in range(ranks):
        tree = checkpoints.restore(step, rank=other)
        assert (tree["weights"] == step * 10 + other).all(), "torn, or another step's"
        origins.add((tree["launch"], tree["step"]))
    note("restored", step=step, origins=sorted(origins))
step = 0 if step is None else step

weights = np.empty(700_000)  # 5.6 MB: two blocks
while not os.path.exists(f"{folder}/enough"):
    for _ in range(2):
        step += 1
        weights[:] = step * 10 + rank
        checkpoints.save(step, {"launch": launch, "step": step, "weights": weights})
        weights[:] = -1
    # The others may have ended before this step.
    while not (counts := checkpoints.wait(step, 1)) and not os.path.exists(f"{folder}/enough"):
        pass
    if counts:
        note("counted", step=step)
"""


@dataclass
class Outcome:
    """What was done to the job, and what it did.

    Attributes
    ----------
    killed
        The nodes, in order.
    counted
        How many checkpoints counted, as rank 0 saw it.
    restored
        How many launches went on from one.
    """

    killed: list[str]
    counted: int
    restored: int


def chaos(seed: int, n_kills: int, longest_s: float = math.inf) -> Outcome:
    """Kill whole nodes at random moments, ``n_kills`` times or as often as it begins within ``longest_s`` seconds.

    Raises
    ------
    AssertionError
        If a launch restored a checkpoint that was torn, mixed, or not the newest that had counted; or if shared memory
        or a process was left.
    """
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="lt-", dir="/tmp") as name:
        folder = Path(name)
        (folder / "program.py").write_text(PROGRAM)
        job = RunningJob(folder, name, *OPTIONS, "program.py")
        killed: list[str] = []
        try:
            until_s = time.monotonic() + longest_s
            while len(killed) < n_kills and time.monotonic() < until_s:
                before = _launch(folder)
                _wait_for_launch(job, folder, before if not killed else before + 1)
                time.sleep(chance.uniform(0, 0.5))  # the moment of the fault, not a wait for an event
                killed += kill_node(job, chance.choice(_nodes_in_use(job)))
            _wait_for_launch(job, folder, _launch(folder) + 1)
            (folder / "enough").touch()
            assert job.finish() == 0, job.everything()
            wait_until(lambda: not job.processes(), job.everything)
        finally:
            job.end()
        counted, restored = _check(folder)
        return Outcome(killed, counted, restored)


def kill_node(job: RunningJob, node: str) -> list[str]:
    """Kill all processes of a node at once, its agent included: nothing on it gets to tell anybody."""
    of_node = list(job.processes_of(node))
    pids = {process.pid for process in of_node}
    for agent in job.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            if AGENT in command_line(agent) and pids & {child.pid for child in agent.children()}:
                of_node.append(agent)
    for signum in (signal.SIGSTOP, signal.SIGKILL):
        for process in of_node:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signum)
    return [node]


def _nodes_in_use(job: RunningJob) -> list[str]:
    def runs_program(process: psutil.Process) -> bool:
        return "program.py" in command_line(process) and "laggard" not in command_line(process).partition("program")[0]

    found = set()
    for process in job.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            if runs_program(process) and (node := process.environ().get("LAGGARD_NODE")):
                found.add(node)
    assert found, job.everything()
    return sorted(found)


def _launch(folder: Path) -> int:
    """Return the newest launch of which a checkpoint has counted; -1: none."""
    return max((int(line["launch"]) for line in _lines(folder / "counted0")), default=-1)


def _wait_for_launch(job: RunningJob, folder: Path, launch: int) -> None:
    """Wait until a checkpoint of this launch or a later one has counted."""

    def counts() -> bool:
        assert job.process.poll() is None, job.everything()
        return _launch(folder) >= max(launch, 0)

    wait_until(counts, lambda: f"no checkpoint of launch {launch} counts:\n{job.everything()}")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    text = path.read_text() if path.exists() else ""
    yield from (json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n"))


def _check(folder: Path) -> tuple[int, int]:
    """Compare what was restored with what had counted; return how many counted, and how many launches restored."""
    counted = list(_lines(folder / "counted0"))
    restored: dict[int, set[int]] = {}
    for rank in range(len(NODES)):
        for line in _lines(folder / f"restored{rank}"):
            restored.setdefault(line["launch"], set()).add(line["step"])
            assert len(line["origins"]) == 1, f"mixed: {line}"
            newest = max((each["step"] for each in counted if each["launch"] < line["launch"]), default=0)
            assert line["step"] >= newest, f"step {newest} had counted: {line}"
    assert all(len(steps) == 1 for steps in restored.values()), f"ranks restored different steps: {restored}"
    return len(counted), len(restored)


def main() -> None:
    """Run it as often as the first argument says."""
    began_s = time.monotonic()
    outcome = chaos(int(sys.argv[2]) if len(sys.argv) > 2 else 1, int(sys.argv[1]))
    took_s = time.monotonic() - began_s
    print(
        f"{len(outcome.killed)} nodes killed, {outcome.counted} checkpoints counted, {outcome.restored} launches "
        f"went on from one, none torn or mixed, none older than the newest that had counted; {took_s:.0f} s"
    )


if __name__ == "__main__":
    main()

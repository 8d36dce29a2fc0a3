"""Time from killing one rank of a DistributedDataParallel program until all ranks have trained a step again.

Two ranks on CPUs, connected by Gloo, train a small model, and save it every hundred steps. After a kill both ranks are
started anew, load PyTorch, connect, load the checkpoint and train; the clock stops once each has made a step. All
candidates run the same script, at once, and take turns. With PyTorch 2.14, one more keeps the process of the other rank
(:func:`laggard.torch.init_process_group`).

The script imports nothing but PyTorch. Most programs import more, so the same script is run again with a first line
that imports what a program needs from Hugging Face's Transformers, and does nothing with it.

And most take long to start, with what no fork saves, such as compiling a model. So the same script is run once more
with a wait in its start; with PyTorch 2.14 also with a reserve, where processes stand by, and with planned swaps, of
which the longest time between two steps counts.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import psutil

from benchmarks.restart_peers import (
    LAGGARD_LIMITS,
    TORCHRUN,
    Candidate,
    running,
    seconds_after_a_kill,
    wait,
    wait_until_all_work,
)

__all__ = ["KEEPS", "LONGEST_S", "PYTORCH", "SLOW_START", "TRANSFORMERS", "Recovery", "recoveries"]

TRAIN = """
import os, threading, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, folder = dist.get_rank(), os.environ["TOY"]
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.AdamW(model.parameters())
step = 0
if os.path.exists(f"{folder}/checkpoint"):
    saved = torch.load(f"{folder}/checkpoint")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]

def settle():
    if "LAGGARD_LAUNCH" in os.environ:
        from laggard.resilience import Job
        Job.current().progress(Job.current().launch)  # launches in a row without progress would end the job
    with open(f"{folder}/settled{rank}", "a") as file:
        file.write(f"{os.getpid()}\\n")

with open(f"{folder}/steps{rank}", "a", buffering=1) as file:
    for step in range(step + 1, 1_000_000):
        optimizer.zero_grad()
        model(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()
        file.write(f"{os.getpid()}\\n")
        if step % 100 == 0 and rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, f"{folder}/checkpoint.new")
            os.replace(f"{folder}/checkpoint.new", f"{folder}/checkpoint")
        if not os.path.exists(f"{folder}/begun{os.getpid()}"):
            open(f"{folder}/begun{os.getpid()}", "w").close()
            threading.Thread(target=settle).start()
        time.sleep(0.02)
"""
KEPT = """
import os, time
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import laggard.torch
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.control import Control

torch.manual_seed(0)
torch.set_num_threads(1)
folder = os.environ["TOY"]
laggard.torch.init_process_group("gloo")
rank = os.environ["RANK"]
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.AdamW(model.parameters())
run = laggard.torch.resume(model, optimizer, every=100)
with open(f"{folder}/settled{rank}", "a") as file:
    file.write(f"{os.getpid()}\\n")
with open(f"{folder}/steps{rank}", "a", buffering=1) as file:
    for attempt in run.steps(1_000_000):
        with attempt as step:
            optimizer.zero_grad()
            model(torch.randn(32, 64)).square().mean().backward()
            optimizer.step()
            run.save(step)
            file.write(f"{os.getpid()}\\n")
            if rank == "0":
                with open(f"{folder}/times", "a") as times:
                    times.write(f"{time.monotonic()}\\n")
            if rank == "1" and os.path.exists(f"{folder}/swap"):
                os.remove(f"{folder}/swap")
                session = current_session()
                control = Control(session.client, session.endpoint, session.environment.launch)
                control.ask("reboot", [os.environ["LAGGARD_NODE"]])
            time.sleep(0.02)
"""


def _slow(program: str) -> str:
    """Return a program with a wait before its ranks meet."""
    head, meet, rest = program.partition("folder = os.environ" if program is KEPT else "dist.init_process_group")
    return f"{head}time.sleep({START_S})\n{meet}{rest}"


LAGGARD = ("-m", "laggard", "--local-nodes=1", "--virtual-gpus=2", "--resilient", "--per-device", "--grace=1")
IS_READY = "keeps a process ready"
KEEPS = importlib.util.find_spec("torch") is not None and version("torch") >= "2.14"
LONGEST_S = 60.0
"""Ranks that do not train again after so long have not found each other, as Gloo's own deadline is 30 minutes."""
PYTORCH = (
    Candidate("laggard --per-device", TRAIN, (*LAGGARD, *LAGGARD_LIMITS)),
    Candidate("laggard --preload none", TRAIN, (*LAGGARD, *LAGGARD_LIMITS, "--preload=none")),
    Candidate("torchrun --max-restarts", TRAIN, TORCHRUN),
    *([Candidate("laggard, the other rank stays", KEPT, (*LAGGARD, *LAGGARD_LIMITS))] if KEEPS else []),
)
"""With nothing but PyTorch; the first one is ready once its warm process is."""
START_S = 10.0
_RESERVE = ("-m", "laggard", "--local-nodes=3", "--nodes=2", "--virtual-gpus=1", "--quarantine=1", *LAGGARD[4:])
SWAP = "slow start: planned swap"
SLOW_START: tuple[Candidate, ...] = (
    Candidate("slow start: laggard", _slow(TRAIN), (*LAGGARD, *LAGGARD_LIMITS)),
    Candidate("slow start: torchrun", _slow(TRAIN), TORCHRUN),
)
"""With a start of which a fork saves nothing."""
if KEEPS:
    SLOW_START += (
        Candidate("slow start: rank stays", _slow(KEPT), (*LAGGARD, *LAGGARD_LIMITS)),
        Candidate("slow start: rank stays, reserve", _slow(KEPT), (*_RESERVE, *LAGGARD_LIMITS)),
        Candidate(SWAP, _slow(KEPT), (*_RESERVE, *LAGGARD_LIMITS)),
    )
_IMPORTING = "from transformers import AutoModelForCausalLM, Trainer\n" + TRAIN
TRANSFORMERS = (
    Candidate("laggard, with Transformers", _IMPORTING, (*LAGGARD, *LAGGARD_LIMITS), "transformers"),
    Candidate("torchrun, with Transformers", _IMPORTING, TORCHRUN, "transformers"),
)
"""With the imports of a larger program, which laggard finds out itself."""


@dataclass(slots=True)
class Recovery:
    """What one candidate took.

    Attributes
    ----------
    seconds
        From each kill until every rank has made a step.
    failures
        How often it did not recover from a kill within `LONGEST_S`; the whole job was then run anew.
    mib, warm_mib
        The share of memory of all its processes, and of the one that is kept warm, in MiB.
    """

    seconds: list[float] = field(default_factory=list)
    failures: int = 0
    mib: float = 0.0
    warm_mib: float = 0.0


def recoveries(candidates: Sequence[Candidate], kills: int) -> dict[str, Recovery]:
    """Return, by candidate, how it recovered from that many kills."""
    found = {candidate.name: Recovery() for candidate in candidates}
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(_Job(each)) for each in candidates]
        wait(lambda: IS_READY in (jobs[0].folder / "log").read_text(), jobs[0].folder, jobs[0].process)
        for _ in range(kills):
            for job in jobs:
                job.hit(found[job.candidate.name])
        for job in jobs:
            wait_until_all_work(job.folder, job.process)  # it may have been run anew just now
            recovery = found[job.candidate.name]
            recovery.mib, recovery.warm_mib = _memory_mib(job.process.pid)
    return found


class _Job(contextlib.ExitStack):
    """A candidate's job, which is run anew if it does not recover."""

    def __init__(self, candidate: Candidate) -> None:
        super().__init__()
        self.candidate = candidate
        self._n_struck = 0
        self.folder, self.process = self.enter_context(running(candidate))

    def hit(self, recovery: Recovery) -> None:
        """Kill a rank and note how long it took until all ranks trained again, or how long a swap kept them."""
        try:
            if self.candidate.command[2:5] == _RESERVE[2:5]:
                wait(self._stand_by, self.folder, self.process)
            self._n_struck += 1
            is_swap = self.candidate.name == SWAP
            strike = self._seconds_of_a_swap if is_swap else seconds_after_a_kill
            recovery.seconds.append(strike(self.folder, self.process, LONGEST_S))
        except RuntimeError:  # its ranks do not find each other again, or the command has ended
            recovery.failures += 1
            self.close()
            self._n_struck = 0
            self.folder, self.process = self.enter_context(running(self.candidate))

    def _stand_by(self) -> bool:
        """Return whether others stand by in the place of those that have come in."""
        return (self.folder / "log").read_text().count("processes stand by on") > self._n_struck

    def _seconds_of_a_swap(self, folder: Path, process: subprocess.Popen[bytes], longest_s: float) -> float:
        """Have a node replaced while all train; return the longest time between two steps of the rank that stays."""
        wait_until_all_work(folder, process)
        before, ended = _newest(folder / "steps1"), len(_lines(folder / "times"))
        (folder / "swap").touch()
        wait(lambda: _newest(folder / "steps1") != before, folder, process, longest_s)
        wait_until_all_work(folder, process, longest_s)
        times = list(map(float, _lines(folder / "times")[ended - 1 :]))
        return max(after - earlier for earlier, after in itertools.pairwise(times))


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def _newest(file: Path) -> str:
    return _lines(file)[-1]


def _memory_mib(pid: int) -> tuple[float, float]:
    command = psutil.Process(pid)
    total = warm = 0.0
    for process in [command, *command.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            share = process.memory_full_info().pss / 2**20
            total += share
            warm += share if "LAGGARD_WARM" in process.environ() else 0.0
    return total, warm

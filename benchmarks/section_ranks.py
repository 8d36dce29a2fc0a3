"""Sections of a real job: DistributedDataParallel over Gloo on four nodes, one rank of which becomes slower.

A forward pass is that of a small model and a wait in place of a device, so that two cores are enough for all ranks.
Whom the job names is read from what it prints. Beside it there may be a neighbour: a process that keeps all cores busy
for ten seconds out of twenty.
"""

from __future__ import annotations

import contextlib
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from tqdm import tqdm

from benchmarks.neighbour import Neighbour
from laggard.collectors.device import VIRTUAL_DEVICE_DIR, VIRTUAL_DEVICES
from tests.integration.jobs import RunningJob
from tests.waiting import wait_until

__all__ = ["HEAD", "rows"]

TRAIN = """
import os, time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import laggard

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)))
optimizer = torch.optim.AdamW(model.parameters())
slow, slowdown, step = Path("slow"), 1.0, 0
while True:
    if step % 8 == 0 and dist.get_rank() == SLOW and slow.exists():
        slowdown = float(slow.read_text())
    step += 1
    with laggard.section("step"):
        with laggard.section("forward"):
            loss = model(torch.randn(32, 64)).square().mean()
            time.sleep(0.03 * slowdown)
        with laggard.section("backward", waits=True):
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
"""
NODES, SLOW = 4, 3  # its number as a rank
SLOWDOWNS = (1.15, 1.3, 2.0)
LEARNED_S, WATCHED_S = 75.0, 120.0  # from the launch to the fault, and the longest wait for a verdict
BUSY_S = 10.0
HEAD = ("rank 3 is slower by", "neighbour", "runs", "named", "seconds, median", "most", "wrong verdicts")


@dataclass(frozen=True)
class Outcome:
    """What a run came to: seconds from the fault to the first verdict on the rank, and how many verdicts were wrong."""

    delay_s: float | None
    wrong: int


def rows(repeats: int, slowdowns: Sequence[float] = (1.0, *SLOWDOWNS)) -> Iterator[Sequence[object]]:
    """Yield a row for each slowdown, of which 1 is none, with and without a neighbour."""
    cells = list(product(slowdowns, (False, True)))
    with tqdm(total=repeats * len(cells), unit="run", disable=None) as bar:
        for slowdown, is_busy in cells:
            outcomes = []
            for _ in range(repeats):
                outcomes.append(play(slowdown, is_busy=is_busy))
                bar.update()
            delays = [each.delay_s for each in outcomes if each.delay_s is not None]
            yield (
                f"{100 * (slowdown - 1):.0f} %",
                "yes" if is_busy else "no",
                repeats,
                len(delays) if slowdown > 1 else "-",
                f"{statistics.median(delays):.0f}" if delays else "-",
                f"{max(delays):.0f}" if delays else "-",
                sum(each.wrong for each in outcomes),
            )


def play(slowdown: float, *, is_busy: bool) -> Outcome:
    """Run one job until the rank is named, or for so long."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ls-", dir="/tmp")))
        (folder / "train.py").write_text(TRAIN.replace("SLOW", str(SLOW)))
        options = (f"--local-nodes={NODES}", "--virtual-gpus=1", "--per-device", "--resilient", "--detect=sections")
        job = RunningJob(folder, str(folder), *options, "--restart-cost=1000000", "train.py")
        stack.callback(job.end)
        if is_busy:
            stack.enter_context(_neighbour())
        job.wait_for("launch +0 on ")
        _wait_s(LEARNED_S, job)
        early, begun_s, delay_s = len(_verdicts(job)), time.monotonic(), None
        if slowdown > 1:
            (folder / "slow.new").write_text(str(slowdown))
            (folder / "slow.new").rename(folder / "slow")
        while time.monotonic() < begun_s + WATCHED_S and delay_s is None:
            _wait_s(0.1, job)
            if slowdown > 1 and any(map(_is_right, _verdicts(job)[early:])):
                delay_s = time.monotonic() - begun_s
        wrong = [
            each for place, each in enumerate(_verdicts(job)) if place < early or slowdown == 1 or not _is_right(each)
        ]
        for each in wrong:
            tqdm.write(f"wrong: {each}", sys.stderr)
        return Outcome(delay_s, len(wrong))


def _wait_s(seconds: float, job: RunningJob) -> None:
    until_s = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > until_s or job.process.poll() is not None, deadline_s=seconds + 60)
    if job.process.poll() is not None:
        raise RuntimeError(f"the job has ended:\n{job.everything()}")


def _verdicts(job: RunningJob) -> list[str]:
    return [each for each in re.findall(r"verdict +(.*)", job.account) if "well again" not in each]


def _is_right(verdict: str) -> bool:
    return verdict.startswith(f"rank {SLOW} on ")


@contextlib.contextmanager
def _neighbour() -> Iterator[None]:
    """Keep all cores busy for half of the time."""
    ended = threading.Event()

    def alternate(user: Neighbour) -> None:
        while not ended.is_set():
            with user.at_work():
                ended.wait(BUSY_S)
            ended.wait(BUSY_S)

    with (
        tempfile.TemporaryDirectory() as folder,
        Neighbour("processor", "0", {VIRTUAL_DEVICES: "1", VIRTUAL_DEVICE_DIR: folder}) as user,
    ):
        thread = threading.Thread(target=alternate, args=(user,))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

"""A training whose ranks keep their processes when one is lost, and what is true of it whenever ranks are struck."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.integration.jobs import RunningJob
from tests.processes import HIDDEN, command_lines
from tests.waiting import wait_until

__all__ = [
    "DDP",
    "DEADLINE_S",
    "HSDP",
    "ONE_IN_RESERVE",
    "RANKS",
    "TRAIN",
    "Outcome",
    "Start",
    "assert_same_losses",
    "chaos",
    "rows",
    "start",
]

Start = Callable[..., RunningJob]

DEADLINE_S = 900.0
RANKS = 4
OPTIONS = (f"--nodes={RANKS // 2}", "--virtual-gpus=2", "--resilient", "--per-device")
WITHOUT_RESERVE, ONE_IN_RESERVE = f"--local-nodes={RANKS // 2}", f"--local-nodes={RANKS // 2 + 1}"
# Dropout, several buckets, a scheduler, batches with random numbers of their own, an evaluation at every third step,
# after which buffers are not taken from rank 0, and files that say what happened.
TRAIN = """
import json, os, signal, sys, time
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import laggard.torch
from laggard.detectors import Verdict
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.control import Control

session = current_session()
# The pace in the first launch, and in later ones.
n_steps, paces_s, faults = int(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
torch.set_num_threads(1)

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, index):
        inputs = torch.randn(16, generator=torch.Generator().manual_seed(index))
        return inputs + torch.rand(16) / 10, inputs.sum().reshape(1)

def fail(step, place):
    if os.path.exists(f"strike-{rank}-{place}"):
        os.remove(f"strike-{rank}-{place}")
        os.kill(os.getpid(), signal.SIGKILL)
    mark = f"done-{rank}-{step}"
    if [rank, step, place] in faults and not os.path.exists(mark):
        open(mark, "w").close()
        if place == "raise":
            raise ValueError("no such label")
        if place == "accuse":
            verdict = Verdict.of_fault("node2", "0", "wrong results")
            Control(session.client, session.endpoint, session.environment.launch).ask("verdicts", [verdict.to_fields()])
            return
        os.kill(os.getpid(), signal.SIGKILL)

laggard.torch.init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(7)
layers = [nn.Linear(16, 64), nn.Dropout(0.1), nn.BatchNorm1d(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1)]
model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.01)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)
torch.manual_seed(100 + rank)
run = laggard.torch.resume(model, optimizer, scheduler, every=5)
data = Numbers()
batches = run.batches(DataLoader(data, 4, sampler=DistributedSampler(data)))
for attempt in (each for n in (n_steps // 3, n_steps) for each in run.steps(n)):  # two loops, one after the other
    with attempt as step:
        inputs, targets = next(batches)
        fail(step, "forward")
        loss = F.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        fail(step, "raise")
        fail(step, "accuse")
        loss.backward()
        fail(step, "backward")
        optimizer.step()
        scheduler.step()
        if step % 3 == 0 and isinstance(model, DistributedDataParallel):
            with torch.no_grad():
                model(inputs)
        fail(step, "stepped")
        seen = [loss.item(), *(each.sum().item() for each in model.buffers())]
        with open(f"losses-{rank}", "a") as file:  # before the save, which may count though the rank is killed in it
            file.write(json.dumps([step, " ".join(float(each).hex() for each in seen), os.getpid()]) + "\\n")
        run.save(step, loss=loss)
        time.sleep(0 if os.path.exists("enough") else paces_s[os.environ["LAGGARD_LAUNCH"] != "0"])
torch.distributed.destroy_process_group()
"""
DDP = "model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.01)"
# Two groups of two ranks hold it alike, each splits it.
HSDP = """from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
model = nn.Sequential(*[each for each in layers if type(each) != nn.BatchNorm1d])
for part in (*list(model)[::2], model):
    fully_shard(part, mesh=mesh)"""
# Where in a step a rank kills itself, or what is done to it from outside.
PLACES = ("forward", "backward", "stepped")
KINDS = (*PLACES, "rank 0", "two at once", "during recovery", "stopped")
STEPS_PER_STRIKE = 60
PACE_S = 0.2
NO_LIMITS = ("--max-restarts-per-hour=100000", "--backoff=0.1")


def start(
    start_job: Start,
    folder: Path,
    n_steps: int,
    pace_s: float,
    faults: object,
    *options: str,
    nodes: str = WITHOUT_RESERVE,
    later_pace_s: float | None = None,
    program: str = TRAIN,
) -> RunningJob:
    folder.mkdir()
    (folder / "train.py").write_text(program)
    paces_s = json.dumps([pace_s, pace_s if later_pace_s is None else later_pace_s])
    arguments = (nodes, *OPTIONS, *options, "train.py", str(n_steps), paces_s, json.dumps(faults))
    return start_job(*arguments, directory=folder)


def rows(folder: Path, rank: int) -> list[tuple[int, str, int]]:
    """Return each step that a rank has ended, with its loss and buffers, and its process."""
    file = folder / f"losses-{rank}"
    return [tuple(json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def assert_same_losses(folder: Path, undisturbed: Path, n_steps: int) -> int:
    """Assert that no step is lost and all losses are equal; return how often a step was run again."""
    again = 0
    for rank in range(RANKS):
        expected = {step: loss for step, loss, _ in rows(undisturbed, rank)}
        found = rows(folder, rank)
        assert {step for step, _, _ in found} == {*range(n_steps)}
        assert [(step, loss) for step, loss, _ in found if expected[step] != loss] == []
        again += len(found) - n_steps
    return again


@dataclass(frozen=True)
class Outcome:
    """What was done to a job, and what it did about it."""

    struck: tuple[str, ...]
    replaced: int  # how often ranks were replaced in place
    relaunched: int  # how often all were started anew
    again: int  # steps that were run again, over all ranks


def chaos(folder: Path, seed: int, n_strikes: int, pace_s: float | None = None) -> Outcome:
    """Strike ranks of a training, and compare all its losses with those of an undisturbed one.

    Parameters
    ----------
    folder
        For the files of both.
    seed
        For what is done, to which ranks and when.
    n_strikes
        How often.
    pace_s
        Seconds from one strike to the next; by default all ranks have ended new steps for 4 seconds or more.

    Raises
    ------
    AssertionError
        If a step is lost, a loss differs, or a process or shared memory is left.
    """
    undisturbed, disturbed = folder / "undisturbed", folder / "disturbed"
    n_steps, chance = STEPS_PER_STRIKE * n_strikes, random.Random(seed)
    kinds = KINDS if pace_s is None else ("any process",)
    struck = tuple((*kinds, *chance.choices(kinds, k=n_strikes))[:n_strikes])

    def started(*arguments: str, directory: Path) -> RunningJob:
        return RunningJob(directory, str(directory), *arguments)

    job = start(started, undisturbed, n_steps, 0.0, [])
    try:
        assert job.finish(DEADLINE_S) == 0, job.everything()
    finally:
        job.end()
    hangs = ("--hang-timeout=40",) if "stopped" in struck else ()
    job = start(started, disturbed, n_steps, PACE_S, [], *NO_LIMITS, *hangs)
    try:
        _wait_for_new_steps(job, disturbed)
        for kind in struck:
            time.sleep(pace_s or chance.uniform(4.0, 5.0))  # the pace of the strikes is what is tested
            strike(job, disturbed, kind, chance)
            if pace_s is None:
                _wait_for_new_steps(job, disturbed)
        (disturbed / "enough").touch()
        assert job.finish(DEADLINE_S) == 0, job.everything()
        assert command_lines(job.processes()) == []
    finally:
        job.end()
    again = assert_same_losses(disturbed, undisturbed, n_steps)
    pids = {str(pid) for rank in range(RANKS) for _, _, pid in rows(disturbed, rank)}
    in_memory = Path("/dev/shm").iterdir()  # noqa: S108 - we only look
    assert [file.name for file in in_memory if pids & {*file.name.split("_")}] == []
    relaunched = job.account.count(" relaunch  ")
    return Outcome(struck, job.account.count("the other ranks keep their processes; all go on"), relaunched, again)


def strike(job: RunningJob, folder: Path, kind: str, chance: random.Random) -> None:
    """Do something to a rank or two, which others wait for then."""
    first, second = chance.sample(range(RANKS), 2)
    match kind:
        case "rank 0":
            (folder / f"strike-0-{chance.choice(PLACES)}").touch()
        case "any process":  # of a rank, wherever it is in its start, a recovery or a step
            while not (found := [*filter(_has_rank, job.processes())]):
                assert job.process.poll() is None, job.everything()
            with contextlib.suppress(psutil.NoSuchProcess):
                chance.choice(found).kill()
        case "two at once":
            for rank in (first, second):
                (folder / f"strike-{rank}-backward").touch()
        case "during recovery":
            _signal(folder, (first,), signal.SIGKILL)
            time.sleep(chance.uniform(0.0, 0.5))  # the moment of the fault
            _signal(folder, (second,), signal.SIGKILL)
        case "stopped":
            pids = _signal(folder, (first,), signal.SIGSTOP)
            wait_until(lambda: rows(folder, first)[-1][2] not in pids, deadline_s=DEADLINE_S)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        case place:
            (folder / f"strike-{first}-{place}").touch()


def _has_rank(process: psutil.Process) -> bool:
    with contextlib.suppress(*HIDDEN):
        return "RANK" in process.environ()
    return False


def _signal(folder: Path, ranks: Iterable[int], signum: int) -> list[int]:
    """Send a signal to the processes that have ended the newest steps of these ranks; return their process ids."""
    pids = [rows(folder, rank)[-1][2] for rank in ranks]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)
    return pids


def _wait_for_new_steps(job: RunningJob, folder: Path) -> None:
    """Wait until each rank has ended a step that none had ended before."""

    def newest(rank: int) -> int:
        file = folder / f"losses-{rank}"
        lines = file.read_text().splitlines() if file.exists() else []  # it is empty before its first line is written
        return int(json.loads(lines[-1])[0]) if lines else -1

    before = max(map(newest, range(RANKS)))

    def is_back() -> bool:
        assert job.process.poll() is None, job.everything()
        return not [*folder.glob("strike-*")] and all(newest(rank) > before for rank in range(RANKS))

    wait_until(is_back, job.everything, DEADLINE_S)


def main() -> None:
    """Strike as often as the first argument says; then a seed, and the seconds from one strike to the next."""
    pace_s = float(sys.argv[3]) if len(sys.argv) > 3 else None
    with tempfile.TemporaryDirectory(prefix="lt-", dir="/tmp") as name:
        outcome = chaos(Path(name), int(sys.argv[2]) if len(sys.argv) > 2 else 1, int(sys.argv[1]), pace_s)
    print(f"{len(outcome.struck)} strikes, ranks replaced {outcome.replaced} times, {outcome.relaunched} relaunches;")
    print(f"all losses equal, {outcome.again} steps run again")


if __name__ == "__main__":
    main()

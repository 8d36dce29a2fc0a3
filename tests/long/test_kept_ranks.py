"""Training with PyTorch whose ranks keep their processes when one is lost: its losses are those without faults."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.integration.jobs import RunningJob
from tests.processes import command_line, command_lines
from tests.waiting import wait_until

torch = pytest.importorskip("torch", reason="needs the extra `torch`")
pytestmark = [
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        not hasattr(torch.distributed.ProcessGroupGloo._Options, "enable_reconfigure"), reason="needs PyTorch 2.14"
    ),
]

Start = Callable[..., RunningJob]

DEADLINE_S = 900.0
RANKS = 4
OPTIONS = (f"--nodes={RANKS // 2}", "--virtual-gpus=2", "--resilient", "--per-device")
WITHOUT_RESERVE, ONE_IN_RESERVE = f"--local-nodes={RANKS // 2}", f"--local-nodes={RANKS // 2 + 1}"
# Dropout, several buckets, a scheduler, batches with random numbers of their own, and files that say what happened.
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
rank = int(os.environ["RANK"])
torch.set_num_threads(1)

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, index):
        inputs = torch.randn(16, generator=torch.Generator().manual_seed(index))
        return inputs + torch.rand(16) / 10, inputs.sum().reshape(1)

def fail(step, place):
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
        fail(step, "stepped")
        run.save(step, loss=loss)
        with open(f"losses-{rank}", "a") as file:
            file.write(json.dumps([step, loss.item().hex(), os.getpid()]) + "\\n")
        time.sleep(paces_s[os.environ["LAGGARD_LAUNCH"] != "0"])
torch.distributed.destroy_process_group()
"""


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
    """Return each step that a rank has ended, with its loss and its process."""
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


def test_wherever_in_a_step_a_rank_is_lost_the_others_keep_their_processes(start_job: Start, tmp_path: Path) -> None:
    faults = [[0, 30, "forward"], [2, 40, "backward"], [3, 50, "stepped"], [1, 60, "raise"], [0, 70, "stepped"]]
    two_at_once = [[1, 80, "backward"], [3, 80, "backward"]]
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    assert start(start_job, undisturbed, 90, 0.0, []).finish(DEADLINE_S) == 0
    job = start(start_job, disturbed, 90, 0.1, faults + two_at_once, "--max-restarts=0")
    assert job.finish(DEADLINE_S) == 0, job.everything()
    assert job.account.count("the other ranks keep their processes; all go on from step") >= 6, job.everything()
    again = assert_same_losses(disturbed, undisturbed, 90)
    assert again <= 7 * (RANKS - 1)
    for rank, n_lost in enumerate([2, 2, 1, 2]):
        assert len({pid for _, _, pid in rows(disturbed, rank)}) <= 1 + n_lost
    assert command_lines(job.processes()) == []


def test_20_random_kills_lose_no_step_and_change_no_loss(start_job: Start, tmp_path: Path) -> None:
    chance = random.Random(4)
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    n_steps = 600
    assert start(start_job, undisturbed, n_steps, 0.0, []).finish(DEADLINE_S) == 0
    job = start(start_job, disturbed, n_steps, 0.15, [])
    wait_until(lambda: all(rows(disturbed, rank) for rank in range(RANKS)), deadline_s=DEADLINE_S)
    for _ in range(20):
        time.sleep(4.0 + chance.random())  # the pace of the kills is what is tested
        pid = rows(disturbed, chance.randrange(RANKS))[-1][2]
        if job.process.poll() is None and Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGKILL)
    assert job.finish(DEADLINE_S) == 0, job.everything()
    assert_same_losses(disturbed, undisturbed, n_steps)
    assert len(re.findall(r"the other ranks keep their processes; all go on from step", job.account)) >= 10
    assert command_lines(job.processes()) == []


def test_a_rank_that_is_stopped_is_replaced_and_cannot_come_back(start_job: Start, tmp_path: Path) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    assert start(start_job, undisturbed, 60, 0.0, []).finish(DEADLINE_S) == 0
    job = start(start_job, disturbed, 60, 0.2, [], "--hang-timeout=12", "--max-restarts=0")
    wait_until(lambda: len(rows(disturbed, 2)) > 12, deadline_s=DEADLINE_S)
    pid = rows(disturbed, 2)[-1][2]
    os.kill(pid, signal.SIGSTOP)
    assert job.finish(DEADLINE_S) == 0, job.everything()
    assert re.search(r"notice +the program hangs: .*; it is killed, and replaced", job.account), job.everything()
    assert not Path(f"/proc/{pid}").exists()
    assert_same_losses(disturbed, undisturbed, 60)


def test_a_training_that_cannot_keep_its_ranks_is_relaunched_and_it_is_said_why(
    start_job: Start, tmp_path: Path
) -> None:
    program = TRAIN.replace("every=5)", "every=5, also={'ema': nn.Linear(2, 2)})")
    job = start(start_job, tmp_path / "job", 40, 0.05, [[1, 20, "forward"]], program=program)
    assert job.finish(DEADLINE_S) == 0, job.everything()
    assert "ranks cannot keep their processes: it has values in also=" in job.account
    assert re.search(r"relaunch  rank 1 on node1 was killed by SIGKILL", job.account)


def test_ranks_of_an_accused_node_go_on_elsewhere_at_the_end_of_a_step(start_job: Start, tmp_path: Path) -> None:
    n_steps, undisturbed, disturbed = 250, tmp_path / "undisturbed", tmp_path / "disturbed"
    assert start(start_job, undisturbed, n_steps, 0.0, []).finish(DEADLINE_S) == 0
    job = start(start_job, disturbed, n_steps, 0.5, [[0, 20, "accuse"]], nodes=ONE_IN_RESERVE, later_pace_s=0.0)
    assert job.finish(DEADLINE_S) == 0, job.everything()
    moved = re.search(
        r"moved  +without node2; node3 comes in from the reserve; its ranks go on there from step (\d+), and the "
        "others keep their processes",
        job.account,
    )
    assert moved, job.everything()
    assert "relaunch" not in job.account
    assert assert_same_losses(disturbed, undisturbed, n_steps) == 0, "a step was run twice"
    pids = [list(dict.fromkeys(pid for _, _, pid in rows(disturbed, rank))) for rank in range(RANKS)]
    assert [len(of_rank) for of_rank in pids] == [1, 1, 2, 2]
    for rank in (2, 3):
        steps = [step for step, _, pid in rows(disturbed, rank) if pid == pids[rank][1]]
        assert steps == [*range(int(moved[1]), n_steps)]
    assert command_lines(job.processes()) == []


def test_ranks_of_a_lost_node_go_on_elsewhere_with_what_a_partner_kept(start_job: Start, tmp_path: Path) -> None:
    n_steps, undisturbed, disturbed = 250, tmp_path / "undisturbed", tmp_path / "disturbed"
    assert start(start_job, undisturbed, n_steps, 0.0, []).finish(DEADLINE_S) == 0
    job = start(start_job, disturbed, n_steps, 0.5, [], nodes=ONE_IN_RESERVE, later_pace_s=0.0)
    job.wait_for("node3 keeps a process ready")
    wait_until(lambda: len(rows(disturbed, 2)) > 12, deadline_s=DEADLINE_S)
    above = psutil.Process(rows(disturbed, 2)[-1][2]).parents()
    next(each for each in above if "laggard.resilience.agent.agent" in command_line(each)).kill()
    assert job.finish(DEADLINE_S) == 0, job.everything()
    moved = "moved +node2 is lost .*; node3 comes in from the reserve; its ranks go on there from step"
    assert re.search(moved, job.account), job.everything()
    assert "relaunch" not in job.account
    assert assert_same_losses(disturbed, undisturbed, n_steps) <= RANKS
    assert [len({pid for _, _, pid in rows(disturbed, rank)}) for rank in range(RANKS)] == [1, 1, 2, 2]
    assert command_lines(job.processes()) == []

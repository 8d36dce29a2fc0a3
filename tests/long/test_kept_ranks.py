"""Training with PyTorch whose ranks keep their processes when one is lost: its losses are those without faults."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import psutil
import pytest

from tests.integration.jobs import RunningJob
from tests.long.kept_chaos import (
    DDP,
    DEADLINE_S,
    HSDP,
    ONE_IN_RESERVE,
    RANKS,
    TRAIN,
    Start,
    assert_same_losses,
    chaos,
    rows,
    start,
)
from tests.processes import command_line, command_lines
from tests.waiting import wait_until

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

from tests.nccl_stand_in import on_stand_in  # noqa: E402 - it needs PyTorch

pytestmark = [
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        not hasattr(torch.distributed.ProcessGroupGloo._Options, "enable_reconfigure"), reason="needs PyTorch 2.14"
    ),
]


# So has one before 2.14; with such a one there is nothing to delete.
OLDER = """import torch.distributed
options = torch.distributed.ProcessGroupGloo._Options
for kind in options.__mro__:
    if "enable_reconfigure" in vars(kind):
        del kind.enable_reconfigure
assert not hasattr(options, "enable_reconfigure")
"""


def test_with_an_older_pytorch_all_ranks_are_relaunched(start_job: Start, tmp_path: Path) -> None:
    undisturbed, disturbed, program = tmp_path / "undisturbed", tmp_path / "disturbed", OLDER + TRAIN
    assert start(start_job, undisturbed, 30, 0.0, [], program=program).finish(DEADLINE_S) == 0
    job = start(start_job, disturbed, 30, 0.1, [[1, 14, "backward"]], program=program)
    assert job.finish(DEADLINE_S) == 0, job.everything()
    assert "relaunch  rank 1 on node1 was killed by SIGKILL" in job.account, job.everything()
    assert_same_losses(disturbed, undisturbed, 30)
    pids = [{pid for _, _, pid in rows(disturbed, rank)} for rank in range(RANKS)]
    assert all(len(of_rank) > 1 for of_rank in pids)
    assert command_lines(job.processes()) == []


@pytest.mark.parametrize(
    ("faults", "breaks", "kept"),
    [
        # In its last step a rank that was released has nothing left to do that would tell that its sums are wrong.
        pytest.param([[1, 14, "backward"], [3, 28, "raise"]], False, [0, 2], id="lost"),
        pytest.param([[1, 14, "backward"]], True, [0, 3], id="lost, and the device of another one fails"),
    ],
)
def test_ranks_that_wait_on_their_devices_for_a_lost_one_are_released_and_go_on(
    faults: list[object], breaks: bool, kept: list[int], start_job: Start, tmp_path: Path
) -> None:
    # The last save would be refused.
    n_steps, program = 29, on_stand_in(TRAIN.replace(" run.save(", " step == n_steps - 1 or run.save("))
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    job = start(start_job, undisturbed, n_steps, 0.0, [], program=program)
    assert job.finish(DEADLINE_S) == 0, job.everything()
    job = start(start_job, disturbed, n_steps, 0.1, faults, program=program)
    if breaks:
        (disturbed / "breaks").touch()
    assert job.finish(DEADLINE_S) == 0, job.everything()
    assert "replaced  rank 1 on node1 was killed by SIGKILL" in job.account, job.everything()
    assert "relaunch" not in job.account, job.everything()
    assert not (disturbed / "breaks").exists()
    assert_same_losses(disturbed, undisturbed, n_steps)
    pids = [{pid for _, _, pid in rows(disturbed, rank)} for rank in range(RANKS)]
    assert [rank for rank, of_rank in enumerate(pids) if len(of_rank) == 1] == kept
    assert command_lines(job.processes()) == []


@pytest.mark.parametrize("model", [DDP, HSDP], ids=["DDP", "HSDP"])
def test_wherever_in_a_step_a_rank_is_lost_the_others_keep_their_processes(
    model: str, start_job: Start, tmp_path: Path
) -> None:
    program = TRAIN.replace(DDP, model)
    faults = [[0, 30, "forward"], [2, 40, "backward"], [3, 50, "stepped"], [1, 60, "raise"], [0, 70, "stepped"]]
    two_at_once = [[1, 80, "backward"], [2, 80, "backward"]]  # with HSDP, other ranks have their parts
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    assert start(start_job, undisturbed, 90, 0.0, [], program=program).finish(DEADLINE_S) == 0
    job = start(start_job, disturbed, 90, 0.1, faults + two_at_once, "--max-restarts=0", program=program)
    assert job.finish(DEADLINE_S) == 0, job.everything()
    assert job.account.count("the other ranks keep their processes; all go on from step") >= 6, job.everything()
    again = assert_same_losses(disturbed, undisturbed, 90)
    assert again <= 7 * (RANKS - 1)
    for rank, n_lost in enumerate([2, 2, 2, 1]):
        assert len({pid for _, _, pid in rows(disturbed, rank)}) <= 1 + n_lost
    assert command_lines(job.processes()) == []


ACCUMULATING = """model.require_backward_grad_sync = step % 2 == 1
        loss = F.mse_loss(model(inputs), targets)
        if step % 2 == 0:
            optimizer.zero_grad()
        fail(step, "raise")
        loss.backward()
        fail(step, "backward")
        if step % 2 == 1:
            optimizer.step()
        scheduler.step()
"""


def test_ranks_that_accumulate_gradients_go_back_to_where_they_had_none(start_job: Start, tmp_path: Path) -> None:
    before, rest = TRAIN.split("loss = F.mse_loss(model(inputs), targets)\n", 1)
    program = before + ACCUMULATING + rest.split("scheduler.step()\n", 1)[1]
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    assert start(start_job, undisturbed, 30, 0.0, [], program=program).finish(DEADLINE_S) == 0
    job = start(start_job, disturbed, 30, 0.1, [[0, 14, "backward"], [1, 21, "forward"]], program=program)
    assert job.finish(DEADLINE_S) == 0, job.everything()
    assert job.account.count("the other ranks keep their processes; all go on from step") == 2, job.everything()
    assert_same_losses(disturbed, undisturbed, 30)


# ``python -m tests.long.kept_chaos 200`` strikes two hundred times.
def test_wherever_ranks_are_struck_no_step_is_lost_and_no_loss_differs(tmp_path: Path) -> None:
    outcome = chaos(tmp_path, seed=4, n_strikes=8)
    print(outcome)
    assert outcome.replaced + outcome.relaunched > 0


def test_if_ranks_are_struck_again_before_all_are_back_a_relaunch_loses_nothing_either(tmp_path: Path) -> None:
    print(chaos(tmp_path, seed=5, n_strikes=8, pace_s=1.5))


def test_a_rank_that_is_stopped_is_replaced_and_cannot_come_back(start_job: Start, tmp_path: Path) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    assert start(start_job, undisturbed, 60, 0.0, []).finish(DEADLINE_S) == 0
    job = start(start_job, disturbed, 60, 0.2, [], "--hang-timeout=40", "--max-restarts=0")
    wait_until(lambda: len(rows(disturbed, 2)) > 12, deadline_s=DEADLINE_S)
    pid = rows(disturbed, 2)[-1][2]
    os.kill(pid, signal.SIGSTOP)
    assert job.finish(DEADLINE_S) == 0, job.everything()
    assert re.search(r"notice +the program hangs: .*; it is killed, and replaced", job.account), job.everything()
    assert not Path(f"/proc/{pid}").exists()
    assert_same_losses(disturbed, undisturbed, 60)


SPLIT = """from torch.distributed.fsdp import fully_shard
model = fully_shard(nn.Sequential(*[each for each in layers if type(each) != nn.BatchNorm1d]))"""


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("every=5)", "every=5, also={'ema': nn.Linear(2, 2)})", "it has values in also="),
        (DDP, SPLIT, "its model is split, and what a lost rank has of it is in checkpoints alone"),
    ],
)
def test_a_training_that_cannot_keep_its_ranks_is_relaunched_and_it_is_said_why(
    start_job: Start, tmp_path: Path, old: str, new: str, why: str
) -> None:
    assert old in TRAIN
    program = TRAIN.replace(old, new)
    job = start(start_job, tmp_path / "job", 40, 0.05, [[1, 20, "forward"]], program=program)
    assert job.finish(DEADLINE_S) == 0, job.everything()
    assert f"ranks cannot keep their processes: {why}" in job.account
    assert re.search(r"relaunch  rank 1 on node1 was killed by SIGKILL", job.account)


@pytest.mark.parametrize(
    ("lost", "program"),
    [([], TRAIN), ([[1, 10, "stepped"]], TRAIN), ([], on_stand_in(TRAIN))],
    ids=["first", "after a rank was replaced", "on a stand-in for NCCL"],
)
def test_ranks_of_an_accused_node_go_on_elsewhere_at_the_end_of_a_step(
    lost: list[list[int | str]], program: str, start_job: Start, tmp_path: Path
) -> None:
    n_steps, undisturbed, disturbed = 250, tmp_path / "undisturbed", tmp_path / "disturbed"
    assert start(start_job, undisturbed, n_steps, 0.0, [], program=program).finish(DEADLINE_S) == 0
    faults = [*lost, [0, 20, "accuse"]]
    job = start(start_job, disturbed, n_steps, 0.5, faults, nodes=ONE_IN_RESERVE, later_pace_s=0.0, program=program)
    assert job.finish(DEADLINE_S) == 0, job.everything()
    moved = re.search(
        r"moved  +without node2; node3 comes in from the reserve; its ranks go on there from step (\d+), and the "
        "others keep their processes",
        job.account,
    )
    assert moved, job.everything()
    assert "relaunch" not in job.account
    assert assert_same_losses(disturbed, undisturbed, n_steps) <= RANKS * len(lost), "a step was run twice"
    pids = [list(dict.fromkeys(pid for _, _, pid in rows(disturbed, rank))) for rank in range(RANKS)]
    assert [len(of_rank) for of_rank in pids] == [1, 1 + len(lost), 2, 2]
    for rank in (2, 3):
        steps = [step for step, _, pid in rows(disturbed, rank) if pid == pids[rank][1]]
        assert steps == [*range(int(moved[1]), n_steps)]
    assert command_lines(job.processes()) == []


def test_ranks_of_a_lost_node_go_on_elsewhere_with_what_a_partner_kept(start_job: Start, tmp_path: Path) -> None:
    n_steps, undisturbed, disturbed = 250, tmp_path / "undisturbed", tmp_path / "disturbed"
    assert start(start_job, undisturbed, n_steps, 0.0, []).finish(DEADLINE_S) == 0
    job = start(start_job, disturbed, n_steps, 0.5, [], nodes=ONE_IN_RESERVE, later_pace_s=0.0)
    wait_until_on_the_way(job, disturbed)
    above = psutil.Process(rows(disturbed, 2)[-1][2]).parents()
    next(each for each in above if "laggard.resilience.agent.agent" in command_line(each)).kill()
    assert job.finish(DEADLINE_S) == 0, job.everything()
    moved = "moved +node2 is lost .*; node3 comes in from the reserve; its ranks go on there from step"
    assert re.search(moved, job.account), job.everything()
    assert "relaunch" not in job.account
    assert assert_same_losses(disturbed, undisturbed, n_steps) <= RANKS
    assert [len({pid for _, _, pid in rows(disturbed, rank)}) for rank in range(RANKS)] == [1, 1, 2, 2]
    assert command_lines(job.processes()) == []


def test_processes_that_stand_by_take_the_places_of_ranks_of_a_node_that_has_lost_one(
    start_job: Start, tmp_path: Path
) -> None:
    n_steps, undisturbed, disturbed = 250, tmp_path / "undisturbed", tmp_path / "disturbed"
    assert start(start_job, undisturbed, n_steps, 0.0, []).finish(DEADLINE_S) == 0
    job = start(start_job, disturbed, n_steps, 0.5, [], nodes=ONE_IN_RESERVE, later_pace_s=0.0)
    wait_until_on_the_way(job, disturbed)
    standing_by = {process.pid for process in job.processes() if "LAGGARD_STANDS_BY" in process.environ()}
    os.kill(rows(disturbed, 3)[-1][2], signal.SIGKILL)
    assert job.finish(DEADLINE_S) == 0, job.everything()
    replaced = "replaced +rank 3 on node2 .*; node2 waits in the reserve; node3 comes in from the reserve; replaced"
    assert re.search(replaced, job.account), job.everything()
    assert "relaunch" not in job.account
    assert assert_same_losses(disturbed, undisturbed, n_steps) <= RANKS
    assert [len({pid for _, _, pid in rows(disturbed, rank)}) for rank in range(RANKS)] == [1, 1, 2, 2]
    assert {rows(disturbed, rank)[-1][2] for rank in (2, 3)} == standing_by
    assert command_lines(job.processes()) == []


def wait_until_on_the_way(job: RunningJob, folder: Path) -> None:
    """Wait until all ranks have ended some steps, and others stand by."""
    wait_until(lambda: "processes stand by on node3" in job.account, deadline_s=DEADLINE_S)
    wait_until(lambda: len(rows(folder, 2)) > 12, deadline_s=DEADLINE_S)

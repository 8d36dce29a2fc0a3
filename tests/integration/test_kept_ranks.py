"""A rank of a training with PyTorch is killed: the others keep their processes; before 2.14 all are relaunched.

`tests/long/test_kept_ranks.py` has what else may happen to them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.jobs import RunningJob
from tests.long.kept_chaos import DEADLINE_S, RANKS, TRAIN, assert_same_losses, rows, start
from tests.processes import command_lines

torch = pytest.importorskip("torch", reason="needs the extra `torch`")
pytestmark = pytest.mark.timeout(1500)

N_STEPS = 30
KILLED = [[1, 14, "backward"]]
KEEPS = hasattr(torch.distributed.ProcessGroupGloo._Options, "enable_reconfigure")
# So has one before 2.14; with such a one there is nothing to delete.
OLDER = """import torch.distributed
options = torch.distributed.ProcessGroupGloo._Options
for kind in options.__mro__:
    if "enable_reconfigure" in vars(kind):
        del kind.enable_reconfigure
assert not hasattr(options, "enable_reconfigure")
"""
REPLACED = "replaced  rank 1 on node1 was killed by SIGKILL"
RELAUNCHED = "relaunch  rank 1 on node1 was killed by SIGKILL"


@pytest.mark.parametrize(
    ("first_lines", "said", "n_kept"),
    [
        pytest.param("", REPLACED, RANKS - 1, marks=pytest.mark.skipif(not KEEPS, reason="needs PyTorch 2.14")),
        pytest.param(OLDER, RELAUNCHED, 0),
    ],
    ids=["kept", "an older PyTorch"],
)
def test_a_training_whose_rank_is_killed_has_the_losses_of_one_that_is_not(
    first_lines: str, said: str, n_kept: int, start_job: Callable[..., RunningJob], tmp_path: Path
) -> None:
    undisturbed, disturbed, program = tmp_path / "undisturbed", tmp_path / "disturbed", first_lines + TRAIN
    job = start(start_job, undisturbed, N_STEPS, 0.0, [], program=program)
    assert job.finish(DEADLINE_S) == 0, job.everything()
    job = start(start_job, disturbed, N_STEPS, 0.1, KILLED, program=program)
    assert job.finish(DEADLINE_S) == 0, job.everything()
    assert said in job.account, job.everything()
    assert_same_losses(disturbed, undisturbed, N_STEPS)
    pids = [{pid for _, _, pid in rows(disturbed, rank)} for rank in range(RANKS)]
    assert [len(of_rank) for of_rank in pids].count(1) == n_kept
    assert command_lines(job.processes()) == []

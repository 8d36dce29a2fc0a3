"""A rank of a training with PyTorch is killed: the others keep their processes; before 2.14 all are relaunched.

`tests/long/test_kept_ranks.py` has what else may happen to them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.jobs import RunningJob
from tests.long.kept_chaos import DEADLINE_S, RANKS, assert_same_losses, rows, start
from tests.processes import command_lines

torch = pytest.importorskip("torch", reason="needs the extra `torch`")
pytestmark = pytest.mark.timeout(1500)

N_STEPS = 30
KILLED = [[1, 14, "backward"]]
KEEPS = hasattr(torch.distributed.ProcessGroupGloo._Options, "enable_reconfigure")
REPLACED = "replaced  rank 1 on node1 was killed by SIGKILL"


@pytest.mark.skipif(not KEEPS, reason="needs PyTorch 2.14")
def test_a_training_whose_rank_is_killed_has_the_losses_of_one_that_is_not(
    start_job: Callable[..., RunningJob], tmp_path: Path
) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    job = start(start_job, undisturbed, N_STEPS, 0.0, [])
    assert job.finish(DEADLINE_S) == 0, job.everything()
    job = start(start_job, disturbed, N_STEPS, 0.1, KILLED)
    assert job.finish(DEADLINE_S) == 0, job.everything()
    assert REPLACED in job.account, job.everything()
    assert_same_losses(disturbed, undisturbed, N_STEPS)
    pids = [{pid for _, _, pid in rows(disturbed, rank)} for rank in range(RANKS)]
    assert [len(of_rank) for of_rank in pids].count(1) == RANKS - 1
    assert command_lines(job.processes()) == []

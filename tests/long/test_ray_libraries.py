"""Programs of Ray Train, Tune and Data, whose nodes are lost or slow: no step is lost, and none is done twice."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.jobs import MAIN_JOB_DEADLINE_S, RunningJob
from tests.printed import RAY_TRAIN_JOB

pytest.importorskip(
    "ray.train",
    reason="Ray's libraries need packages of their own: pip install 'ray[data,train,tune]'",
    exc_type=ImportError,
)

Start = Callable[..., RunningJob]

EXAMPLES = Path(__file__).parents[2] / "examples"
ONE_IN_RESERVE = ("--local-nodes=3", "--nodes=2", "--virtual-gpus=1", "--resilient")
DEADLINE_S = 2 * MAIN_JOB_DEADLINE_S
NONE_LOST = {
    "train": "200 steps in all, 2 x 100: none lost, none twice",
    "tune": "400 steps in all, 4 x 100: none lost, none twice",
    "data": "the sum of squares is 2664667000, right",
}


@pytest.mark.timeout(2 * DEADLINE_S)
@pytest.mark.parametrize("trouble", ["lost-node", "slow-device", "preemption"])
def test_ray_train_restarts_its_workers_in_the_same_launch(start_job: Start, tmp_path: Path, trouble: str) -> None:
    (tmp_path / "examples").symlink_to(EXAMPLES)
    _, *words, _ = RAY_TRAIN_JOB.split()
    job = start_job(*words, f"--trouble={trouble}", directory=tmp_path)
    assert job.finish(DEADLINE_S) == 0, job.everything()
    assert NONE_LOST["train"] in job.output
    if trouble != "preemption":  # which Ray sees by itself
        assert "the program restarts its workers by itself" in job.account
    if trouble == "slow-device":
        assert re.search(r"verdict +node[23] gpu 0", job.account), job.everything()
    assert re.search(r"^1 launch,", job.account, re.MULTILINE)


@pytest.mark.timeout(2 * DEADLINE_S)
@pytest.mark.parametrize("trouble", ["lost-node", "slow-device"])
@pytest.mark.parametrize("library", ["tune", "data"])
def test_ray_tune_and_ray_data_go_on_in_the_next_launch(start_job: Start, library: str, trouble: str) -> None:
    job = start_job(*ONE_IN_RESERVE, str(EXAMPLES / "ray_libraries" / f"{library}.py"), f"--trouble={trouble}")
    assert job.finish(DEADLINE_S) == 0, job.everything()
    assert NONE_LOST[library] in job.output
    assert re.search(r"relaunch +.*without node2; node3 comes in from the reserve", job.account), job.everything()
    assert re.search(r"^\d+ launches,", job.account, re.MULTILINE)

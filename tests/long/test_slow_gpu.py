"""The main job: two slow nodes are found and left behind, and nothing is lost."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.integration.jobs import MAIN_JOB_DEADLINE_S, NOISE, RunningJob, metrics_of
from tests.printed import MAIN_JOB
from tests.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def start_main_job(start_job: Callable[..., RunningJob], tmp_path: Path) -> Callable[..., RunningJob]:
    """Start what the README prints, word for word, with the test's additional options for the program."""
    (tmp_path / "examples").symlink_to(EXAMPLES)
    _, *arguments = shlex.split(MAIN_JOB)
    return partial(start_job, *arguments, directory=tmp_path)


def test_three_launches_and_two_exclusions_lose_nothing(start_main_job: Callable[..., RunningJob]) -> None:
    job = start_main_job()
    port = int(job.wait_for(r"http://127\.0\.0\.1:(\d+)").group(1))
    wait_until(lambda: "gpu-thrasher-time" in metrics_of(port), job.everything)
    assert job.finish(MAIN_JOB_DEADLINE_S) == 0, job.everything()
    assert "3 launches, 2 nodes excluded (node2, node3)" in job.account, job.everything()
    assert re.search(r"verdict +node2 gpu 0.*by chance", job.account)
    assert re.search(r"verdict +node3 gpu 0.*by chance", job.account)
    assert "launch 0: 4 ranks on 4 devices of 2 nodes" in job.output
    assert "launch 2: 4 ranks on 2 devices of 1 node" in job.output
    assert "iterations per rank: [2500, 2500, 2500, 2500], expected 2500 each" in job.output
    found, expected = re.findall(r"eigenvalues: (\d+), expected (\d+): all there, none twice", job.output)[0]
    assert found == expected
    assert (job.directory / "eigvals.png").stat().st_size > 10_000
    assert not NOISE.search(job.everything()), job.everything()
    assert job.processes() == []

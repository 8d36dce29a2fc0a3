"""No device is slow, and none is accused: the main job without its thrasher."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.integration.jobs import NOISE, RunningJob
from tests.printed import MAIN_JOB

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def start_main_job(start_job: Callable[..., RunningJob], tmp_path: Path) -> Callable[..., RunningJob]:
    """Start what the README prints, word for word, with the test's additional options for the program."""
    (tmp_path / "examples").symlink_to(EXAMPLES)
    _, *arguments = shlex.split(MAIN_JOB)
    return partial(start_job, *arguments, directory=tmp_path)


@pytest.mark.parametrize("seed", [1, 2])
def test_without_a_thrasher_no_device_is_accused(start_main_job: Callable[..., RunningJob], seed: int) -> None:
    job = start_main_job("--no-thrash", f"--seed={seed}")
    assert job.finish() == 0, job.everything()
    assert "1 launch, 0 nodes excluded" in job.account
    assert "verdict" not in job.account
    assert not NOISE.search(job.everything()), job.everything()
    assert job.processes() == []

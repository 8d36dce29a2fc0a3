"""The main job: two slow nodes found and left behind, and nothing lost on the way."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.integration.jobs import MAIN_JOB_DEADLINE_S, RunningJob, metrics_of, wait_until
from tests.printed import MAIN_JOB

EXAMPLES = Path(__file__).parents[2] / "examples"
NOISE = re.compile(r"Traceback|WARNING|INFO|ERROR|raylet|mutex|SIGTERM received|core_worker", re.IGNORECASE)


@pytest.fixture
def start_main_job(start_job: Callable[..., RunningJob], tmp_path: Path) -> Callable[..., RunningJob]:
    """Start what the README prints, word for word, with more options for the program where the test has some."""
    (tmp_path / "examples").symlink_to(EXAMPLES)
    _, *arguments = shlex.split(MAIN_JOB)
    return partial(start_job, *arguments, directory=tmp_path)


def test_three_launches_and_two_exclusions_lose_nothing(start_main_job: Callable[..., RunningJob]) -> None:
    job = start_main_job()
    port = int(job.wait_for(r"http://127\.0\.0\.1:(\d+)").group(1))
    wait_until(lambda: "gpu-thrasher-time" in metrics_of(port), job.everything)
    assert job.finish(MAIN_JOB_DEADLINE_S) == 0, job.everything()
    assert "3 launches, 2 nodes excluded (node2, node3)" in job.account, job.everything()
    assert re.search(r"verdict +node2 gpu 0.*e-value", job.account)
    assert re.search(r"verdict +node3 gpu 0.*e-value", job.account)
    assert "launch 0: 4 ranks on 4 devices of 2 nodes" in job.output
    assert "launch 2: 4 ranks on 2 devices of 1 node" in job.output
    assert "iterations per rank: [2500, 2500, 2500, 2500], expected 2500 each" in job.output
    found, expected = re.findall(r"eigenvalues: (\d+), expected (\d+): all there, none twice", job.output)[0]
    assert found == expected
    assert (job.directory / "eigvals.png").stat().st_size > 10_000
    assert not NOISE.search(job.everything()), job.everything()
    assert job.processes() == []


SILENCED = """
    from detectors import SlowGPUDetector
    import time

    class Loud(SlowGPUDetector):
        def judge(self, readings, now_s):
            print("a round", flush=True)
            return super().judge(readings, now_s)

    with Loud(0.5):
        time.sleep(600)
"""


def test_collectors_that_are_killed_are_missed_within_three_rounds(start_job: Callable[..., RunningJob]) -> None:
    job = start_job("--local-nodes=1", "--virtual-gpus=2", program=SILENCED)
    job.wait_for("a round")
    job.process_of("node1", "NodeCollector").kill()
    job.wait_for("gpu-probe-time: no good reading from node1 gpu [01].* for three rounds")


@pytest.mark.parametrize("seed", [1, 2])
def test_without_a_thrasher_nobody_is_accused(start_main_job: Callable[..., RunningJob], seed: int) -> None:
    job = start_main_job("--no-thrash", f"--seed={seed}")
    assert job.finish() == 0, job.everything()
    assert "1 launch, 0 nodes excluded" in job.account
    assert "verdict" not in job.account
    assert not NOISE.search(job.everything()), job.everything()
    assert job.processes() == []

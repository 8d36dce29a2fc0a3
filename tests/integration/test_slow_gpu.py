"""The README's first job, on a node less: the slow one is left behind, and nothing is lost."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

from tests.integration.jobs import MAIN_JOB_DEADLINE_S, NOISE, RunningJob, metrics_of
from tests.printed import MAIN_JOB
from tests.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_readmes_job_leaves_its_slow_node_behind_and_loses_nothing(
    start_job: Callable[..., RunningJob], tmp_path: Path
) -> None:
    (tmp_path / "examples").symlink_to(EXAMPLES)
    _, *arguments = shlex.split(MAIN_JOB)
    arguments[arguments.index("--local-nodes=3")] = "--local-nodes=2"
    job = start_job(*arguments, "--collection_rate=0.3", "--num_iters=600", directory=tmp_path)
    port = int(job.wait_for(r"http://127\.0\.0\.1:(\d+)").group(1))
    wait_until(lambda: "gpu-thrasher-time" in metrics_of(port), job.everything)
    assert job.finish(MAIN_JOB_DEADLINE_S) == 0, job.everything()
    assert re.search(r"verdict +node2 gpu 0.*by chance", job.account), job.everything()
    assert "without node2; node1 goes on alone" in job.account
    assert "launch 0: 4 ranks on 4 devices of 2 nodes" in job.output
    assert "launch 1: 4 ranks on 2 devices of 1 node" in job.output
    assert "iterations per rank: [600, 600, 600, 600], expected 600 each" in job.output
    found, expected = re.findall(r"eigenvalues: (\d+), expected (\d+): all there, none twice", job.output)[0]
    assert found == expected
    assert (job.directory / "eigvals.png").stat().st_size > 10_000
    assert not NOISE.search(job.everything()), job.everything()
    assert job.processes() == []

"""No device is slow, and none is accused: the main job without its thrasher, and probes that take turns."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from laggard.collectors.probes.virtual import VIRTUAL_PROBES
from tests.integration.jobs import NOISE, RunningJob, metrics_of
from tests.printed import MAIN_JOB, TURNS_JOB
from tests.waiting import wait_until

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


def test_probes_take_turns_as_printed(start_job: Callable[..., RunningJob]) -> None:
    _, *arguments = shlex.split(TURNS_JOB)
    job = start_job(*arguments)
    port = int(job.wait_for(r"telemetry http://127.0.0.1:(\d+)")[1])
    wanted = {f"gpu-probe-time.{probe}" for probe in VIRTUAL_PROBES if probe != "gemm_fp32"} | {"gpu-probe-time"}
    wait_until(lambda: {name for name in metrics_of(port) if "probe" in name} == wanted, job.everything)
    job.process.send_signal(signal.SIGTERM)
    assert job.finish() == 128 + signal.SIGTERM, job.everything()
    assert "verdict" not in job.account

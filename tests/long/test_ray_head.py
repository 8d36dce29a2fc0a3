"""A Ray head that does not come up is tried once more, and then the job ends with what its raylet said."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.jobs import RunningJob

Start = Callable[..., RunningJob]

# Has Ray's first `times` nodes want a port that is taken.
STARTS = """
import os, sys

if "laggard.resilience.ray.node" in sys.orig_argv:
    from laggard.system import ports

    tries = [each for each in os.listdir({folder!r}) if each.isdigit()]
    open(os.path.join({folder!r}, str(len(tries))), "x").close()
    if len(tries) < {times}:
        worker, objects, environments = (ports.free_port("") for _ in range(3))
        ports.free_ports = lambda _: [worker, {taken}, objects, environments]
"""
PROGRAM = "import ray; ray.init(); print('up')"


@pytest.mark.parametrize("times", [1, 2])
def test_a_head_is_tried_twice_and_its_raylets_fatal_line_is_quoted(
    start_job: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    starts, tries = tmp_path / "starts", tmp_path / "tries"
    starts.mkdir()
    tries.mkdir()
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        text = STARTS.format(folder=str(tries), times=times, taken=port)
        (starts / "sitecustomize.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(starts))
        monkeypatch.setenv("LAGGARD_REPORT", "1")
        job = start_job("--virtual-gpus=1", "--report-dir=reports", program=PROGRAM)
        code = job.finish()
    assert len(list(tries.iterdir())) == 2, job.everything()
    if times == 1:
        assert code == 0, job.everything()
        assert "up" in job.output
    else:
        assert code == 1, job.everything()
        assert "node1 is not up: (raylet)" in job.account
        assert f"The specified port is {port}" in job.account
        logs = Path(job.wait_for(r"logs +of this job's processes: (\S+)")[1])
        assert (logs / "node1" / "raylet.err").exists()

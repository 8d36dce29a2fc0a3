"""A terminal that is stopped, and a job that runs on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import DEADLINE_S

STOP, GO_ON = b"\x13", b"\x11"  # Ctrl-S, Ctrl-Q


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_job_ends_though_its_terminal_is_stopped(tmp_path: Path, unbuffered: str) -> None:
    ours, theirs = os.openpty()
    os.write(ours, STOP)
    program = tmp_path / "program.py"
    program.write_text("from pathlib import Path; print('running'); Path('ran').touch()")
    command = [sys.executable, "-m", "laggard", "--no-report", "--per-node", str(program)]
    environment = {**os.environ, "TERM": "xterm", "PYTHONUNBUFFERED": unbuffered}
    try:
        job = subprocess.Popen(command, cwd=tmp_path, stdout=theirs, stderr=theirs, env=environment)
        try:
            assert job.wait(DEADLINE_S) == 0
        finally:
            job.kill()
            job.wait()
        assert (tmp_path / "ran").exists()
        os.write(ours, GO_ON)
    finally:
        os.close(ours)
        os.close(theirs)

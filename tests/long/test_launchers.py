"""Launchers of others: the rank that failed below them is named, with its own error. Real ones, two ranks.

``DS_BUILD_OPS=0 pip install --no-build-isolation deepspeed`` needs no compiler.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.integration.jobs import MAIN_JOB_DEADLINE_S, RunningJob
from tests.printed import ACCELERATE_JOB, DEEPSPEED_JOB

PROGRAM = """
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 1:
    raise KeyError("labels")
dist.all_reduce(torch.ones(2))
"""


@pytest.mark.parametrize(("library", "command"), [("accelerate", ACCELERATE_JOB), ("deepspeed", DEEPSPEED_JOB)])
def test_the_rank_that_failed_below_a_launcher_is_named(
    start_job: Callable[..., RunningJob], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: str, command: str
) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    (tmp_path / "program.py").write_text(PROGRAM)
    _, *arguments = shlex.split(command)
    job = start_job(*arguments, directory=tmp_path)
    assert job.finish(MAIN_JOB_DEADLINE_S) == 1, job.everything()
    job.wait_for(r"end +rank 1 on node2 exited with 1 after .*: KeyError: 'labels' \(program: an error in its code\)")

"""Whose processes on a device are a neighbour's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from laggard.collectors.probing import is_of_this_job
from laggard.kvstore.client.environment import ENDPOINT_FILE

Start = Callable[..., int]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a process with a name and variables of its own; return its ID."""
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, **variables: str) -> int:
        (tmp_path / name).symlink_to(sys.executable)
        code = "import sys; print(flush=True); sys.stdin.read()"
        process = subprocess.Popen(
            [tmp_path / name, "-c", code],
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process.pid

    yield start
    for process in started:
        process.communicate()


def test_a_process_is_this_jobs_if_its_state_server_is_ours(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = start("theirs", **{ENDPOINT_FILE: "/b"}), start("ours", **{ENDPOINT_FILE: "/a"})
    assert not is_of_this_job(ours)  # we are in none
    monkeypatch.setenv(ENDPOINT_FILE, "/a")
    assert [is_of_this_job(pid) for pid in (theirs, ours, os.getpid())] == [False, True, True]


def test_roots_own_server_of_mps_is_no_neighbour_and_another_users_process_is(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, other = start("nvidia-cuda-mps-server"), start("train.py")

    def refuse(process: psutil.Process) -> dict[str, str]:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "environ", refuse)
    assert is_of_this_job(server)
    assert not is_of_this_job(other)


def test_a_process_that_is_not_there_is_nobodys(start: Start) -> None:
    del start
    process = subprocess.Popen(["true"])
    process.wait()
    assert is_of_this_job(process.pid)

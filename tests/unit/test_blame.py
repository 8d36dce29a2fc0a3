"""Whose symptoms explain a verdict."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from laggard.collectors.causes import UNKNOWN, Cause
from laggard.collectors.probing import is_of_this_job
from laggard.detectors.evidence import Slow
from laggard.detectors.verdict import Evidence, Verdict, with_cause
from laggard.kvstore.client.environment import ENDPOINT_FILE

HOT = Cause("cooling", "cooling: the clock was held back by heat for 80% of the round, at 91 °C")
HOTTER = Cause("cooling", "cooling: the clock was held back by heat for 95% of the round, at 93 °C")
LINK = Cause("NVLink", "NVLink: link 1 is down")


def verdict(gpu: str | None) -> Verdict:
    return Verdict("node1", gpu, 1.2, "slow", Evidence("node1", gpu, Slow(1.2, "peers", 3)))


def test_a_device_has_its_own_cause_and_not_its_neighbours() -> None:
    causes = {("node1", "0"): HOT, ("node1", "1"): LINK, ("node2", "0"): LINK}

    assert with_cause(verdict("0"), causes).cause == HOT
    assert with_cause(verdict("1"), causes).cause == LINK
    assert with_cause(verdict("2"), causes).cause == UNKNOWN


def test_a_node_has_the_cause_that_most_of_its_devices_have() -> None:
    causes = {("node1", "0"): UNKNOWN, ("node1", "1"): LINK, ("node1", "2"): HOT, ("node1", "3"): HOTTER}

    assert with_cause(verdict(None), causes).cause == HOT
    assert with_cause(verdict(None), {("node1", "0"): UNKNOWN, ("node2", "0"): HOT}).cause == UNKNOWN


def test_a_process_is_of_the_job_whose_environment_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT_FILE, "/run/a/endpoint.json")
    ours, theirs = (
        subprocess.Popen(
            [sys.executable, "-c", "print(flush=True); input()"],
            env=os.environ | {ENDPOINT_FILE: f"/run/{job}/endpoint.json"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for job in "ab"
    )
    for process in (ours, theirs):
        assert process.stdout is not None
        process.stdout.readline()

    assert is_of_this_job(os.getpid())
    assert is_of_this_job(ours.pid)
    assert not is_of_this_job(theirs.pid)
    for process in (ours, theirs):
        process.communicate(b"\n")
    assert is_of_this_job(theirs.pid)  # it has ended, so it is not a neighbour


def test_the_server_by_which_processes_share_a_device_is_no_neighbour(tmp_path: Path) -> None:
    server = tmp_path / "nvidia-cuda-mps-server"
    server.symlink_to(shutil.which("cat") or "/bin/cat")
    with subprocess.Popen([server], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.write(b"up\n")
        running.stdin.flush()
        assert running.stdout.readline() == b"up\n"
        assert is_of_this_job(running.pid)

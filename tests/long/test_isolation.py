"""A user's modules may have the names that laggard's packages have: nothing of laggard ever imports them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.integration.jobs import THREE_NODES, RunningJob, metrics_of
from tests.integration.test_detect import thrashed
from tests.waiting import DEADLINE_S, wait_until

Start = Callable[..., RunningJob]

PACKAGES = ("collectors", "detectors", "kvstore", "resilience", "telemetry")
RAISES = "raise ImportError('a module of the user has been imported by mistake: ' + __file__)\n"

# Only the program imports its own telemetry.py.
WATCHED = """
    import time
    from laggard import Job, SlowGPUDetector, State, Telemetry

    job, state, telemetry = Job.current(), State.current(), Telemetry()
    state.increment("launches")
    with SlowGPUDetector(0.5, state=state, restart_cost=0):
        while not job.restarted:
            telemetry.add_data("loss", 1.0)
            time.sleep(0.1)
    print("launches:", state["launches"], flush=True)
"""


def write_modules(folder: Path) -> None:
    """Write modules and packages of the names that laggard's packages have; each raises when it is imported."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("kvstore", "telemetry"):
        (folder / f"{name}.py").write_text(RAISES)
    for name in ("collectors", "detectors", "resilience"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(RAISES)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every interpreter find a folder's packages, as if they were installed."""
    found = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(found))


def test_these_modules_would_be_noticed(tmp_path: Path) -> None:
    write_modules(tmp_path)
    for name in PACKAGES:
        done = subprocess.run([sys.executable, "-c", f"import {name}"], cwd=tmp_path, capture_output=True, text=True)
        assert "imported by mistake" in done.stderr


@pytest.mark.parametrize("where", ["beside the program", "installed"])
def test_a_job_reports_as_usual_among_modules_of_the_same_names(
    start_job: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    directory = tmp_path / "project"
    write_modules(directory if where == "beside the program" else tmp_path / "site")
    if where == "installed":
        install(tmp_path / "site", monkeypatch)

    job = start_job(*THREE_NODES, "--resilient", "--telemetry-level=3", program=WATCHED, directory=directory)
    port = int(job.wait_for(r"telemetry http://127.0.0.1:(\d+)")[1])
    with thrashed(job, "node2", probes="NodeCollector"):
        wait_until(lambda: {"loss", "gpu-probe-time", "load_average"} <= metrics_of(port), job.everything)
        job.wait_for("verdict +node2 gpu 0: .* 3 peers")
        assert job.finish() == 0, job.everything()

    assert "without node2; node3 comes in from the reserve" in job.account
    assert "launches: 2" in job.output
    assert "by mistake" not in job.everything(), job.everything()
    assert not re.search(r"notice .* ended with", job.account), job.everything()
    assert job.processes() == []


def test_detect_and_a_copy_on_every_node_work_among_modules_of_the_same_names(start_job: Start, tmp_path: Path) -> None:
    write_modules(tmp_path)
    options = ("--per-node", "--detect=slow-gpu", "--detect-interval=0.5", "--telemetry-level=3")
    job = start_job("--local-nodes=1", "--virtual-gpus=2", *options, "sleep", "600", directory=tmp_path)
    port = int(job.wait_for(r"telemetry http://127.0.0.1:(\d+)")[1])
    wait_until(lambda: {"gpu-probe-time", "load_average"} <= metrics_of(port), job.everything)
    assert "by mistake" not in job.everything(), job.everything()
    assert not re.search(r"notice .* ended with", job.account), job.everything()


@pytest.mark.parametrize("where", ["here", "installed"])
def test_the_doctor_finds_healthy_devices_among_modules_of_the_same_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    write_modules(tmp_path / "modules")
    if where == "installed":
        install(tmp_path / "modules", monkeypatch)
    done = subprocess.run(
        [sys.executable, "-m", "laggard", "doctor", "--virtual-gpus=2", "--json", f"--past={tmp_path / 'past.json'}"],
        cwd=tmp_path / "modules" if where == "here" else tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )

    devices = json.loads(done.stdout)["devices"]
    assert [device["gpu"] for device in devices] == ["0", "1"], done.stderr
    # The machine's other work may make one slow, but not unable to answer.
    assert "faulty" not in {device["condition"] for device in devices}, done.stdout
    assert "by mistake" not in done.stdout + done.stderr


def test_python_m_laggard_is_the_command(tmp_path: Path) -> None:
    write_modules(tmp_path)
    command = [sys.executable, "-m", "laggard", "--version"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert version("laggard") in done.stdout

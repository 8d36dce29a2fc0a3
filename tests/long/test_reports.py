"""The reports of whole jobs: one that fails and is relaunched, one that ends badly, and a large one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from laggard.resilience.report.inputs import read_inputs
from laggard.resilience.report.page import write_report
from tests.integration.jobs import THREE_NODES, RunningJob
from tests.made_up_job import write_record


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))


STEPS = """
    from laggard import Job, State
    import json, subprocess, sys, time
    job, state = Job.current(), State.current()
    for step in range(state.get("step", 0) + 1, 31):
        job.progress(step)
        if step % 10 == 0:
            state["step"] = step
        time.sleep(0.5 if 10 < step <= 15 else 0.1)  # longer than the recorder takes to look twice
        if step == 15 and not job.restarted:
            raise SystemExit(7)
    print(subprocess.run([sys.executable, "-m", "laggard", "status", "--json"], stdout=subprocess.PIPE).stdout.decode())
"""


def test_effective_time_follows_from_steps_and_commits(start_job: Callable[..., RunningJob]) -> None:
    options = ("--local-nodes=1", "--per-node", "--resilient", "--report", "--state-dir=state")
    job = start_job(*options, program=STEPS)
    assert job.finish() == 0, job.everything()
    (status,) = re.findall(r"{.*}", job.output)
    found = json.loads(status)["effective_time"]
    first, second = found["launches"]
    assert found["basis"] == "steps"
    assert 0 < found["ratio"] < 1
    parts = [seconds for name, seconds in found.items() if name.endswith("_s") and name != "total_s"]
    assert sum(parts) == pytest.approx(found["total_s"])
    assert first["effective_s"] > 0
    assert first["lost_s"] > 0
    assert second["effective_s"] + second["unsaved_s"] > 0
    explained = subprocess.run(
        [sys.executable, "-m", "laggard", "explain", "state"], cwd=job.directory, stdout=subprocess.PIPE, check=True
    ).stdout.decode()
    assert re.search(r"launch 0 ended: .* exited with 7 .*; \S+ s lost since the last work that was kept", explained)
    assert "by the steps that it reported" in explained
    page = next(job.directory.glob("state/reports/*/report.html")).read_text()
    assert "by the steps that it reported" in page
    assert "lost work" in page


PROGRAM = """
    from laggard.resilience import Job
    from laggard.telemetry import AnalysisClient
    import json, signal, subprocess, sys
    if Job.current().restarted:
        raise SystemExit(3)
    status = '{"launches": []}'
    while not json.loads(status)["launches"]:
        status = subprocess.run(
            [sys.executable, "-m", "laggard", "status", "--json"], stdout=subprocess.PIPE, check=True
        ).stdout
    print(status.decode(), flush=True)
    client = AnalysisClient()
    client.connect()
    client.reboot(exclude_hostnames="node2")
    signal.pause()
"""


def test_a_job_that_ends_badly_has_a_report_too(start_job: Callable[..., RunningJob], tmp_path: Path) -> None:
    job = start_job(*THREE_NODES, "--resilient", "--on-failure=end", "--report", "--state-dir=state", program=PROGRAM)
    assert job.finish() == 3, job.everything()
    path = Path(job.wait_for(r"report +(/\S+/state/reports/program-\S+/report\.html)").group(1))
    found = next(json.loads(line) for line in job.output.splitlines() if line.startswith("{"))
    assert {node["host"]: node["role"] for node in found["nodes"]} == {
        "node1": "primary",
        "node2": "in use",
        "node3": "reserve",
    }
    text = path.read_text()
    assert "excluded: node2" in text
    assert "exit code 3" in text
    events = [json.loads(line)["is"] for line in (path.parent / "job.jsonl").read_text().splitlines()]
    assert [event for event in events if event not in {"Told", "LaunchProgressed"}] == [
        "JobBegan",
        "LaunchBegan",
        "LaunchEnded",
        "LaunchBegan",
        "FailureFound",
        "LaunchEnded",
        "JobEnded",
    ]
    assert not list(tmp_path.glob("home/**/*"))


def test_a_report_of_a_thousand_devices_is_small(tmp_path: Path) -> None:
    write_record(tmp_path, 125, 8)
    path = write_report(read_inputs(tmp_path), tmp_path)
    assert path.stat().st_size < 3_000_000

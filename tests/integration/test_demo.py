"""``laggard demo``: without an extra, a clone or a GPU, it shows what laggard does, and says what it did."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from laggard.resilience.command.demo import PROGRAM, last_lines
from laggard.resilience.record.job_record import REPORT_FILE
from laggard.resilience.record.timeline import timeline_of_entries
from tests.integration.jobs import MAIN_JOB_DEADLINE_S, NOISE
from tests.made_up_job import entries
from tests.printed import DEMO
from tests.waiting import wait_until
from tests.without_extras import without_extras

COMMAND = [sys.executable, "-m", *shlex.split(DEMO)]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "site").mkdir()
    hidden = {"DISPLAY", "WAYLAND_DISPLAY", "LAGGARD_REPORT"}
    kept = {name: value for name, value in without_extras(tmp_path / "site").items() if name not in hidden}
    return {**kept, "HOME": str(tmp_path), "LAGGARD_RUNTIME_ROOT": str(tmp_path)}


def test_the_demonstration_says_what_it_found_what_that_cost_and_what_to_try_next(
    environment: dict[str, str], tmp_path: Path
) -> None:
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f"#!/bin/sh\necho $1 > {opened}\n")
    browser.chmod(0o700)
    environment |= {"DISPLAY": ":0", "BROWSER": f"{browser} %s"}
    ended = subprocess.run(
        COMMAND, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=MAIN_JOB_DEADLINE_S
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1600 steps in all, 4 x 400: none lost, none twice" in ended.stdout
    found, cost, report, following = re.split(r"\n(?=\w)", ended.stdout.rpartition("\n\n")[2])
    assert re.match(r"found +node2 gpu 0: .* (times as slow as|slower than) ", found), ended.stdout
    costs = (
        r"cost \d+\.\d s at the pace of the slow GPU, \d+\.\d s for the relaunch, (no work lost|0\.\d s of lost work)"
    )
    assert re.fullmatch(costs, " ".join(cost.split())), ended.stdout
    assert Path(report.split()[1]).name == REPORT_FILE
    assert Path(report.split()[1]).stat().st_size > 10_000
    assert following.split()[1:4] == ["laggard", "explain", f"{PROGRAM};"]
    assert f"in a browser: {opened.read_text()}" in ended.stdout
    assert not NOISE.search(ended.stdout + ended.stderr), ended.stdout + ended.stderr


def test_control_c_ends_the_demonstration_as_it_ends_any_job(environment: dict[str, str], tmp_path: Path) -> None:
    with (tmp_path / "said").open("w") as said:
        demo = subprocess.Popen(COMMAND, cwd=tmp_path, env=environment, stdout=said, stderr=said, process_group=0)
    wait_until(lambda: "steps a second" in (tmp_path / "said").read_text())
    os.killpg(demo.pid, signal.SIGINT)  # as a terminal does
    assert demo.wait(MAIN_JOB_DEADLINE_S) == 130
    assert "Traceback" not in (tmp_path / "said").read_text()
    assert "found" not in (tmp_path / "said").read_text()


def test_where_nothing_was_slow_the_demonstration_says_so(tmp_path: Path) -> None:
    began, launch, *_ = entries()
    said = last_lines(timeline_of_entries([began, launch]), tmp_path)
    assert said["found"].startswith("no slow GPU")
    assert said["cost"] == "nothing"

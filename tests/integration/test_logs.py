"""The logs of a job's processes can be read, even after a failure; a helper that dies says why."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from laggard.resilience.wire import Command
from laggard.resilience.wire.node import SetUp
from laggard.resilience.wire.tasks import StartTask, TaskEnded, WillRestart
from tests.integration.jobs import RunningJob
from tests.integration.test_agent import AgentAtWork

Start = Callable[..., RunningJob]

BROKEN = (sys.executable, "-c", "import no_such_library")
TWO_RANKS = ("--local-nodes=2", "--virtual-gpus=1", "--per-node", "--telemetry-level=2")


@pytest.fixture(autouse=True)
def _records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGGARD_REPORT", "1")


def test_the_logs_of_a_failed_job_are_kept_in_its_record(start_job: Start, tmp_path: Path) -> None:
    """Those of every node's agent as well; no other user can read them."""
    job = start_job(
        *TWO_RANKS,
        "--verbose",
        f"--report-dir={tmp_path}",
        program="import os; exit(3 * int(os.environ['NODE_RANK']))",
    )

    assert job.finish() == 3, job.everything()

    (logs,) = tmp_path.glob("program-*/logs")
    assert f"logs      of this job's processes: {logs}" in job.account
    for node in ("node1", "node2"):
        assert "command: StartTask" in (logs / node / "agent.log").read_text()
    assert "Ready to accept connections" in (logs / "state-server" / "server.log").read_text()
    assert not any(stat.S_IMODE(path.stat().st_mode) & 0o077 for path in logs.iterdir())


def test_a_job_that_succeeds_keeps_no_logs_and_prints_nothing_extra(start_job: Start, tmp_path: Path) -> None:
    job = start_job(*TWO_RANKS, f"--report-dir={tmp_path}", program="print('done')")

    assert job.finish() == 0, job.everything()

    assert list(tmp_path.glob("program-*/logs")) == []
    assert "DEBUG" not in job.account


def test_verbose_shows_decisions_and_no_secret(start_job: Start, tmp_path: Path) -> None:
    job = start_job(
        *TWO_RANKS,
        "--verbose",
        f"--report-dir={tmp_path}",
        program="""
            import json, os
            print("password", json.load(open(os.environ["LAGGARD_ENDPOINT_FILE"]))["password"])
        """,
    )
    password = job.wait_for(r"password (\S+)")[1]

    assert job.finish() == 0, job.everything()

    assert "DEBUG laggard.resilience.controller" in job.account
    assert "event: ProgramEnded()" in job.account
    assert password not in job.account


@pytest.mark.parametrize("level", ["loud", "5"])
def test_a_wrong_level_is_one_line(start_job: Start, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGGARD_LOG", level)
    job = start_job(program="print('never')")

    assert job.finish() == 2
    assert job.account == f"laggard: LAGGARD_LOG={level} is not a level: use debug, info, warning or error\n"


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (StartTask("probes", BROKEN, outlives_launches=True, restarts=True), WillRestart),
        (StartTask("probes", BROKEN), TaskEnded),
        (StartTask("probes", BROKEN, restarts=True), WillRestart),
    ],
)
def test_a_helper_that_dies_says_why(start: Command, kind: type[TaskEnded | WillRestart], tmp_path: Path) -> None:
    agent = AgentAtWork()
    try:
        agent.send(SetUp(str(tmp_path)))
        agent.send(start)

        end = agent.receive(kind)
        assert (end.name, end.exit_code) == ("probes", 1)
        assert end.why == "ModuleNotFoundError: No module named 'no_such_library'"
        assert getattr(end, "again_s", 1.0) == 1.0
    finally:
        agent.end()


def test_the_reason_reaches_the_user(start_job: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The telemetry of a node that cannot load a library is down, and the account says which."""
    broken = tmp_path / "broken" / "psutil"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text(
        "import sys\n"
        "if 'laggard.collectors.metrics.process' in ' '.join(sys.orig_argv):\n"
        "    raise ImportError('libfoo.so.1: no such file')\n"
        "sys.path.remove(__path__[0].removesuffix('/psutil'))\n"
        "del sys.modules['psutil']\n"
        "import psutil\n"
    )
    path = [str(broken.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    job = start_job(*TWO_RANKS, program="import signal; signal.pause()")

    why = "ImportError: libfoo.so.1: no such file"
    job.wait_for(rf"node1: telemetry ended with exit code 1; it will be restarted in 1\.0 s: {why}")
    job.wait_for(rf"node1: telemetry ended with exit code 1; it will be restarted in 2\.0 s: {why}")

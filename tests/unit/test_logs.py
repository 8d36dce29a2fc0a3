"""Logging under ``laggard.*``: levels, files, and what is kept of the logs of a job that failed."""

from __future__ import annotations

import logging
import pickle
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from laggard.errors import LaggardError
from laggard.logs import (
    END_BYTES,
    LOG_VARIABLE,
    MAX_LOGS,
    LogLevelError,
    configure_logging,
    ends_of_logs,
    last_line,
    log_to_file,
)
from laggard.resilience.record.job_logs import move_logs, save_logs


@pytest.mark.parametrize(
    ("value", "shown"), [(None, False), ("debug", True), ("DEBUG", True), ("error", False), ("", False)]
)
def test_the_variable_chooses_the_level(
    value: str | None, shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(LOG_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(LOG_VARIABLE, value)
    configure_logging("warning")

    logging.getLogger("laggard.telemetry").debug("a detail")

    assert ("DEBUG laggard.telemetry" in capsys.readouterr().err) == shown


def test_a_level_that_does_not_exist_is_refused_with_those_that_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOG_VARIABLE, "loud")

    with pytest.raises(LogLevelError) as caught:
        configure_logging()

    assert str(caught.value) == "LAGGARD_LOG=loud is not a level: use debug, info, warning or error"
    assert isinstance(caught.value, LaggardError)
    assert pickle.loads(pickle.dumps(caught.value)).value == "loud"  # noqa: S301 - our own


def test_configuring_twice_logs_once(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    configure_logging()

    logging.getLogger("laggard.collectors").warning("once")

    assert capsys.readouterr().err.count("once") == 1


def test_a_log_on_a_full_disk_prints_nothing_in_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "agent.log").symlink_to("/dev/full")
    log_to_file(tmp_path / "agent.log")
    logging.getLogger("laggard.test").error("no room")
    assert capsys.readouterr().err == ""
    (handler,) = logging.getLogger("laggard").handlers
    with pytest.raises(OSError, match="No space left"):
        handler.close()  # so it did write there
    logging.getLogger("laggard").removeHandler(handler)


def test_a_log_file_is_private_and_takes_the_place_of_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging()
    log_to_file(tmp_path / "agent.log")

    logging.getLogger("laggard.resilience").warning("in the file")

    assert stat.S_IMODE((tmp_path / "agent.log").stat().st_mode) == 0o600
    assert "in the file" in (tmp_path / "agent.log").read_text()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        ("\n \n", ""),
        ("first\nsecond\n\n", "second"),
        ("Traceback:\n  here\nImportError: no module named 'cupy'\n", "ImportError: no module named 'cupy'"),
        ("x" * 10_000 + "\nlast", "last"),
    ],
)
def test_the_last_line_of_a_log_is_the_last_that_says_something(text: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(text)
    assert last_line(tmp_path / "a.log") == line


def test_a_log_that_does_not_exist_has_no_last_line(tmp_path: Path) -> None:
    assert last_line(tmp_path / "none.log") == ""


def test_of_a_nodes_logs_the_end_of_each_is_kept_and_empty_ones_are_not(tmp_path: Path) -> None:
    (tmp_path / "telemetry.log").write_text("x" * END_BYTES + "the end")
    (tmp_path / "agent.log").touch()
    (tmp_path / "endpoint.json").write_text("a password")
    rays = tmp_path / "ray" / "session_2026-01-31" / "logs"
    rays.mkdir(parents=True)
    (rays / "raylet.out").write_text("from Ray")

    ends = ends_of_logs(tmp_path)

    assert ends.keys() == {"telemetry.log", "raylet.out"}
    assert len(ends["telemetry.log"]) == END_BYTES
    assert ends["telemetry.log"].endswith("the end")


def test_of_very_many_logs_some_are_kept(tmp_path: Path) -> None:
    for number in range(MAX_LOGS + 3):
        (tmp_path / f"{number}.log").write_text("x")
    assert len(ends_of_logs(tmp_path)) == MAX_LOGS


def test_kept_logs_lie_in_the_record_by_host_whatever_their_names(tmp_path: Path) -> None:
    runtime, record = tmp_path / "runtime", tmp_path / "record"
    runtime.mkdir()
    record.mkdir()
    save_logs(runtime, {"node1": {"ray.log": "one"}, "../node2": {"../../out.log": "two"}, "node3": {}})

    kept = move_logs(runtime, record)

    assert kept == record / "logs"
    found = {str(path.relative_to(kept)): path.read_text() for path in kept.rglob("*.log")}
    assert found == {"node1/ray.log": "one", "node2/out.log": "two"}
    assert stat.S_IMODE((kept / "node1").stat().st_mode) == 0o700


def test_a_job_that_kept_no_logs_has_none_to_move(tmp_path: Path) -> None:
    assert move_logs(tmp_path, tmp_path) is None


def test_importing_laggard_adds_no_handler() -> None:
    look = "import logging, laggard; from laggard import State; print(logging.getLogger('laggard').handlers)"
    shown = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"

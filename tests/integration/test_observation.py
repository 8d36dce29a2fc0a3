"""A job's telemetry from the command line: what the program adds, what the nodes read, and the server's answers."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from laggard.resilience.command.cli import main
from tests.integration.jobs import RunningJob, metrics_of
from tests.processes import command_lines
from tests.waiting import wait_until


def test_no_telemetry_process_runs_by_default(start_job: Callable[..., RunningJob]) -> None:
    job = start_job("--per-node", "sh", "-c", "sleep 1")
    job.wait_for("launch +0")
    assert not [line for line in command_lines(job.processes()) if "telemetry" in line]
    assert job.finish() == 0, job.everything()
    assert not re.search("telemetry", job.account)


def test_jobs_that_start_together_have_separate_servers(start_job: Callable[..., RunningJob]) -> None:
    jobs = [start_job("--telemetry-level=1", "--per-node", "sleep", "600") for _ in range(2)]
    ports = [int(job.wait_for(r"http://127\.0\.0\.1:(\d+)").group(1)) for job in jobs]
    assert len(set(ports)) == 2, ports
    wait_until(lambda: all(map(metrics_of, ports)), lambda: "\n".join(job.everything() for job in jobs))
    assert not any("notice" in job.account for job in jobs)


def test_a_taken_port_in_the_settings_is_refused(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        config = tmp_path / "telemetry.yaml"
        config.write_text(f"aggregator_port: {port}\n")
        assert main(["--telemetry-level=1", f"--telemetry-config={config}", "sh"]) == 2
    assert capfd.readouterr().err == (
        f"laggard: port {port} for the telemetry server is taken: name another as aggregator_port in {config}\n"
    )


def test_an_unknown_setting_is_refused(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "telemetry.yaml"
    config.write_text("colector_rate: 1\n")
    assert main(["--telemetry-level=1", f"--telemetry-config={config}", "sh"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("laggard: ")
    assert "colector_rate" in line


def test_grafana_files_are_written_from_the_command_line(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["grafana", str(tmp_path / "grafana"), "--url=http://localhost:4343"]) == 0
    written = [Path(line) for line in capfd.readouterr().out.splitlines()]
    assert all(path.is_file() for path in written)
    assert any("http://localhost:4343" in path.read_text() for path in written)


def test_a_dump_that_cannot_be_read_is_named(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    dump = tmp_path / "dump.csv.gz"
    dump.write_bytes(b"no gzip")
    assert main(["replay", str(dump)]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("laggard: ")
    assert str(dump) in line

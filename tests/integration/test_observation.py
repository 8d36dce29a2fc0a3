"""A job's telemetry from the command line: what the program adds, what the nodes read, and the server's answers."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from laggard.resilience.command.cli import main
from tests.integration.jobs import THREE_NODES, RunningJob, ask, metrics_of
from tests.integration.serving import free_port
from tests.processes import command_lines
from tests.waiting import Gate, wait_until

# Adds samples until it is signalled to go on; the second launch only checks that the first one's samples exist.
PROGRAM = """
    import select, signal, time
    from laggard.resilience import Job
    from laggard.telemetry import AnalysisClient, Telemetry

    telemetry, client = Telemetry(), AnalysisClient()
    client.connect()
    telemetry.add_data("launch", Job.current().launch)
    if Job.current().restarted:
        while not client.get_data("loss", tags={"rank": "0"}):
            time.sleep(0.1)
        print("still there", flush=True)
        raise SystemExit(0)
    print("here", flush=True)
    go_on = open("go-on")
    while not select.select([go_on], [], [], 0.05)[0]:
        telemetry.add_data("loss", 1.5, tagk="rank", tagv="0")
        telemetry.add_data("too-much", 1.5, telemetry_level=4)
    client.reboot()
    signal.pause()
"""


def test_telemetry_is_served_across_launches_and_dumped_at_the_end(
    start_job: Callable[..., RunningJob], tmp_path: Path
) -> None:
    config = tmp_path / "telemetry.yaml"
    config.write_text(f"dump_dir: dumps\naggregator_port: {free_port()}\n")
    options = ("--resilient", "--telemetry-level=3", f"--telemetry-config={config}")
    folder = tmp_path / "folder"
    go_on = Gate(folder / "go-on")
    job = start_job(*THREE_NODES, *options, program=PROGRAM, directory=folder)
    port = int(job.wait_for(r"http://127\.0\.0\.1:(\d+)").group(1))
    job.wait_for("here")
    wanted = {"loss", "load_average", "DeviceUtilization"}
    wait_until(lambda: wanted <= metrics_of(port), lambda: f"only {metrics_of(port)}:\n{job.everything()}")
    assert "too-much" not in metrics_of(port)
    hosts = {found["tags"]["host"] for found in ask(port, "/api/search/lookup?m=load_average&limit=100")["results"]}
    assert hosts <= {"node1", "node2"}
    go_on.open()
    assert job.finish() == 0, job.everything()
    assert "still there" in job.output
    assert "notice" not in job.account, job.everything()
    assert command_lines(job.processes()) == []
    dumps = job.directory / "dumps"
    assert sorted(path.name.partition("-")[0] for path in dumps.iterdir()) == ["node1", "node2"]
    assert len(re.findall(rf"dump +node\d:{dumps}", job.account.replace("\n", ""))) == 2, job.account
    port = free_port()
    command = [sys.executable, "-m", "laggard", "replay", str(dumps), f"--port={port}"]
    replay = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: wanted <= metrics_of(port), lambda: "the dumps are not served")
        queries = [{"metric": "launch", "aggregator": "none"}]
        # in milliseconds, since a relaunch takes less than a second
        launches = ask(port, "/api/query", {"start": "1h-ago", "msResolution": True, "queries": queries})
    finally:
        replay.terminate()
        replay.wait(30)
    assert {value for series in launches for value in series["dps"].values()} == {0, 1}


def test_no_telemetry_process_runs_by_default(start_job: Callable[..., RunningJob]) -> None:
    job = start_job("--per-node", "sh", "-c", "sleep 1")
    job.wait_for("launch +0")
    assert not [line for line in command_lines(job.processes()) if "telemetry" in line]
    assert job.finish() == 0, job.everything()
    assert not re.search("telemetry", job.account)


def test_jobs_that_start_together_have_separate_servers(start_job: Callable[..., RunningJob]) -> None:
    jobs = [start_job("--telemetry-level=1", "--per-node", "sleep", "600") for _ in range(3)]
    ports = [int(job.wait_for(r"http://127\.0\.0\.1:(\d+)").group(1)) for job in jobs]
    assert len(set(ports)) == 3, ports
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

"""``laggard grafana`` fits its dashboards to a real server's job, whatever proxies there are."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from laggard.kvstore.series.timeseries import TimeSeries
from laggard.kvstore.server.process import StateServer
from laggard.resilience.command.telemetry import grafana as grafana_command
from laggard.resilience.errors import UsageError
from laggard.telemetry.dumps.writing import write_dump
from laggard.telemetry.errors import ServerUnreachableError
from laggard.telemetry.grafana.server_client import read_shape
from tests.integration.serving import SECOND_US, Served, free_port, serve

DEADLINE_S = 120.0
VIRTUAL = ("load_average", "cpu_percent", "DeviceUtilization", "DevicePowerUsage")


@pytest.fixture(scope="module")
def served(state_server: StateServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(state_server, tmp_path_factory.mktemp("node1"), settings="reading_needs_token: true\n") as server:
        now_us = round(time.time() * SECOND_US)
        for metric in VIRTUAL:
            for gpu in ("0", "1") if metric.startswith("Device") else ("",):
                server.node.store.add(metric, {"host": "node1"} | ({"gpu": gpu} if gpu else {}), now_us, 1.0)
        yield server


def grafana(directory: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "laggard", "grafana", str(directory), *options],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={**os.environ, **environment},
    )


def metrics_of(directory: Path, name: str) -> set[str]:
    panels = json.loads((directory / "dashboards" / name).read_text())["panels"]
    return {target["metric"] for panel in panels for target in panel.get("targets", [])}


def test_the_dashboards_of_a_running_job_have_its_metrics_and_no_proxy_is_asked(tmp_path: Path, served: Served) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    token = served.directory / "telemetry-token"

    done = grafana(
        tmp_path, f"--url=http://localhost:{served.port}", f"--token-file={token}", http_proxy=nowhere, no_proxy=""
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert metrics_of(tmp_path, "device.json") == {"DeviceUtilization", "DevicePowerUsage"}
    assert metrics_of(tmp_path, "overview.json") == set(VIRTUAL)
    written = [Path(line) for line in done.stdout.splitlines()]
    assert all(path.exists() for path in written)
    (scrape,) = yaml.safe_load((tmp_path / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    assert scrape["static_configs"] == [{"targets": [f"localhost:{served.port}"]}]
    assert {"prometheus.yml", "rules.yml", "token"} <= {path.name for path in written}


def test_without_a_server_the_dashboards_are_for_any_job_and_one_line_says_so(tmp_path: Path) -> None:
    done = grafana(tmp_path, f"--url=http://localhost:{free_port()}")

    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert "run this again while it runs" in done.stderr
    assert "DeviceSmClock" in metrics_of(tmp_path, "overview.json")


@pytest.mark.parametrize("url", ["localhost:4242", "ftp://localhost", "http://", "http://localhost:port"])
def test_what_is_no_address_is_refused(tmp_path: Path, url: str) -> None:
    done = CliRunner().invoke(grafana_command, [str(tmp_path / "new"), f"--url={url}"])

    assert isinstance(done.exception, UsageError)
    assert url in str(done.exception)
    assert not (tmp_path / "new").exists()


def test_the_dashboards_of_a_dump_open_on_its_range(tmp_path: Path) -> None:
    times = np.array([1_700_000_000 * SECOND_US, 1_700_000_600 * SECOND_US])
    write_dump(
        str(tmp_path / "dumps"), "node1", 1_700_000_700.0, [TimeSeries("loss", {"host": "node1"}, times, np.ones(2))]
    )
    port = free_port()
    replay = subprocess.Popen(
        [sys.executable, "-m", "laggard", "replay", f"--port={port}", str(tmp_path / "dumps")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert replay.stdout is not None
        while "ssh command" not in (line := replay.stdout.readline()):
            assert line, "the replay ended"
        shape = read_shape(f"http://127.0.0.1:{port}")
    finally:
        replay.kill()
        replay.communicate()

    assert shape.range_s == (1_700_000_000.0, 1_700_000_600.0)
    assert "loss" in shape.metrics


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """Sends everybody, with what they have on them, to another server."""

    to = ""

    def do_GET(self) -> None:
        self.send_response(302)
        self.send_header("Location", self.to)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Be quiet."""


def test_the_token_does_not_follow_a_redirect(served: Served) -> None:
    Elsewhere.to = f"http://127.0.0.1:{served.port}/page/job?start=0&end=1"
    with http.server.HTTPServer(("127.0.0.1", 0), Elsewhere) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        try:
            with pytest.raises(ServerUnreachableError, match="Found"):
                read_shape(f"http://127.0.0.1:{other.server_port}", served.token)
        finally:
            other.shutdown()


def test_without_its_token_a_server_that_needs_it_says_nothing(served: Served) -> None:
    with pytest.raises(ServerUnreachableError, match="Unauthorized"):
        read_shape(f"http://127.0.0.1:{served.port}")

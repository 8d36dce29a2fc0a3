"""A real Prometheus scrapes a real job as ``laggard grafana`` has it do, and its alerts fire on real faults."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.jobs import RunningJob
from tests.integration.serving import free_port
from tests.waiting import wait_until

PROMETHEUS = shutil.which("prometheus")
pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed (Debian: prometheus)")

DEADLINE_S = 60.0
# Commits until it is told to stop; says then that a device is slow, as a detector would.
PROGRAM = """
    import os, time
    from laggard.detectors.evidence import WrongResults
    from laggard.detectors.verdict import Evidence
    from laggard.detectors.verdict import Verdict
    from laggard.kvstore import State
    from laggard.kvstore.client.connection import current_session
    from laggard.kvstore.control import Control

    state = State.current()
    while not os.path.exists("stop"):
        state["step"] = state.get("step", 0) + 1
        time.sleep(0.2)
    if os.environ["NODE_RANK"] == "0":
        session = current_session()
        verdict = Verdict("node2", "0", 1.5, "slow", Evidence("node2", "0", WrongResults("made up for a test")))
        Control(session.client, session.endpoint, session.environment.launch).ask("verdicts", [verdict.to_fields()])
    while not os.path.exists("end"):
        time.sleep(0.2)
"""
OPTIONS = ("--local-nodes=2", "--virtual-gpus=1", "--telemetry-level=2", "--per-node")
# As soon as a test can wait for.
SOON = {"LaggardNodeLost": "1s", "LaggardServerDown": "1s"}


def asked(port: int, path: str) -> Any:
    """Return the data that Prometheus answers with; None while it starts."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=DEADLINE_S) as answer:
            return json.load(answer)["data"]
    except OSError:
        return None


def firing(port: int) -> dict[str, dict[str, str]]:
    """Return the labels of the alerts that fire, by name."""
    found = asked(port, "alerts") or {"alerts": []}
    return {each["labels"]["alertname"]: each["labels"] for each in found["alerts"] if each["state"] == "firing"}


def hurry(folder: Path) -> None:
    """Have what was written look every second, and wait for seconds where it waits for minutes."""
    path = folder / "prometheus.yml"
    config = yaml.safe_load(path.read_text())
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    path.write_text(yaml.safe_dump(config))
    path = folder / "rules.yml"
    rules = yaml.safe_load(path.read_text())
    for rule in rules["groups"][0]["rules"]:
        rule["for"] = SOON.get(rule["alert"], rule["for"])
        rule["expr"] = rule["expr"].replace("> 1800", "> 10")
    path.write_text(yaml.safe_dump(rules))


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Callable[[Path], int]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(folder: Path) -> int:
        assert PROMETHEUS is not None
        port = free_port()
        options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/tsdb"]
        with (tmp_path / "prometheus.log").open("wb") as log:
            started.append(
                subprocess.Popen(
                    [PROMETHEUS, *options, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log
                )
            )
        return port

    yield start
    for each in started:
        each.kill()
        each.wait(DEADLINE_S)


def test_alerts_fire_on_faults_of_a_real_job(
    start_job: Callable[..., RunningJob], prometheus: Callable[[Path], int], tmp_path: Path
) -> None:
    job = start_job(*OPTIONS, program=PROGRAM)
    url = job.wait_for(r"(http://127\.0\.0\.1:\d+)")[1]
    folder = tmp_path / "grafana"
    subprocess.run(
        [sys.executable, "-m", "laggard", "grafana", str(folder), f"--url={url}"],
        check=True,
        timeout=DEADLINE_S,
        env={**os.environ, "http_proxy": "http://127.0.0.1:1"},
        stdout=subprocess.DEVNULL,
    )
    hurry(folder / "prometheus")
    port = prometheus(folder / "prometheus")

    def value(expression: str) -> set[str]:
        found = asked(port, f"query?query={expression}") or {"result": []}
        return {each["value"][1] for each in found["result"]}

    wait_until(lambda: value("laggard_node_up") == {"1"})
    wait_until(lambda: value("laggard_progress_timestamp_seconds"))
    assert value("node_load1"), "a metric that the nodes have read"
    # On a busy machine a commit may take long, and a scrape.
    wait_until(lambda: not firing(port).keys() - {"LaggardNoProgress"})

    (job.directory / "stop").touch()
    wait_until(lambda: {"LaggardDeviceSlow", "LaggardNoProgress"} <= firing(port).keys())
    slow = firing(port)["LaggardDeviceSlow"]
    assert (slow["hostname"], slow["gpu"]) == ("node2", "0")

    node = job.process_of("node2", "laggard.collectors.metrics.process")
    node.send_signal(signal.SIGSTOP)
    wait_until(lambda: firing(port).get("LaggardNodeLost", {}).get("hostname") == "node2")
    node.send_signal(signal.SIGCONT)
    wait_until(lambda: "LaggardNodeLost" not in firing(port))

    server = job.process_of("node1", "laggard.telemetry.server")
    server.send_signal(signal.SIGSTOP)
    wait_until(lambda: "LaggardServerDown" in firing(port))
    server.send_signal(signal.SIGCONT)
    wait_until(lambda: "LaggardServerDown" not in firing(port))

    (job.directory / "end").touch()
    assert job.finish() == 0, job.everything()

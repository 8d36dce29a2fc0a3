"""Telemetry across the launches of a job, and in the dumps that it leaves."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

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

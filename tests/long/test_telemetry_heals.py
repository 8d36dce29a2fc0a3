"""Telemetry processes that are killed while a job runs."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable

from tests.integration.jobs import RunningJob
from tests.integration.serving import Served
from tests.queries import sub_query
from tests.waiting import wait_until

# Adds a sample twenty times a second until it is told to end.
ADDS = """
    import os, time
    from laggard.kvstore import State
    from laggard.telemetry import Telemetry

    telemetry, state = Telemetry(), State.current()
    print("adding")
    while not state.get("end"):
        telemetry.add_data("beat", 1.0)
        time.sleep(0.05)
        if os.path.exists("end"):
            state["end"] = True
"""


TWO_NODES = ("--local-nodes=2", "--virtual-gpus=1", "--telemetry-level=2", "--per-node")


def test_telemetry_processes_that_are_killed_are_started_again_and_samples_go_on(
    start_job: Callable[..., RunningJob],
) -> None:
    job = start_job(*TWO_NODES, program=ADDS)
    port = int(job.wait_for(r"http://127\.0\.0\.1:(\d+)")[1])
    for node in ("node1", "node2"):
        job.wait_for(rf"\[{node}\] adding")

    def newest() -> dict[str, float]:
        """Return the time of each node's newest sample of the program, in seconds; none while the server is down."""
        served = Served(port, "", job.directory, None)  # type: ignore[arg-type]
        try:
            found = served.json("/api/query", {"start": "5m-ago", "queries": [sub_query("none:beat{host=*}")]})
        except (OSError, http.client.HTTPException):
            return {}
        return {each["tags"]["host"]: max(map(int, each["dps"])) for each in found}

    wait_until(lambda: newest().keys() == {"node1", "node2"})
    job.process_of("node2", "laggard.collectors.metrics.process").kill()
    job.process_of("node1", "laggard.telemetry.server").kill()
    killed_s = time.time()

    wait_until(lambda: set(newest()) == {"node1", "node2"} and min(newest().values(), default=0) > killed_s)
    job.wait_for(r"node2: telemetry ended with exit code -9; it will be restarted in 1\.0 s")
    job.wait_for(r"node1: telemetry-server ended with exit code -9; it will be restarted in 1\.0 s")
    job.wait_for(r"node2: its telemetry begins anew")
    job.wait_for(r"the telemetry server begins anew")
    (job.directory / "end").touch()
    assert job.finish() == 0, job.everything()

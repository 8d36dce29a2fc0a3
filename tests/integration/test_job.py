"""Jobs from the command line to their end: real Ray, real state server, real processes.

More of what may happen to a job is in tests/long/test_jobs.py. Each test also looks whether the job has left a
process behind.
"""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest

from laggard.kvstore.server.process import StateServer
from laggard.kvstore.state.mapping import State
from laggard.resilience.decision.site import Sighting
from laggard.resilience.record.history_folder import HistoryFolder
from laggard.resilience.record.node_history import NodeHistory
from tests.integration.counting_job import (
    Start,
    assert_nothing_is_left,
)
from tests.webhook import webhook

# Without Ray, which takes seconds to start.
ALONE = ("--local-nodes=1", "--virtual-gpus=1", "--resilient", "--per-node")


def test_a_program_that_fails_again_in_the_same_way_ends_the_job_with_its_exit_code(start_job: Start) -> None:
    program = "import sys; sys.stderr.write('KeyError: 7\\n'); sys.exit(3)"
    job = start_job(*ALONE, "--backoff=0", program=program)
    assert job.finish() == 3, job.everything()
    assert re.search(
        r"relaunch  the program on node1 exited with 3 after [\d.]+ s: KeyError: 7 .*; on the same nodes", job.account
    )
    assert "the program: 3 failures without progress, the last two at the same place" in job.account
    assert "3 launches, 0 nodes excluded" in job.account
    assert "kept" not in job.account  # nothing was committed
    assert not list(Path(job.runtime_root).iterdir())
    assert_nothing_is_left(job)


def test_the_site_remembers_nothing_of_virtual_nodes(start_job: Start, tmp_path: Path) -> None:
    history = NodeHistory(HistoryFolder(tmp_path))
    noted = [Sighting("node2", time.time(), "failed", f"old-{number}", "too slow") for number in range(2)]
    history.add("old", *noted)

    job = start_job(
        *("--local-nodes=3", "--nodes=2", "--virtual-gpus=1", "--per-node", f"--node-history={tmp_path}"), program=""
    )

    assert job.finish() == 0, job.everything()
    assert "0 on node1, node2 (primary: node1); reserve: node3" in job.account
    assert history.read() == noted


def test_a_webhook_gets_a_line_for_each_failure_relaunch_and_the_end(start_job: Start) -> None:
    program = "import sys; sys.stderr.write('KeyError: 7\\n'); sys.exit(3)"
    with webhook() as server:
        job = start_job(*ALONE, "--max-restarts=1", f"--notify={server.address}", program=program)
        assert job.finish() == 93, job.everything()
    kinds = [re.sub(r"^\S+: (the program|launch|the job) .*", r"\1", line) for line in server.lines]
    assert kinds == ["the program", "launch", "the program", "launch", "the job"]
    assert "exited with 3" in server.lines[0]
    assert server.lines[-1].endswith("the job ended with exit code 93")


@pytest.mark.parametrize("given", [["--detect=slow-gpu", "--detect=slow-link"], ["--detect", "slow-link,slow-gpu"]])
def test_devices_and_links_are_watched_together(start_job: Start, given: list[str]) -> None:
    program = """
        import time
        from laggard.kvstore.client.connection import current_session
        from laggard.kvstore.series.streams import Series

        session = current_session()
        series = Series(session.client, session.endpoint, session.environment.launch)
        while not {"gpu-probe-time", "links"} <= set(series.metrics()):
            time.sleep(0.05)
    """
    options = ("--local-nodes=2", "--virtual-gpus=1", "--per-node", "--detect-interval=0.2", *given)
    job = start_job(*options, program=program)
    assert job.finish() == 0, job.everything()


def test_what_a_detector_keeps_is_no_progress_of_the_program(start_job: Start) -> None:
    program = """
        import time
        from laggard import State

        state = State.current()
        while "laggard/slow-gpu-history" not in state:
            time.sleep(0.05)
        raise SystemExit(state.commits())
    """
    job = start_job(*ALONE, "--virtual-gpus=4", "--detect=slow-gpu", program=program)
    assert job.finish() == 0, job.everything()


def test_what_a_failed_program_has_committed_is_kept_and_its_folder_is_named(start_job: Start) -> None:
    job = start_job(
        "--per-node", program="from laggard.kvstore import State; State.current()['n'] = 7; raise SystemExit(3)"
    )
    assert job.finish() == 3, job.everything()
    state = job.wait_for(r"kept: add --state-dir (\S+) to go on from it").group(1)
    reader = start_job(
        "--per-node", "--state-dir", state, program="from laggard.kvstore import State; print(State.current()['n'])"
    )
    assert reader.finish() == 0, reader.everything()
    assert reader.output == "[node1] 7\n"


def test_a_program_needs_no_ray_and_keeps_its_output_to_itself(start_job: Start) -> None:
    job = start_job("--telemetry-level=0", "sh", "-c", "echo out; echo err >&2")
    assert job.finish() == 0, job.everything()
    assert job.output == "out\n"
    assert "err\n" in job.account
    assert_nothing_is_left(job)


@pytest.mark.root("to mount a small file system")
def test_state_is_kept_if_its_server_is_lost_for_good(start_job: Start) -> None:
    program = """
        import signal
        from laggard.kvstore import State
        State.current()["n"] = 7
        print("committed", flush=True)
        signal.pause()
    """
    job = start_job("--per-node", program=program)
    folder = Path(job.wait_for("its files in (.*)/state").group(1)) / "state"
    job.wait_for("committed")
    job.wait_for("launch +0 on node1")
    (manifest,) = folder.glob("appendonlydir/*.manifest")
    manifest.write_text("not a manifest\n")
    job.state_server().kill()
    assert job.finish() == 1, job.everything()
    assert f"kept: add --state-dir {folder}" in job.account.replace("\n", ""), job.everything()
    assert list(folder.glob("appendonlydir/*.aof"))
    assert_nothing_is_left(job)


def test_a_full_disk_ends_the_job_with_state_as_of_the_last_commit(start_job: Start, tmp_path: Path) -> None:
    program = """
        import numpy as np
        from laggard.kvstore import State

        state = State.current()
        n = 0
        while True:
            n += 1
            with state.transaction() as transaction:
                transaction["n"] = n
                transaction["array"] = np.full(25_000, n, np.int32)
            with open("committed", "a") as file:
                file.write(f"{n}\\n")
    """
    small = tmp_path / "small"
    small.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", str(small)], capture_output=True)
    if mount.returncode:
        pytest.skip(f"no file system can be mounted here: {mount.stderr.decode()}")
    try:
        job = start_job("--virtual-gpus=1", "--resilient", "--state-dir", str(small / "state"), program=program)
        assert job.finish() == 1, job.everything()
        assert re.search(r"laggard: no room left for State at .*State is as of the last commit", job.account)
        assert "Traceback" not in job.account.split("laggard: ")[-1]
        assert_nothing_is_left(job)
        subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
        with StateServer.start(small / "state", job="program") as server, server.endpoint.connect() as client:
            state = State(client, server.endpoint, launch=0)
            committed = int((job.directory / "committed").read_text().split()[-1])
            assert state["n"] in {committed, committed + 1}  # it may have ended before it could note the last one
            assert set(state["array"]) == {state["n"]}
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)

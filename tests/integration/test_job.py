"""Jobs from the command line to their end: real Ray, real state server, real processes.

More of what may happen to a job is in tests/long/test_jobs.py. Each test also looks whether the job has left a
process behind.
"""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.server.process import StateServer
from laggard.kvstore.state.mapping import State
from tests.integration.counting_job import (
    COUNT_FOR_EVER,
    RESILIENT,
    Start,
    assert_nothing_is_left,
)
from tests.integration.jobs import THREE_NODES
from tests.waiting import Gate

# Without Ray, which takes seconds to start.
ALONE = ("--local-nodes=1", "--virtual-gpus=1", "--resilient", "--per-node")


def test_a_program_that_fails_again_in_the_same_way_ends_the_job_with_its_exit_code(start_job: Start) -> None:
    job = start_job(*ALONE, program="raise SystemExit(3)")
    assert job.finish() == 3, job.everything()
    assert re.search(r"relaunch  the program on node1 exited with 3 after [\d.]+ s; on the same nodes", job.account)
    assert "the same as the last time, without progress in between" in job.account
    assert "2 launches, 0 nodes excluded" in job.account
    assert "kept" not in job.account  # nothing was committed
    assert not list(Path(job.runtime_root).iterdir())
    assert_nothing_is_left(job)


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


def test_a_program_that_misses_a_lost_node_before_we_do_is_relaunched_without_it(
    start_job: Start, tmp_path: Path
) -> None:
    cut = Gate(tmp_path / "cut")
    job = start_job(
        *THREE_NODES,
        "--per-node",
        "--resilient",
        program="""
        import os, signal
        from laggard.resilience import Job

        if Job.current().restarted:
            raise SystemExit(0)
        print("here", flush=True)
        if os.environ["NODE_RANK"] != "0":
            signal.pause()
        open("cut").readline()
        raise SystemExit(1)
        """,
        directory=tmp_path,
    )
    job.wait_for("(?s)here.*here")
    agent = job.process_of("node2", "program.py").parent()
    assert agent is not None
    agent.suspend()
    cut.open()
    assert job.finish() == 0, job.everything()
    assert "without node2; node3 comes in from the reserve" in job.account
    assert_nothing_is_left(job)


def test_a_program_killed_by_a_signal_is_relaunched_and_ended_when_it_makes_no_progress(start_job: Start) -> None:
    """Launch 0 commits something, the launches 1 to 3 nothing."""
    program = """
        import os, signal
        from laggard.kvstore import State
        from laggard.resilience import Job

        if Job.current().launch == 0:
            State.current()["step"] = 1
        os.kill(os.getpid(), signal.SIGKILL)
    """
    job = start_job(*ALONE, "--backoff=0", program=program)
    assert job.finish() == 93, job.everything()
    assert "4 launches, 0 nodes excluded" in job.account
    assert_nothing_is_left(job)


def test_no_secret_can_be_seen_in_a_command_line_or_by_another_user(start_job: Start) -> None:
    job = start_job(*RESILIENT, program=COUNT_FOR_EVER)
    job.wait_for("counting")
    process = job.process_of("node2", "raylet/raylet")
    environment = process.environ()
    token_file, endpoint_file = Path(environment["RAY_AUTH_TOKEN_PATH"]), Path(environment["LAGGARD_ENDPOINT_FILE"])
    directory = endpoint_file.parent
    secrets = [token_file.read_text(), Endpoint.load(endpoint_file).password]
    assert all(len(secret) >= 32 for secret in secrets)
    for seen in job.processes():
        with_arguments = " ".join(seen.cmdline())
        assert not any(secret in with_arguments for secret in secrets)
    assert all(path.stat().st_mode & 0o077 == 0 for path in (directory, token_file, endpoint_file))
    job.process.send_signal(signal.SIGTERM)
    job.finish()
    assert not any(secret in job.everything() for secret in secrets)
    assert_nothing_is_left(job)


def test_a_killed_state_server_is_restarted_and_only_the_user_is_notified(start_job: Start, tmp_path: Path) -> None:
    """The workers go on counting, the detector's verdict arrives, and no committed increment is lost."""
    program = """
        import select, time
        from laggard.detectors import Detector
        from laggard.kvstore import State
        from laggard.kvstore.series.streams import Sample, Series
        from laggard.kvstore.client.connection import current_session
        from laggard.resilience import Job

        job, state = Job.current(), State.current()
        if job.restarted:
            print("launch 1 on", *(node.hostname for node in job.nodes), "counted", state["n"] >= state["seen"])
            raise SystemExit(0)

        class Accuser(Detector):
            metric_name = "speed"

            def analyze_data(self, data, analysis_args):
                return state["killed"], ["node2"]

        session = current_session()
        series = Series(session.client, session.endpoint, 0)
        state["n"], state["killed"] = 0, False
        killed = open("killed")
        with Accuser(collection_rate=0.2):
            while True:
                state["n"] = state["n"] + 1
                state["seen"] = state["n"]
                for node in job.nodes:
                    for gpu in node.devices:
                        series.add([Sample("speed", time.time(), (1.0,), {"host": node.hostname, "gpu": gpu})])
                print("counting", flush=True)
                state["killed"] = bool(select.select([killed], [], [], 0.1)[0])
    """
    killed = Gate(tmp_path / "killed")
    job = start_job(*RESILIENT, program=program, directory=tmp_path)
    job.wait_for("counting")
    job.state_server().kill()
    job.wait_for("was restarted with all of its log")
    killed.open()
    assert job.finish() == 0, job.everything()
    assert "launch 1 on node1 node3 counted True" in job.output
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

"""Jobs from the command line to their end: real Ray, real state server, real processes.

Each test also looks whether the job has left a process behind.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstore.endpoint import Endpoint
from kvstore.server import StateServer
from kvstore.state import State
from resilience.controller import SAME_BREATH_S
from tests.integration.jobs import THREE_NODES, RunningJob, wait_until

Start = Callable[..., RunningJob]

RESILIENT = (*THREE_NODES, "--resilient")

# Counts in State in workers on both devices of the last node, for ever: what a test ends is in the middle of its work.
COUNT_FOR_EVER = """
    import ray
    from collectors.placement import node_strategy
    from kvstore import State
    from resilience import Job

    job = Job.current()
    state = State.current()
    print(f"launch {job.launch} on {' '.join(node.hostname for node in job.nodes)}", flush=True)
    if job.restarted:
        print("counted", "yes" if state["n0"] > 0 else "no", "restarted", job.restarted, flush=True)
        raise SystemExit(0)
    ray.init()

    @ray.remote(num_gpus=1)
    def count(key):
        state = State.current()
        while True:
            with state.transaction() as transaction:
                transaction[key] = transaction.get(key, 0) + 1

    running = [count.options(scheduling_strategy=node_strategy(job.nodes[-1])).remote(f"n{i}") for i in range(2)]
    while "n0" not in state:
        ray.wait(running, timeout=0.1)
    print("counting", flush=True)
    ray.get(running)
"""


def assert_nothing_is_left(job: RunningJob) -> None:
    assert [process.cmdline() for process in job.processes()] == []


def test_a_program_that_fails_by_itself_ends_the_job_with_its_exit_code(start_job: Start) -> None:
    job = start_job(*RESILIENT, program="raise SystemExit(3)")
    assert job.finish() == 3, job.everything()
    assert "launch    1" not in job.account
    assert "1 launch, 0 nodes excluded" in job.account
    assert "kept" not in job.account  # nothing was committed
    assert not list(Path(job.runtime_root).iterdir())
    assert_nothing_is_left(job)


def test_what_a_failed_program_has_committed_is_kept_and_where_is_said(start_job: Start) -> None:
    job = start_job("--per-node", program="from kvstore import State; State.current()['n'] = 7; raise SystemExit(3)")
    assert job.finish() == 3, job.everything()
    state = job.wait_for(r"kept: add --state-dir (\S+) to go on from it").group(1)
    reader = start_job(
        "--per-node", "--state-dir", state, program="from kvstore import State; print(State.current()['n'])"
    )
    assert reader.finish() == 0, reader.everything()
    assert reader.output == "[node1] 7\n"


def test_a_program_needs_no_ray_and_keeps_its_output_to_itself(start_job: Start) -> None:
    job = start_job("--telemetry-level=0", "sh", "-c", "echo out; echo err >&2")
    assert job.finish() == 0, job.everything()
    assert job.output == "out\n"
    assert "err\n" in job.account
    assert_nothing_is_left(job)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything_and_leaves_state_readable(start_job: Start, signum: signal.Signals) -> None:
    job = start_job(*RESILIENT, "--state-dir=state", program=COUNT_FOR_EVER)
    job.wait_for("counting")
    job.process.send_signal(signum)
    assert job.finish() == 128 + signum, job.everything()
    assert_nothing_is_left(job)
    if signum != signal.SIGINT:
        return  # once is enough for what follows
    reader = start_job("--state-dir", str(job.directory / "state"), str(job.directory / "program.py"))
    assert reader.finish() == 0, reader.everything()
    assert "launch 1 on node1" in reader.output
    assert "counted yes" in reader.output


def test_a_second_signal_ends_everything_at_once(start_job: Start) -> None:
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('here', flush=True); time.sleep(600)"
    job = start_job(*RESILIENT, "--grace=600", program=stubborn)
    job.wait_for("here")
    job.process.send_signal(signal.SIGTERM)
    job.wait_for("again to end it at once")
    time.sleep(SAME_BREATH_S)  # one that comes sooner counts as the same
    job.process.send_signal(signal.SIGTERM)
    assert job.finish() == 143, job.everything()
    assert "of grace" not in job.account  # it was not waited for
    assert_nothing_is_left(job)


def test_a_program_that_ignores_its_grace_is_ended(start_job: Start) -> None:
    stubborn = """
        import signal, time
        from resilience import Job
        from telemetry import AnalysisClient

        if Job.current().restarted:
            raise SystemExit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        client = AnalysisClient()
        client.connect()
        client.reboot("node2")
        time.sleep(600)
    """
    job = start_job(*RESILIENT, "--grace=0.5", program=stubborn)
    assert job.finish() == 0, job.everything()
    assert "did not end within its 0.5 s of grace" in job.account
    assert "without node2; node3 comes in from the reserve" in job.account
    assert_nothing_is_left(job)


@pytest.mark.parametrize("victim", ["agent", "raylet"])
def test_a_lost_node_is_replaced_from_the_reserve(start_job: Start, victim: str) -> None:
    job = start_job(*RESILIENT, program=COUNT_FOR_EVER)
    job.wait_for("counting")
    process = job.agent_of("node2") if victim == "agent" else job.process_of("node2", "raylet/raylet")
    process.kill()
    assert job.finish() == 0, job.everything()
    assert "launch 1 on node1 node3" in job.output
    assert "counted yes" in job.output
    assert_nothing_is_left(job)


@pytest.mark.parametrize("frozen", ["agent", "every process"])
def test_a_frozen_node_is_a_lost_node(start_job: Start, frozen: str) -> None:
    job = start_job(*RESILIENT, program=COUNT_FOR_EVER)
    job.wait_for("counting")
    job.agent_of("node2").suspend()
    if frozen == "every process":
        for process in job.processes_of("node2"):
            process.suspend()
    assert job.finish() == 0, job.everything()
    assert "launch 1 on node1 node3" in job.output
    assert_nothing_is_left(job)


@pytest.mark.parametrize("ending", ["raise SystemExit(1)", "os.abort()"])
def test_a_program_that_misses_a_lost_node_before_we_do_is_relaunched_without_it(start_job: Start, ending: str) -> None:
    job = start_job(
        *THREE_NODES,
        "--per-node",
        "--resilient",
        program=f"""
        import os, time
        from pathlib import Path
        from resilience import Job

        if Job.current().restarted:
            raise SystemExit(0)
        print("here", flush=True)
        while not Path("cut").exists() or os.environ["NODE_RANK"] != "0":
            time.sleep(0.05)
        {ending}
        """,
    )
    job.wait_for("(?s)here.*here")
    agent = job.process_of("node2", "program.py").parent()
    assert agent is not None
    agent.suspend()
    (job.directory / "cut").touch()
    assert job.finish() == 0, job.everything()
    assert "without node2; node3 comes in from the reserve" in job.account
    assert_nothing_is_left(job)


def test_too_few_nodes_end_the_job_with_69(start_job: Start) -> None:
    job = start_job("--local-nodes=2", "--virtual-gpus=2", "--resilient", program=COUNT_FOR_EVER)
    job.wait_for("counting")
    job.agent_of("node2").kill()
    assert job.finish() == 69, job.everything()
    assert "1 good nodes are left and --nodes is 2" in job.account
    assert_nothing_is_left(job)


def test_a_program_killed_by_a_signal_is_relaunched_and_ended_when_it_makes_no_progress(start_job: Start) -> None:
    """Launch 0 commits something, the launches 1 to 3 nothing."""
    program = """
        import os, signal
        from kvstore import State
        from resilience import Job

        if Job.current().launch == 0:
            State.current()["step"] = 1
        os.kill(os.getpid(), signal.SIGKILL)
    """
    job = start_job(*RESILIENT, program=program)
    assert job.finish() == 93, job.everything()
    assert "4 launches, 0 nodes excluded" in job.account
    assert_nothing_is_left(job)


def test_what_an_old_launch_leaves_is_ended_and_could_not_write(start_job: Start) -> None:
    """The first launch leaves a daemon that writes to State for ever; the second one finds its number unchanged."""
    program = """
        import os, sys, time
        from kvstore import FencedError, State
        from resilience import Job
        from telemetry import AnalysisClient

        if Job.current().restarted:
            state = State.current()
            before = state["n"]
            time.sleep(1)  # nothing to wait for: the test is that nothing happens
            print("unchanged" if state["n"] == before else "CHANGED", open("fenced").read())
            raise SystemExit(0)
        if os.fork() == 0:
            os.setsid()
            state = State.current()
            while True:
                try:
                    state["n"] = state.get("n", 0) + 1
                except FencedError:
                    open("fenced", "a").write("fenced")
        open("fenced", "w").close()
        while "n" not in State.current():
            time.sleep(0.05)
        client = AnalysisClient()
        client.connect()
        client.reboot()
        time.sleep(600)
    """
    job = start_job(*RESILIENT, program=program)
    assert job.finish() == 0, job.everything()
    assert "unchanged" in job.output
    assert "swept" in job.account
    assert_nothing_is_left(job)


def test_a_verdict_against_the_primary_is_reported_and_nothing_is_relaunched(start_job: Start) -> None:
    program = """
        import dataclasses, os, time
        from detectors import Verdict
        from kvstore.control import Control
        from kvstore.session import current_session

        session = current_session()
        control = Control(session.client, session.endpoint, session.environment.launch)
        verdict = Verdict("node1", "0", 2.0, "very slow", "node1 gpu 0 is slow", action="restart")
        control.ask("verdicts", [dataclasses.asdict(verdict)])
        while not os.path.exists("go-on"):
            time.sleep(0.05)
    """
    job = start_job(*RESILIENT, program=program)
    job.wait_for(r"stays +no relaunch")
    (job.directory / "go-on").touch()
    assert job.finish() == 0, job.everything()
    assert "node1 gpu 0 is slow (very slow)" in job.account
    assert "stays     no relaunch: the primary is never excluded" in job.account
    assert "1 launch, 0 nodes excluded" in job.account
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


def test_killed_agents_and_controller_leave_nothing_running_and_the_next_command_sweeps_up(start_job: Start) -> None:
    """All at once, so that none of them can end what another one has left."""
    job = start_job(*RESILIENT, program=COUNT_FOR_EVER)
    job.wait_for("counting")
    folder = Path(job.wait_for("its files in (.*)/state").group(1))
    for process in (job.agent_of("node1"), job.agent_of("node2"), job.process):
        process.kill()
    wait_until(lambda: not job.processes(), lambda: str([process.cmdline() for process in job.processes()]))
    assert (folder / "owner").exists()
    assert start_job("true").finish() == 0
    assert [entry.name for entry in folder.iterdir()] == ["state"]  # it may be all that is left of days of work


def test_no_node_has_an_agent_of_rays_dashboard(start_job: Start) -> None:
    job = start_job(*RESILIENT, program=COUNT_FOR_EVER)
    job.wait_for("counting")
    for node in ("node1", "node2"):
        raylet = job.process_of(node, "raylet/raylet")
        started = [process.cmdline() for process in raylet.children()]
        assert ["cat"] in started
        assert not [
            words for words in started if "DashboardAgent" in words[0] or "dashboard/agent.py" in " ".join(words)
        ]
    raylet.kill()  # what stands in for the agent does not outlive it
    assert job.finish() == 0, job.everything()
    assert "launch 1 on node1 node3" in job.output
    assert_nothing_is_left(job)


def test_a_lost_head_of_rays_is_replaced_on_the_same_nodes(start_job: Start) -> None:
    job = start_job(*RESILIENT, program=COUNT_FOR_EVER)
    job.wait_for("counting")
    job.process_of("node1", "gcs_server").kill()
    assert job.finish() == 0, job.everything()
    assert "launch 1 on node1 node2" in job.output
    assert "counted yes" in job.output
    assert_nothing_is_left(job)


def test_the_next_job_in_a_state_directory_begins_without_the_excluded_node(start_job: Start) -> None:
    program = """
        import time
        from resilience import Job
        from telemetry import AnalysisClient

        job = Job.current()
        print("launch", job.launch, "on", *(node.hostname for node in job.nodes), flush=True)
        if job.launch == 0:
            client = AnalysisClient()
            client.connect()
            client.reboot("node2")
            time.sleep(600)
    """
    job = start_job(*RESILIENT, "--state-dir=state", program=program)
    assert job.finish() == 0, job.everything()
    state = ("--state-dir", str(job.directory / "state"))
    after = start_job(*RESILIENT, *state, str(job.directory / "program.py"))
    assert after.finish() == 0, after.everything()
    assert "launch 2 on node1 node3" in after.output
    too_few = start_job("--local-nodes=2", *state, str(job.directory / "program.py"))
    assert too_few.finish() == 69, too_few.everything()
    taken_back = start_job("--local-nodes=2", "--quarantine=1", *state, str(job.directory / "program.py"))
    assert taken_back.finish() == 0, taken_back.everything()
    assert "launch 3 on node1 node2" in taken_back.output
    assert "--quarantine=1 would take back node2" in too_few.account


def test_a_program_that_fails_for_want_of_a_killed_worker_is_relaunched_on_the_same_nodes(start_job: Start) -> None:
    job = start_job(*RESILIENT, program=COUNT_FOR_EVER.replace("num_gpus=1", "num_gpus=1, max_retries=0"))
    job.wait_for("counting")
    job.process_of("node2", "ray::count").kill()
    assert job.finish() == 0, job.everything()
    assert "launch 1 on node1 node2" in job.output
    assert "counted yes" in job.output
    assert_nothing_is_left(job)


def test_a_killed_state_server_comes_back_and_nobody_notices_but_the_user(start_job: Start) -> None:
    """The workers count on, the detector's verdict comes through, and no committed increment is lost."""
    program = """
        import os, time
        from detectors import Detector
        from kvstore import State
        from kvstore.series import Sample, Series
        from kvstore.session import current_session
        from resilience import Job

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
        with Accuser(collection_rate=0.2):
            while True:
                state["n"] = state["n"] + 1
                state["seen"] = state["n"]
                for node in job.nodes:
                    for gpu in node.devices:
                        series.add([Sample("speed", time.time(), (1.0,), {"host": node.hostname, "gpu": gpu})])
                print("counting", flush=True)
                time.sleep(0.1)
                state["killed"] = os.path.exists("killed")
    """
    job = start_job(*RESILIENT, program=program)
    job.wait_for("counting")
    job.state_server().kill()
    job.wait_for("is back with all of its log")
    (job.directory / "killed").touch()
    assert job.finish() == 0, job.everything()
    assert "launch 1 on node1 node3 counted True" in job.output
    assert_nothing_is_left(job)


def test_a_program_that_hangs_is_relaunched(start_job: Start) -> None:
    program = """
        import time
        from resilience import Job

        job = Job.current()
        for step in range(8):
            job.progress(step)
            time.sleep(0.3)
        if not job.restarted:
            print("hanging", flush=True)
            time.sleep(600)
    """
    job = start_job(*RESILIENT, "--hang-timeout=2", "--grace=1", program=program)
    assert job.finish() == 0, job.everything()
    assert "the program hangs: no progress for" in job.account
    assert "2 launches, 0 nodes excluded" in job.account
    assert_nothing_is_left(job)


def test_after_a_killed_controller_the_same_command_carries_on(start_job: Start) -> None:
    """At once, while what the killed one started is still going down."""
    job = start_job(*RESILIENT, "--state-dir=state", program=COUNT_FOR_EVER)
    job.wait_for("counting")
    job.process.kill()
    again = start_job(*RESILIENT, "--state-dir", str(job.directory / "state"), str(job.directory / "program.py"))
    assert again.finish() == 0, again.everything()
    assert "launch 1 on node1 node2" in again.output
    assert "counted yes" in again.output
    wait_until(lambda: not job.processes(), lambda: str([process.cmdline() for process in job.processes()]))
    assert_nothing_is_left(again)


def test_a_slow_node_of_the_reserve_is_passed_over(start_job: Start) -> None:
    program = """
        import os, threading, time
        from pathlib import Path
        import numpy as np
        from collectors.device import VirtualDevice
        from kvstore.series import Series
        from kvstore.session import current_session
        from resilience import Job
        from telemetry import AnalysisClient

        job = Job.current()
        print("launch", job.launch, "on", *(node.hostname for node in job.nodes), flush=True)
        if job.restarted:
            raise SystemExit(0)
        while not os.path.exists("folder"):
            time.sleep(0.05)
        device = VirtualDevice("0", Path(open("folder").read()), "node3")
        ones = np.ones((1500, 1500), np.float32)

        def load():
            while True:
                device.run(lambda: ones @ ones)

        for _ in range(4):  # on a busy machine too, one of them is in the device's queue
            threading.Thread(target=load, daemon=True).start()
        session = current_session()
        series = Series(session.client, session.endpoint, job.launch)
        newest = {}
        while len(newest) < 4 or newest["node3", "0"] < 2 * newest["node4", "0"]:
            time.sleep(0.1)
            for _, sample in series.read("reserve-probe-time"):
                newest[sample.tags["host"], sample.tags["gpu"]] = min(sample.values)
        client = AnalysisClient()
        client.connect()
        client.reboot("node2")
        time.sleep(600)
    """
    job = start_job("--local-nodes=4", "--nodes=2", "--virtual-gpus=2", "--resilient", program=program)
    job.wait_for("launch 0 on")
    wait_until(lambda: any(job.processes_of("node3")), job.everything)
    folder = next(job.processes_of("node3")).environ()["LAGGARD_VIRTUAL_DEVICE_DIR"]
    (job.directory / "draft").write_text(folder)
    (job.directory / "draft").rename(job.directory / "folder")
    assert job.finish() == 0, job.everything()
    assert "launch 1 on node1 node4" in job.output
    assert "node3 passed over: node3 gpu 0: " in job.account
    assert "without node2; node4 comes in from the reserve" in job.account
    assert "(node3, node2)" in job.account
    assert_nothing_is_left(job)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
def test_state_is_kept_where_its_server_is_lost_for_good(start_job: Start) -> None:
    program = """
        import time
        from kvstore import State
        State.current()["n"] = 7
        print("committed", flush=True)
        time.sleep(600)
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
        from kvstore import State

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

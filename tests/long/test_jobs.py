"""More of what may happen to a job with a Ray cluster, from the command line to its end.

The first of it is in tests/integration/test_job.py. Each test also looks whether the job has left a process behind.
"""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from laggard.kvstore.client.connection import Endpoint
from laggard.resilience.controller.stop_signals import SIGNAL_DEBOUNCE_S
from tests.integration.counting_job import (
    COUNT_FOR_EVER,
    RESILIENT,
    Start,
    assert_nothing_is_left,
    end_by_signal,
    lose_node2,
)
from tests.integration.jobs import THREE_NODES, RunningJob
from tests.integration.test_job import ALONE
from tests.processes import command_lines
from tests.waiting import Gate, wait_until


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGHUP])
def test_other_signals_end_everything_too(start_job: Start, signum: signal.Signals) -> None:
    end_by_signal(start_job, signum)


def test_a_node_whose_agent_is_killed_is_replaced_from_the_reserve(start_job: Start) -> None:
    lose_node2(start_job, lambda job: job.agent_of("node2").kill())


def test_a_node_that_is_frozen_as_a_whole_is_a_lost_node(start_job: Start) -> None:
    def freeze(job: RunningJob) -> None:
        for process in (job.agent_of("node2"), *job.processes_of("node2")):
            process.suspend()

    lose_node2(start_job, freeze)


def test_a_second_signal_ends_everything_immediately(start_job: Start) -> None:
    stubborn = "import signal; signal.signal(15, signal.SIG_IGN); print('here', flush=True); signal.pause()"
    job = start_job(*RESILIENT, "--grace=600", program=stubborn)
    job.wait_for("here")
    job.process.send_signal(signal.SIGTERM)
    job.wait_for("again to end it at once")
    job.process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):  # so soon after the first it counts as the same
        job.process.wait(SIGNAL_DEBOUNCE_S)
    job.process.send_signal(signal.SIGTERM)
    assert job.finish() == 143, job.everything()
    assert "grace period" not in job.account  # it was not waited for
    assert_nothing_is_left(job)


def test_a_program_that_outlasts_its_grace_period_is_killed(start_job: Start) -> None:
    stubborn = """
        import signal
        from laggard.resilience import Job
        from laggard.telemetry import AnalysisClient

        if Job.current().restarted:
            raise SystemExit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        client = AnalysisClient()
        client.connect()
        client.reboot("node2")
        signal.pause()
    """
    job = start_job(*RESILIENT, "--grace=0.5", program=stubborn)
    assert job.finish() == 0, job.everything()
    assert "was killed after its 0.5 s grace period" in job.account
    assert "without node2; node3 comes in from the reserve" in job.account
    assert_nothing_is_left(job)


def test_no_node_runs_rays_dashboard_agent(start_job: Start) -> None:
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


def test_collectors_see_the_devices_of_their_node_even_if_ray_hides_them(
    start_job: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As older versions of Ray do: an actor that reserves no GPU sees none."""
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
    looking = """
        import os, time
        from pathlib import Path
        import ray
        from laggard import CollectorGroup

        class Looking(CollectorGroup):
            metric_name = "looking"

            def collector_test(self, args):
                names = Path(args, f"{os.environ['LAGGARD_NODE']}-{self.device.gpu}")
                names.with_suffix(".new").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
                names.with_suffix(".new").rename(names)
                return 1.0

        @ray.remote(num_cpus=0)
        def hidden():
            return os.environ["CUDA_VISIBLE_DEVICES"]

        ray.init(log_to_driver=False)
        print("hidden from others:", repr(ray.get(hidden.remote())))
        expected = [Path(f"node{node}-{gpu}") for node in (1, 2) for gpu in (0, 1)]
        with Looking(collection_rate=0.1, collector_args=os.getcwd()):
            while not all(path.exists() for path in expected):
                time.sleep(0.05)
        print("seen by collectors:", *sorted({path.read_text() for path in expected}))
    """
    job = start_job("--local-nodes=2", "--virtual-gpus=2", program=looking)
    assert job.finish() == 0, job.everything()
    assert "hidden from others: ''" in job.output
    assert "seen by collectors: 0,1" in job.output


def test_a_lost_ray_head_is_replaced_on_the_same_nodes(start_job: Start) -> None:
    job = start_job(*RESILIENT, program=COUNT_FOR_EVER)
    job.wait_for("counting")
    job.process_of("node1", "gcs_server").kill()
    assert job.finish() == 0, job.everything()
    assert "launch 1 on node1 node2" in job.output
    assert "counted yes" in job.output
    assert_nothing_is_left(job)


def test_the_next_job_in_a_state_directory_begins_without_the_excluded_node(start_job: Start) -> None:
    program = """
        import signal
        from laggard.resilience import Job
        from laggard.telemetry import AnalysisClient

        job = Job.current()
        print("launch", job.launch, "on", *(node.hostname for node in job.nodes), flush=True)
        if job.launch == 0:
            client = AnalysisClient()
            client.connect()
            client.reboot("node2")
            signal.pause()
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
    assert (
        "launch 4 on node1 node2" in taken_back.output
    )  # each job raises the number when it begins, without a launch too
    assert "--quarantine=1 would take node2 back" in too_few.account


def test_a_program_that_fails_because_a_worker_was_killed_is_relaunched_on_the_same_nodes(start_job: Start) -> None:
    job = start_job(*RESILIENT, program=COUNT_FOR_EVER.replace("num_gpus=1", "num_gpus=1, max_retries=0"))
    job.wait_for("counting")
    job.process_of("node2", "ray::count").kill()
    assert job.finish() == 0, job.everything()
    assert "launch 1 on node1 node2" in job.output
    assert "counted yes" in job.output
    assert_nothing_is_left(job)


def test_a_program_that_hangs_is_relaunched(start_job: Start) -> None:
    program = """
        import signal, time
        from laggard.resilience import Job

        job = Job.current()
        job.progress(0)
        if not job.restarted:
            print("hanging", flush=True)
            signal.pause()
        for step in range(1, 40):  # for longer than the timeout
            job.progress(step)
            time.sleep(0.3)
    """
    job = start_job(*RESILIENT, "--hang-timeout=10", "--grace=1", program=program)
    assert job.finish() == 0, job.everything()
    assert "the program hangs: no sign of life for" in job.account
    assert "2 launches, 0 nodes excluded" in job.account
    assert_nothing_is_left(job)


def test_after_a_killed_controller_the_same_command_carries_on(start_job: Start) -> None:
    """Immediately, while the processes of the killed one are still ending."""
    job = start_job(*RESILIENT, "--state-dir=state", program=COUNT_FOR_EVER)
    job.wait_for("counting")
    job.process.kill()
    again = start_job(*RESILIENT, "--state-dir", str(job.directory / "state"), str(job.directory / "program.py"))
    assert again.finish() == 0, again.everything()
    assert "launch 1 on node1 node2" in again.output
    assert "counted yes" in again.output
    wait_until(lambda: not job.processes(), lambda: str(command_lines(job.processes())))
    assert_nothing_is_left(again)


def test_a_node_whose_agent_is_frozen_is_a_lost_node(start_job: Start) -> None:
    lose_node2(start_job, lambda job: job.agent_of("node2").suspend())


def test_a_slow_node_of_the_reserve_is_passed_over(start_job: Start, tmp_path: Path) -> None:
    program = """
        import signal, threading, time
        from pathlib import Path
        import numpy as np
        from laggard.collectors.device import VirtualDevice
        from laggard.kvstore.series.streams import Series
        from laggard.kvstore.client.connection import current_session
        from laggard.resilience import Job
        from laggard.resilience.controller.reserve import slow_in_reserve
        from laggard.telemetry import AnalysisClient

        job = Job.current()
        print("launch", job.launch, "on", *(node.hostname for node in job.nodes), flush=True)
        if job.restarted:
            raise SystemExit(0)
        device = VirtualDevice("0", Path(open("folder").readline().strip()), "node3")
        ones = np.ones((1500, 1500), np.float32)

        def load():
            while True:
                device.run(lambda: ones @ ones)

        for _ in range(4):  # on a busy machine too, one of them is in the device's queue
            threading.Thread(target=load, daemon=True).start()
        session = current_session()
        series = Series(session.client, session.endpoint, job.launch)
        accused = set()
        while accused != {"node3"}:
            time.sleep(0.1)
            samples = [sample for _, sample in series.read("reserve-probe-time")]
            newest = {(sample.tags["host"], sample.tags["gpu"]): sample for sample in samples}
            accused = {verdict.host for verdict in slow_in_reserve(newest.values(), [])}
        client = AnalysisClient()
        client.connect()
        client.reboot("node2")
        signal.pause()
    """
    folder = Gate(tmp_path / "folder")
    four_nodes = ("--local-nodes=4", "--nodes=2", "--virtual-gpus=2", "--resilient")
    job = start_job(*four_nodes, program=program, directory=tmp_path)
    job.wait_for("launch 0 on")
    wait_until(lambda: any(job.processes_of("node3")), job.everything)
    folder.open(next(job.processes_of("node3")).environ()["LAGGARD_VIRTUAL_DEVICE_DIR"])
    assert job.finish() == 0, job.everything()
    assert "launch 1 on node1 node4" in job.output
    assert "node3 passed over: node3 gpu 0: " in job.account
    assert "without node2; node4 comes in from the reserve" in job.account
    assert "(node3, node2)" in job.account
    assert_nothing_is_left(job)


def test_a_test_that_cannot_run_and_a_collector_that_cannot_start_are_reported_with_the_reason(
    start_job: Start,
) -> None:
    program = """
        import os, signal, ray
        from laggard import CollectorDetectorGroup

        class Broken(CollectorDetectorGroup):
            metric_name = "broken-time"

            def collector_test(self, args):
                raise ImportError("libfoo.so.1 is missing")

            def analyze_data(self, data, analysis_args):
                return False, []

            def __setstate__(self, state):
                if os.environ.get("LAGGARD_NODE") == "node2":
                    raise ImportError("no module named 'numba'")
                self.__dict__.update(state)

        ray.init()
        with Broken(collection_rate=0.3):
            signal.pause()
    """
    job = start_job("--local-nodes=2", "--virtual-gpus=1", program=program)

    job.wait_for("broken-time: no good reading from node1 gpu 0 for three rounds: ImportError: libfoo.so.1 is missing")
    job.wait_for("broken-time: no good reading from node2 gpu 0 for three rounds: .*no module named 'numba'")


def test_a_lost_node_is_replaced_from_the_reserve(start_job: Start) -> None:
    lose_node2(start_job, lambda job: job.process_of("node2", "raylet/raylet").kill())


def test_too_few_nodes_end_the_job_with_69(start_job: Start) -> None:
    job = start_job(
        "--local-nodes=2", "--virtual-gpus=2", "--resilient", "--wait-for-nodes=0.01", program=COUNT_FOR_EVER
    )
    job.wait_for("counting")
    job.agent_of("node2").kill()
    assert job.finish() == 69, job.everything()
    assert "waiting up to 0.0 s for node2 to return" in job.account
    assert re.search("1 good node is left for --nodes=2; .*; node2 has not returned within", job.account)
    assert_nothing_is_left(job)


SILENCED = """
    import functools, signal
    from laggard.detectors import SlowGPUDetector, detector
    from laggard.detectors.judging.rounds import RoundAssembler

    # a collector is back in less than the five seconds after which a silence is reported
    impatient = functools.partial(RoundAssembler, shortest_silence_s=0)
    detector.Watcher = functools.partial(detector.Watcher, rounds=impatient)

    class Loud(SlowGPUDetector):
        def judge(self, readings, now_s):
            print("a round", flush=True)
            return super().judge(readings, now_s)

    with Loud(0.5):
        signal.pause()
"""


def test_killed_collectors_are_reported_within_three_rounds_and_restarted(
    start_job: Start,
) -> None:
    job = start_job("--local-nodes=1", "--virtual-gpus=2", program=SILENCED)
    job.wait_for("a round")
    job.process_of("node1", "NodeCollector").kill()
    job.wait_for("gpu-probe-time: no good reading from node1 gpu [01].* for three rounds")
    before = job.output.count("a round")
    wait_until(lambda: job.output.count("a round") > before, job.everything)
    job.wait_for("gpu-probe-time: node1 gpu [01].* readings again")


def test_a_signal_ends_everything_and_leaves_state_readable(start_job: Start) -> None:
    job = end_by_signal(start_job, signal.SIGTERM)
    reader = start_job("--state-dir", str(job.directory / "state"), str(job.directory / "program.py"))
    assert reader.finish() == 0, reader.everything()
    assert "launch 1 on node1" in reader.output
    assert "counted yes" in reader.output


def test_what_an_old_launch_leaves_is_ended_and_could_not_write(start_job: Start) -> None:
    """The first launch leaves a daemon that writes to State forever; the second one finds its number unchanged."""
    program = """
        import os, signal
        from laggard.kvstore import FencedError, State
        from laggard.resilience import Job
        from laggard.telemetry import AnalysisClient

        if Job.current().restarted:
            state = State.current()
            before = state["n"]
            print("unchanged" if all(state["n"] == before for _ in range(1000)) else "CHANGED", open("fenced").read())
            raise SystemExit(0)
        open("fenced", "w").close()
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.setsid()
            state = State.current()
            state["n"] = 1
            os.write(writing, b".")
            while True:
                try:
                    state["n"] = state.get("n", 0) + 1
                except FencedError:
                    open("fenced", "a").write("fenced")
        os.read(reading, 1)
        client = AnalysisClient()
        client.connect()
        client.reboot()
        signal.pause()
    """
    job = start_job(*RESILIENT, program=program)
    assert job.finish() == 0, job.everything()
    assert "unchanged" in job.output
    assert "swept" in job.account
    assert_nothing_is_left(job)


def test_a_verdict_against_a_primary_that_cannot_be_spared_is_reported_and_nothing_is_relaunched(
    start_job: Start, tmp_path: Path
) -> None:
    program = """
        from laggard.detectors import Verdict
        from laggard.detectors.evidence import WrongResults
        from laggard.detectors.verdict import Evidence
        from laggard.kvstore.control import Control
        from laggard.kvstore.client.connection import current_session

        session = current_session()
        control = Control(session.client, session.endpoint, session.environment.launch)
        evidence = Evidence("node1", "0", WrongResults("made up"))
        verdict = Verdict("node1", "0", 2.0, "very slow", evidence, action="restart")
        control.ask("verdicts", [verdict.to_fields()])
        open("go-on").readline()
    """
    go_on = Gate(tmp_path / "go-on")
    job = start_job("--local-nodes=2", "--virtual-gpus=1", "--resilient", program=program, directory=tmp_path)
    job.wait_for(r"stays +no relaunch")
    go_on.open()
    assert job.finish() == 0, job.everything()
    assert "node1 gpu 0: made up (very slow)" in job.account
    assert "stays     no relaunch: no other node could take the place of node1; with --exhaust-resources" in job.account
    assert "1 launch, 0 nodes excluded" in job.account
    assert_nothing_is_left(job)


def test_killed_agents_and_controller_leave_nothing_running_and_the_next_command_sweeps_up(start_job: Start) -> None:
    """All of them together, so that none can end what another has left behind."""
    job = start_job(*RESILIENT, program=COUNT_FOR_EVER)
    job.wait_for("counting")
    folder = Path(job.wait_for("its files in (.*)/state").group(1))
    for process in (job.agent_of("node1"), job.agent_of("node2"), job.process):
        process.kill()
    wait_until(lambda: not job.processes(), lambda: str(command_lines(job.processes())))
    assert (folder / "owner").exists()
    assert start_job("true").finish() == 0
    assert [entry.name for entry in folder.iterdir()] == ["state"]  # it may be all that is left of days of work


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
        state["n"], state["killed"] = 0, False
        killed = open("killed")
        with Accuser(collection_rate=0.2):
            while True:
                state["n"] = state["n"] + 1
                state["seen"] = state["n"]
                for node in job.nodes:
                    for gpu in node.devices:
                        series = Series(session.client, session.endpoint, 0, node.hostname)
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


def test_a_program_killed_by_a_signal_is_relaunched_and_ended_when_it_makes_no_progress(start_job: Start) -> None:
    """Launch 0 commits something, all others nothing."""
    program = """
        import os, signal
        from laggard.kvstore import State
        from laggard.resilience import Job

        if Job.current().launch == 0:
            State.current()["step"] = 1
        os.kill(os.getpid(), signal.SIGKILL)
    """
    job = start_job(*ALONE, "--backoff=0", "--give-up-after=5", program=program)
    assert job.finish() == 93, job.everything()
    assert re.search(r"no progress for [\d.]+ s: .*; the last failure: the program .* SIGKILL", job.account)
    assert re.search(r"[2-9]\d* launches, 0 nodes excluded", job.account)
    assert_nothing_is_left(job)

"""More of what may happen to a job with a Ray cluster, from the command line to its end.

The first of it is in tests/integration/test_job.py. Each test also looks whether the job has left a process behind.
"""

from __future__ import annotations

import signal
import subprocess

import pytest

from laggard.resilience.controller.controller import SIGNAL_DEBOUNCE_S
from tests.integration.counting_job import (
    COUNT_FOR_EVER,
    RESILIENT,
    Start,
    assert_nothing_is_left,
    end_by_signal,
    lose_node2,
)
from tests.integration.jobs import RunningJob
from tests.processes import command_lines
from tests.waiting import wait_until


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
    assert "launch 3 on node1 node2" in taken_back.output
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

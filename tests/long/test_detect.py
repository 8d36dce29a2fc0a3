"""A slow node is left behind by a Ray job at once, and by a program that probes its devices itself."""

from __future__ import annotations

import pytest

from tests.integration.jobs import metrics_of
from tests.integration.test_detect import DETECT, ENDS_WHEN_RELAUNCHED, Start, probes_of, thrashed
from tests.waiting import wait_until


def test_a_ray_job_goes_on_without_the_slow_node_at_once(start_job: Start) -> None:
    job = start_job(*DETECT, *ENDS_WHEN_RELAUNCHED)
    job.wait_for("launch +0 on node1, node2")
    with thrashed(job, "node2"):
        job.wait_for(r"verdict +node2 gpu 0: .* 3 peers .*jobs \(very slow\)")
        assert job.finish() == 0, job.everything()
    assert "without node2; node3 comes in from the reserve" in job.account
    assert job.processes() == []


# Between two of its kernels it probes each device of its node.
INLINE_PROBES = """
import os, time
from laggard.collectors import InlineProbe, local_devices
from laggard.detectors import SlowGPUDetector

if os.environ["LAGGARD_LAUNCH"] == "0":
    detector = SlowGPUDetector(collection_rate=0.5)
    probes = [InlineProbe(detector, device) for device in local_devices()]
    while True:
        time.sleep(0.01)
        for probe in probes:
            probe.probe_if_due()
"""


def test_a_program_with_inline_probes_goes_on_without_the_slow_node(start_job: Start) -> None:
    options = ("--per-node", "--inline-probes", "--telemetry-level=1")
    job = start_job(*DETECT, *options, program=INLINE_PROBES)
    job.wait_for("launch +0 on node1, node2")
    probes_of(job, "node1")  # the primary judges
    with thrashed(job, "node2", probes="program.py"):
        with pytest.raises(AssertionError, match="on node2"):
            job.process_of("node2", "laggard.resilience.agent.detect")
        port = int(job.wait_for(r"telemetry http://127.0.0.1:(\d+)")[1])
        wait_until(lambda: "gpu-probe-time" in metrics_of(port), job.everything)
        job.wait_for("verdict +node2 gpu 0: .* 3 peers .*")
        assert job.finish() == 0, job.everything()
    assert "without node2; node3 comes in from the reserve" in job.account
    assert job.processes() == []


def test_a_command_that_knows_nothing_of_it_goes_on_without_the_slow_node_once_it_pays(start_job: Start) -> None:
    job = start_job(*DETECT, "--per-node", "--restart-cost=4", *ENDS_WHEN_RELAUNCHED)
    job.wait_for("launch +0 on node1, node2")
    with thrashed(job, "node2"):
        says = r"lost in .*; a restart costs 4 s \(as given\): (now|not yet, at )"
        job.wait_for(f"verdict +node2 gpu 0: .* {says}")
        assert job.finish() == 0, job.everything()
    assert "without node2; node3 comes in from the reserve" in job.account
    assert "launch    1 on node1, node3" in job.account
    assert job.processes() == []

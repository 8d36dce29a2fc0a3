"""Sections beside test kernels: a rank whose device is well is not restarted, and pipeline stages are not compared."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.integration.jobs import RunningJob
from tests.integration.test_sections import ROUNDS_BEFORE, STEPS, THREE_NODES, wait_for_readings

Start = Callable[..., RunningJob]


def test_a_rank_on_a_device_that_is_well_is_reported_and_not_restarted(start_job: Start, tmp_path: Path) -> None:
    options = ("--virtual-gpus=2", "--detect=slow-gpu", "--detect-interval=0.3", "--restart-cost=0")
    job = start_job(*THREE_NODES, *options, program=STEPS, directory=tmp_path)
    wait_for_readings(job, "section-time.forward", ROUNDS_BEFORE)
    (tmp_path / "slow").touch()
    job.wait_for(r"verdict +rank 3 on node2 gpu 1: .* no restart, since test kernels find its device well.* \(slow\)")
    assert "relaunch" not in job.account
    job.process.terminate()
    job.finish()


def test_stages_with_unequal_work_are_compared_within_themselves_by_a_file(start_job: Start, tmp_path: Path) -> None:
    """Each stage has two ranks, of which one cannot be told from the other until it is twice as slow."""
    (tmp_path / "groups.yaml").write_text("rank 0-1: stage 0\nrank 2-3: stage 1\n")
    stages = STEPS.replace(
        "0.052 if is_slow and is_slow_one else 0.04",
        "(0.1 if is_slow_one and is_slow else 0.04) + 0.02 * (int(os.environ['RANK']) // 2)",
    )
    assert stages != STEPS
    options = ("--detect=sections", "--groups=groups.yaml", "--detect-interval=0.2", "--restart-cost=0")
    job = start_job(*THREE_NODES, *options, program=stages, directory=tmp_path)
    wait_for_readings(job, "section-time.forward", ROUNDS_BEFORE)
    assert re.findall(r"rank \d on .* \((?:very )?slow\)", job.account) == []
    (tmp_path / "slow").touch()
    job.wait_for(r"verdict +rank 3 on node2: .* its (own past and than |only )?.*peer.* \((very )?slow\)")
    assert job.finish() == 0, job.everything()
    assert "without node2; node3 comes in from the reserve" in job.account


def test_a_rank_that_is_slow_wherever_it_runs_costs_one_node_and_not_all(start_job: Start, tmp_path: Path) -> None:
    """In the second launch it becomes slow again: its work is larger, or its input slower."""
    again = STEPS.replace('if os.environ["LAGGARD_LAUNCH"] == "1":', 'if os.environ["LAGGARD_LAUNCH"] == "2":').replace(
        'Path("slow")', 'Path("slow" + os.environ["LAGGARD_LAUNCH"])'
    )
    options = ("--local-nodes=4", "--detect=sections", "--detect-interval=0.2", "--restart-cost=0")
    job = start_job(*THREE_NODES, *options, program=again, directory=tmp_path)
    for launch, nodes in enumerate(("node1, node2", "node1, node3")):
        job.wait_for(f"launch +{launch} on {nodes}")
        wait_for_readings(job, "section-time.forward", ROUNDS_BEFORE, launch)
        (tmp_path / f"slow{launch}").touch()
    job.wait_for(r"verdict +rank 3 on node3: .*; no restart, since it was slow on node2, too: its share .* \(slow\)")
    assert job.account.count("relaunch  without") == 1
    job.process.terminate()
    job.finish()


# Every rank feeds a metric; a rule in one of them judges it.
FED = """
    import os, sys, time
    from laggard import Detector, Telemetry

    if os.environ["LAGGARD_LAUNCH"] == "1":
        sys.exit(0)

    class TwiceAsSlow(Detector):
        metric_name = "batch-seconds"

        def analyze_data(self, data, analysis_args):
            if len(data) < 2:
                return False, []
            best = min(min(seconds) for seconds in data.values())
            slow = sorted({host for (host, rank), seconds in data.items() if min(seconds) > 2 * best})
            print("devices", *sorted(data), flush=True)
            return bool(slow), slow

    rank = os.environ["NODE_RANK"]
    detector = TwiceAsSlow(collection_rate=0.1)
    if rank == "0":
        detector.start()
    telemetry = Telemetry()
    while True:
        telemetry.add_data("batch-seconds", 0.5 if rank == "1" else 0.1, tagk="rank", tagv=rank)
        time.sleep(0.05)
"""


def test_a_detector_judges_what_programs_feed_with_add_data(start_job: Start) -> None:
    job = start_job(*THREE_NODES, "--telemetry-level=1", program=FED)
    assert job.finish() == 0, job.everything()
    assert "verdict   TwiceAsSlow accuses node2 (slow)" in job.account
    assert "without node2; node3 comes in from the reserve" in job.account
    assert "devices ('node1', '0') ('node2', '1')" in job.output

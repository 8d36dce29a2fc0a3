"""Sections and fed metrics, end to end: real jobs whose own timings say which rank is slow."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.series.streams import Sample, Series
from tests.integration.jobs import RunningJob
from tests.processes import HIDDEN, command_line
from tests.waiting import wait_until

Start = Callable[..., RunningJob]

THREE_NODES = ("--local-nodes=3", "--nodes=2", "--resilient", "--per-node")
ROUNDS_BEFORE = 20  # of each rank: more than its reference needs

# Two ranks on each node, of which every one waits for the slowest in each step, as in a collective. Their clock is the
# program's own, so that what a section takes does not depend on this machine.
STEPS = """
    import os, random, subprocess, sys, time
    from pathlib import Path

    if os.environ["LAGGARD_LAUNCH"] == "1":
        sys.exit(0)
    if "RANK" not in os.environ:
        first = 2 * int(os.environ["NODE_RANK"])
        ranks = [{"RANK": str(first + place), "LOCAL_RANK": str(place)} for place in (0, 1)]
        processes = [subprocess.Popen([sys.executable, __file__], env=os.environ | rank) for rank in ranks]
        sys.exit(max(process.wait() for process in processes))

    now_s = 0.0
    time.perf_counter = lambda: now_s
    import laggard

    def work(seconds):
        global now_s
        now_s += seconds * random.gauss(1, 0.002)

    is_slow_one = os.environ["RANK"] == "3"
    while True:
        is_slow = Path("slow").exists()
        with laggard.section("step"):
            with laggard.section("forward"):
                work(0.052 if is_slow and is_slow_one else 0.04)
            with laggard.section("all_reduce", waits=True):
                work(0.013 if is_slow and not is_slow_one else 0.001)
        time.sleep(0.02)
"""


def wait_for_readings(job: RunningJob, metric: str, each: int, launch: int = 0) -> None:
    """Wait until each of the four ranks has so many samples of a metric more than when the launch had just begun."""
    job.wait_for(f"launch +{launch} on ")
    wait_until(lambda: any(True for _ in ranks(job, launch)), job.everything)
    endpoint = Endpoint.load(Path(next(ranks(job, launch)).environ()["LAGGARD_ENDPOINT_FILE"]))
    with endpoint.connect() as client:
        series = Series(client, endpoint, launch)

        def counts() -> Counter[str]:
            return Counter(sample.tags["rank"] for _, sample in series.read(metric) if isinstance(sample, Sample))

        before = counts()
        wait_until(lambda: all(counts()[rank] >= before[rank] + each for rank in "0123"), job.everything)


def ranks(job: RunningJob, launch: int) -> Iterator[psutil.Process]:
    """Yield the program's processes on the first node."""
    for process in job.processes_of("node1"):
        with contextlib.suppress(*HIDDEN):
            if "program.py" in command_line(process) and process.environ().get("LAGGARD_LAUNCH") == str(launch):
                yield process


def test_a_rank_that_becomes_slow_in_a_section_is_named_and_its_node_replaced(start_job: Start, tmp_path: Path) -> None:
    options = ("--detect=sections", "--detect-interval=0.1", "--restart-cost=0")
    job = start_job(*THREE_NODES, *options, program=STEPS, directory=tmp_path)
    wait_for_readings(job, "section-time.forward", ROUNDS_BEFORE)
    (tmp_path / "slow").touch()
    assert job.finish() == 0, job.everything()
    job.wait_for(r"verdict +rank 3 on node2: \d\d(\.\d)? % slower than .*, in the section (forward|step)")
    assert "without node2; node3 comes in from the reserve" in job.account
    assert "launch    1 on node1, node3" in job.account
    assert re.findall(r"rank [0-2] on .* \((?:very )?slow\)", job.account) == []
    assert "all_reduce" not in job.account
    assert job.processes() == []

"""A ``SlowLinkDetector`` inside a Ray program: its collectors are placed on all nodes."""

from __future__ import annotations

from collections.abc import Callable

from tests.integration.jobs import RunningJob

# Ends once both directions of the one link have been measured.
PROGRAM = """
import time
import ray
from laggard import SlowLinkDetector, State
from laggard.collectors.links.collector import LinkReport
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.series.streams import Series

ray.init(logging_level="ERROR", log_to_driver=False)
session = current_session()
series = Series(session.client, session.endpoint, session.environment.launch)
links = set()
with SlowLinkDetector(collection_rate=1, state=State.current()):
    while len(links) < 2:
        for _, sample in series.read("links"):
            readings = LinkReport.of_tags(sample.tags).readings
            links |= {(each.sender, each.receiver) for each in readings}
        time.sleep(0.1)
print(sorted(links))
"""


def test_a_ray_program_may_have_a_detector_of_slow_links(start_job: Callable[..., RunningJob]) -> None:
    job = start_job("--local-nodes=2", "--virtual-gpus=1", program=PROGRAM)
    assert job.finish() == 0, job.everything()
    assert "[('node1', 'node2'), ('node2', 'node1')]" in job.output

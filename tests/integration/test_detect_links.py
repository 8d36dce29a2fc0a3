"""``--detect slow-link`` runs beside any program: the nodes probe their links, and report each round."""

from __future__ import annotations

from collections.abc import Callable

from tests.integration.jobs import RunningJob

Start = Callable[..., RunningJob]

WATCHED = ("--virtual-gpus=1", "--per-node", "--detect=slow-link", "--detect-interval=1")

# Ends once each node has reported two rounds of readings.
PROGRAM = """
import json, os, time
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.series.streams import Series

if os.environ["LAGGARD_NODE"] == "node1":
    session = current_session()
    series = Series(session.client, session.endpoint, session.environment.launch)
    links = set()
    while len(links) < 12:
        for _, sample in series.read("links"):
            readings, _, _ = json.loads(sample.tags["report"])
            links |= {(each["round"], each["sender"], each["receiver"]) for each in readings}
        time.sleep(0.1)
    print(sorted({(sender, receiver) for _, sender, receiver in links}))
"""


def test_the_nodes_of_a_program_without_ray_probe_their_links(start_job: Start) -> None:
    job = start_job(
        "--local-nodes=3",
        *WATCHED,
        program=PROGRAM,
    )
    assert job.finish() == 0, job.everything()
    nodes = ("node1", "node2", "node3")
    every_link = sorted((one, other) for one in nodes for other in nodes if one != other)
    assert str(every_link) in job.output
    assert "verdict" not in job.account


def test_a_job_without_devices_may_watch_its_links(start_job: Start) -> None:
    job = start_job("--local-nodes=2", "--per-node", "--detect=slow-link", "true")
    assert job.finish() == 0, job.everything()

"""``--detect slow-link`` runs beside any program: the nodes probe their links, and report each round."""

from __future__ import annotations

from collections.abc import Callable

from tests.integration.jobs import RunningJob

Start = Callable[..., RunningJob]

WATCHED = ("--virtual-gpus=1", "--per-node", "--detect=slow-link", "--detect-interval=1")


def test_a_job_without_devices_may_watch_its_links(start_job: Start) -> None:
    job = start_job("--local-nodes=2", "--per-node", "--detect=slow-link", "true")
    assert job.finish() == 0, job.everything()


# Ends once node1 has met node2 in five rounds in a row; of five nodes, the schedule alone has it do so in three.
AGAIN = """
import os, signal, time
from laggard.collectors.links.board import LinkBoard
from laggard.collectors.links.collector import LinkReport
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.control import Control
from laggard.kvstore.series.streams import Series

if os.environ["LAGGARD_NODE"] != "node1":
    signal.pause()
session = current_session()
board = LinkBoard(Control(session.client, session.endpoint, 0))
series = Series(session.client, session.endpoint, 0)
met = [False]
while not (len(met) >= 5 and all(met[-5:])):
    board.tell_terms(board.terms()[1], [("node1", "node2")])
    time.sleep(0.2)
    reports = [LinkReport.of_tags(sample.tags) for _, sample in series.read("links") if sample.tags["host"] == "node1"]
    met = ["node2" in {each.receiver for each in report.readings} | {*report.failures} for report in reports]
print("met again")
"""


def test_a_pair_that_the_detector_asks_for_meets_in_each_round(start_job: Start) -> None:
    job = start_job("--local-nodes=5", *WATCHED, program=AGAIN)
    job.wait_for("met again")

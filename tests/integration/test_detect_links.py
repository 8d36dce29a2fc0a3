"""``--detect slow-link`` runs beside any program: the nodes probe their links, and report each round."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.integration.jobs import RunningJob

Start = Callable[..., RunningJob]

# Ends once each node has reported two rounds of readings.
PROGRAM = """
import json, os, time
from laggard.kvstore.connection import current_session
from laggard.kvstore.series import Series

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
        "--virtual-gpus=1",
        "--per-node",
        "--detect=slow-link",
        "--detect-interval=1",
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


# Prints what the launch's nodes go by; the first launch tells what its links have shown, and asks for another.
LEAVES = """
import os, time
from laggard.kvstore.connection import current_session
from laggard.kvstore.control import Control

session = current_session()
control = Control(session.client, session.endpoint, session.environment.launch)
launch = control.read_launch()
if os.environ["LAGGARD_NODE"] == "node1":
    print(f"launch {launch.launch} with {dict(sorted(launch.leaves.items()))}", flush=True)
    if launch.launch == 0:
        control.tell_leaves({"node1": "of node1", "node2": "of node1", "elsewhere": "of node1"})
        control.ask("reboot", [])
while launch.launch == 0:
    time.sleep(0.1)
"""


def test_a_launch_goes_by_the_leaves_that_the_one_before_has_found(start_job: Start) -> None:
    options = ("--local-nodes=2", "--per-node", "--resilient", "--detect=slow-link")
    job = start_job(*options, program=LEAVES)
    assert job.finish() == 0, job.everything()
    assert "launch 0 with {}" in job.output
    assert "launch 1 with {'node1': 'of node1', 'node2': 'of node1'}" in job.output


def test_a_file_of_groups_says_more_than_what_was_found(start_job: Start, tmp_path: Path) -> None:
    groups = tmp_path / "groups.yaml"
    groups.write_text("node1: a\nnode2: b\n")
    options = ("--local-nodes=2", "--per-node", "--resilient", "--detect=slow-link", f"--groups={groups}")
    job = start_job(*options, program=LEAVES)
    assert job.finish() == 0, job.everything()
    for launch in (0, 1):
        assert f"launch {launch} with {{'node1': 'a', 'node2': 'b'}}" in job.output

"""Links between nodes in whole jobs, and ``--link-interface``: the network that is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.resilience.report.inputs import read_inputs
from tests.integration.test_detect_links import WATCHED, Start

# What each node has told the others.
ADDRESSES = """
from laggard.collectors.links.board import LinkBoard
from laggard.kvstore.control import Control
if os.environ["LAGGARD_NODE"] == "node1":
    control = Control(session.client, session.endpoint, session.environment.launch)
    print(sorted({address for address, _ in LinkBoard(control).terms()[0].values()}))
"""


def test_links_are_probed_on_the_interface_that_is_asked_for(start_job: Start) -> None:
    job = start_job(
        "--local-nodes=3",
        "--virtual-gpus=1",
        "--per-node",
        "--detect=slow-link",
        "--detect-interval=1",
        "--link-interface=nosuch,lo",
        program=PROGRAM + ADDRESSES,
    )
    assert job.finish() == 0, job.everything()
    assert "('node3', 'node1')" in job.output
    assert "['127.0.0.1']" in job.output  # the nodes' addresses in the job are others


def test_a_node_without_the_interface_says_what_it_has(start_job: Start) -> None:
    job = start_job(
        "--local-nodes=2",
        "--virtual-gpus=1",
        "--per-node",
        "--detect=slow-link",
        "--detect-interval=0.5",
        "--link-interface==nosuch",
        "sleep",
        "1000",
    )
    notice = r"links: no good reading from node1, node2 for three rounds: no network interface fits "
    job.wait_for(notice + r"--link-interface==nosuch: there are .*127\.0\.0\.1")


# Ends once telemetry has every link's time, the bytes of a transfer and the leaves.
UNTIL_TELEMETRY = """
import os, time
from laggard import AnalysisClient

if os.environ["LAGGARD_NODE"] == "node1":
    client = AnalysisClient()
    client.connect()
    while len(client.get_data("link.send_s")) < 6 or len(client.get_data("link.leaf_send_s")) < 5:
        time.sleep(0.1)
    print({each["metric"] for each in client.get_data("link.transfer_bytes")})
    print(sorted((each["tags"]["host"], each["tags"]["leaf"]) for each in client.get_data("link.leaf")))
    print(sorted((each["tags"]["leaf"], each["tags"]["peer_leaf"]) for each in client.get_data("link.leaf_send_s")))
"""


def test_people_find_the_links_in_telemetry_and_in_the_report(
    start_job: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAGGARD_REPORT", "1")
    (groups := tmp_path / "groups.yaml").write_text("node1: leaf1\nnode2: leaf1\nnode3: leaf2\n")
    job = start_job(
        "--local-nodes=3",
        *WATCHED,
        "--telemetry-level=1",
        f"--groups={groups}",
        "--report-dir=reports",
        program=UNTIL_TELEMETRY,
        directory=tmp_path,
    )
    assert job.finish() == 0, job.everything()
    assert "'link.transfer_bytes'" in job.output
    assert "[('node1', 'leaf1'), ('node2', 'leaf1'), ('node3', 'leaf2')]" in job.output
    within, apart = ("leaf1", "leaf1"), ("leaf1", "leaf2")
    assert str([within, within, apart, apart, apart[::-1]]) in job.output
    (record,) = (tmp_path / "reports").iterdir()
    links = read_inputs(record).links[0]
    assert links.names == ("node1", "node2", "node3")
    assert links.leaf_of == {"node1": "leaf1", "node2": "leaf1", "node3": "leaf2"}
    assert '"kind":"link"' in (record / "report.html").read_text()


# Prints what the launch's nodes go by, and what they report themselves; the first launch asks for another.
LEAVES = """
import os, signal, time
from laggard.collectors.links.collector import LinkReport
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.control import Control
from laggard.kvstore.series.streams import Series

session = current_session()
control = Control(session.client, session.endpoint, session.environment.launch)
launch = control.read_launch()
if os.environ["LAGGARD_NODE"] == "node1":
    print(f"launch {launch.launch} with {dict(sorted(launch.leaves.items()))}", flush=True)
    series, reported = Series(session.client, session.endpoint, launch.launch), {}
    while len(reported) < 2:
        reports = [(sample.tags["host"], LinkReport.of_tags(sample.tags)) for _, sample in series.read("links")]
        reported = {host: report.leaf for host, report in reports if report.launch == launch.launch}
        time.sleep(0.1)
    print(f"reported {dict(sorted(reported.items()))}", flush=True)
    if launch.launch == 0:
        control.ask("reboot", [])
if launch.launch == 0:
    signal.pause()
"""


def test_each_launch_goes_by_the_leaves_of_a_file_of_groups(start_job: Start, tmp_path: Path) -> None:
    groups = tmp_path / "groups.yaml"
    groups.write_text("node1: a\nnode2: b\n")
    job = start_job("--local-nodes=2", "--resilient", *WATCHED, f"--groups={groups}", program=LEAVES)
    assert job.finish() == 0, job.everything()
    for launch in (0, 1):
        assert f"launch {launch} with {{'node1': 'a', 'node2': 'b'}}" in job.output
    assert job.output.count("reported {'node1': 'a', 'node2': 'b'}") == 2


# Ends once each node has reported two rounds of readings.
PROGRAM = """
import os, time
from laggard.collectors.links.collector import LinkReport
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.series.streams import Series

if os.environ["LAGGARD_NODE"] == "node1":
    session = current_session()
    series = Series(session.client, session.endpoint, session.environment.launch)
    links = set()
    while len(links) < 12:
        for _, sample in series.read("links"):
            readings = LinkReport.of_tags(sample.tags).readings
            links |= {(each.round, each.sender, each.receiver) for each in readings}
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

"""``--link-interface``: the nodes listen and call on the network that is asked for."""

from __future__ import annotations

from tests.integration.test_detect_links import PROGRAM, Start

# What each node has told the others.
ADDRESSES = """
from laggard.collectors.links.board import LinkBoard
if os.environ["LAGGARD_NODE"] == "node1":
    print(sorted({address for address, _ in LinkBoard(session).terms()[0].values()}))
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

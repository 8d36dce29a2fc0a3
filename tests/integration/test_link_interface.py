"""``--link-interface``: a node says if the network that is asked for is not there."""

from __future__ import annotations

import io
import json

from laggard.collectors.links.check import main
from tests.integration.test_detect_links import Start


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


def test_the_doctor_is_told_that_a_node_has_no_such_interface() -> None:
    begin = {"host": "node1", "address": "127.0.0.1", "key": "00", "interface": "=nosuch"}
    answers = io.StringIO()
    main(io.StringIO(json.dumps(begin) + "\n"), answers)
    answer = json.loads(answers.getvalue())
    assert answer["links"] is None
    assert answer["failure"].startswith("no network interface fits --link-interface==nosuch: there are ")

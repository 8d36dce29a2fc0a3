"""``--link-interface``: the doctor says if the network that is asked for is not there."""

from __future__ import annotations

import io
import json

from laggard.collectors.links.check import main


def test_the_doctor_is_told_that_a_node_has_no_such_interface() -> None:
    begin = {"host": "node1", "address": "127.0.0.1", "key": "00", "interface": "=nosuch"}
    answers = io.StringIO()
    main(io.StringIO(json.dumps(begin) + "\n"), answers)
    answer = json.loads(answers.getvalue())
    assert answer["links"] is None
    assert answer["failure"].startswith("no network interface fits --link-interface==nosuch: there are ")

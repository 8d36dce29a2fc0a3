"""What a program's objects look like when they are printed."""

from __future__ import annotations

from laggard import Job, Verdict
from laggard.collectors.causes import Cause
from laggard.detectors.evidence import Slow
from laggard.detectors.verdict import Evidence
from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.control import NodeRecord
from laggard.kvstore.state.mapping import State


def node(name: str) -> NodeRecord:
    return NodeRecord(name, "127.0.0.2", ("0", "1"))


def test_a_job_shows_its_launch_and_its_nodes() -> None:
    job = Job(1, (node("node1"), node("node3")), (node("node4"),), ("node2",))
    assert repr(job) == "<Job: launch 1; on node1, node3; reserve node4; excluded node2>"
    assert repr(Job(0, (node("node1"),), ())) == "<Job: launch 0; on node1>"


def test_a_verdict_shows_its_sentence_and_what_it_asks_for() -> None:
    verdict = Verdict(
        "node2", "0", 1.3, "slow", Evidence("node2", "0", Slow(1.3, "peers", 3)), Cause("memory"), "restart"
    )
    assert repr(verdict) == (
        "<Verdict: node2 gpu 0: 30 % slower than its 3 peers (slow, likely cause: memory, action: restart)>"
    )


def test_state_shows_its_job_without_its_password() -> None:
    endpoint = Endpoint("127.0.0.1", 6390, "my-job", "secret")
    assert repr(State(endpoint.connect(), endpoint, 2)) == "<State of job my-job at 127.0.0.1:6390, launch 2>"

"""What is not believed: samples, counted and told once, and verdicts of processes that are no detectors."""

from __future__ import annotations

import pytest

from laggard.detectors import Verdict, wording
from laggard.detectors.evidence import Accused, Price, Reason, Slow, Weighed
from laggard.detectors.judging.refusals import Refusals
from laggard.detectors.notices import Failed, SamplesRefused
from laggard.detectors.verdict import Evidence
from laggard.kvstore.control import Request
from laggard.kvstore.series.streams import Refused, Why
from laggard.records import plain
from laggard.resilience.decision.verdicts import believed

WHY: Why = "not of the launch"


def test_what_is_refused_is_counted_for_an_interval_and_told_once() -> None:
    refusals = Refusals({"node1", "node2"}, 3.0)
    for number in range(40):
        refusals.add(Refused("node1", WHY, f"node1 gpu x{number}"), 10.0 + number / 20)
        refusals.add(Refused(f"invented{number}", WHY, "?"), 12.5)
    refusals.add(Refused("node1", "malformed", "hello"), 12.0)
    assert refusals.take_notices(12.9) == []
    assert refusals.take_notices(13.0) == [SamplesRefused("node1", WHY, "node1 gpu x0", 40)]
    refusals.add(Refused("node1", WHY, "node1 gpu y"), 13.0)
    assert refusals.take_notices(99.0) == [
        SamplesRefused("", WHY, "?", 40),
        SamplesRefused("node1", "malformed", "hello", 1),
    ]
    assert refusals.take_notices(999.0) == []


@pytest.mark.parametrize(
    ("notice", "text"),
    [
        (
            SamplesRefused("node2", "malformed", "a\x1b\n", 1),
            r"1 sample was refused from node2: 'a\x1b\n' is malformed",
        ),
        (
            SamplesRefused("", "too many", "rank 9", 2),
            "2 samples were refused: 'rank 9' is one name too many for a node",
        ),
        (
            SamplesRefused("node2", "of another node", "node1", 1234),
            "1,234 samples were refused from node2: a process is believed about its own node only, not about 'node1'",
        ),
        (Failed("look", "OSError: no"), "what is new could not be read: OSError: no"),
        (Failed("end", "MemoryError"), "nothing is judged any more: the detector has ended: MemoryError"),
    ],
)
def test_what_is_said_of_it(notice: SamplesRefused | Failed, text: str) -> None:
    assert wording.notice(notice) == text


def verdict_on(host: str) -> Verdict:
    return Verdict(host, None, 1.5, "slow", Evidence(host, None, Accused("made up", (host,))))


@pytest.mark.parametrize(
    ("node", "hosts"), [("node1", ["node1", "node2", "node3"]), ("node2", ["node2"]), ("node9", []), ("", [])]
)
def test_a_process_off_the_nodes_of_detectors_is_believed_about_its_own_node(node: str, hosts: list[str]) -> None:
    verdicts = [verdict_on(host) for host in ("node1", "node2", "node3")]
    found, doubt = believed(Request("verdicts", 0, [each.to_fields() for each in verdicts], node), {"node1"})
    assert found == [each for each in verdicts if each.host in hosts]
    assert bool(doubt) == (len(hosts) < 3)


UNSPEAKABLE = Weighed(Price(1.0), 1.0, 1.0, None, 1.0, Reason("busier"))  # its words need two numbers
MALFORMED = [
    None,
    3,
    "node1",
    {},
    {"host": 3},
    {**verdict_on("node1").to_fields(), "cause": 1},
    plain(Verdict("node1", "0", 1.5, "slow", Evidence("node1", "0", Slow(1.5, "peers"), weighed=UNSPEAKABLE))),
]


@pytest.mark.parametrize("fields", MALFORMED)
def test_a_malformed_verdict_costs_no_other(fields: object) -> None:
    good = verdict_on("node2")
    found, doubt = believed(Request("verdicts", 0, [fields, good.to_fields()], "node1"), {"node1"})
    assert found == [good]
    assert doubt.startswith("a verdict of a process on node1 is not valid: ")

"""What is made of the nodes' reports: verdicts with a cause, and how many bytes to send."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest

from laggard.collectors.links.collector import LinkReport, newest_due, stride_of
from laggard.collectors.links.prober import FIRST_BYTES, bytes_for
from laggard.collectors.links.reading import LinkReading
from laggard.collectors.links.schedule import Pair
from laggard.collectors.links.symptoms import LinkSymptoms
from laggard.collectors.probe_schedule import moment_s
from laggard.detectors import wording
from laggard.detectors.economics.restart_cost import RestartCost
from laggard.detectors.economics.restarts import Restarts
from laggard.detectors.judging.judge import Judge
from laggard.detectors.judging.link_readings import LinkReadings
from laggard.detectors.links.slow_link_analysis import SlowLinkAnalysis
from laggard.detectors.verdict import Verdict
from laggard.kvstore.control import LaunchRecord, NodeRecord

NODES = ("node1", "node2", "node3", "node4")
RATE = 125e6
FAST = LinkSymptoms("eth0", 100_000, "full")


class Job:
    """Four nodes whose rounds are judged."""

    def __init__(self, cost_s: float = 0.0) -> None:
        self.told: list[int] = []
        self.pairs: list[list[Pair]] = []
        self.n_bytes = FIRST_BYTES
        self.symptoms = dict.fromkeys(NODES, FAST)
        readings = LinkReadings(SlowLinkAnalysis(NODES, min_slowdown=1.1), self._tell, 0.0)
        self.judge = Judge(readings, Restarts(RestartCost(cost_s)))
        spare = NodeRecord("node5", "10.0.0.5", ())
        records = tuple(NodeRecord(name, "10.0.0.1", ()) for name in NODES)
        self.judge.begin(LaunchRecord(0, records, (spare,)), "run")
        self._round = 0

    def _tell(self, n_bytes: int, pairs: Sequence[Pair]) -> None:
        if n_bytes != self.n_bytes:
            self.told.append(n_bytes)
            self.n_bytes = n_bytes
        else:
            self.pairs.append([*pairs])

    def round(self, slow: dict[tuple[str, str], float], foreign: float = 0.0) -> list[Verdict]:
        """Judge a round in which some transfers took longer, by a factor."""
        self._round += 1
        for host in NODES:
            readings = [
                LinkReading(
                    self._round,
                    sender,
                    receiver,
                    slow.get((sender, receiver), 1.0) * self.n_bytes / RATE,
                    self.n_bytes,
                    foreign,
                )
                for sender, receiver in permutations(NODES, 2)
                if sender == host
            ]
            tags = LinkReport(tuple(readings), symptoms=self.symptoms[host]).tags(host)
            self.judge.note_device((host, ""), tags)
        return self.judge.judge({}, 30.0 * self._round)

    def until_verdict(self, slow: dict[tuple[str, str], float]) -> Verdict:
        """Judge rounds until there is a verdict."""
        for _ in range(30):
            if verdicts := self.round(slow):
                return verdicts[0]
        raise AssertionError("no verdict in 30 rounds")


def sends(node: str, slowdown: float) -> dict[tuple[str, str], float]:
    """Return the slow transfers of a node that sends slowly."""
    return {(node, other): slowdown for other in NODES if other != node}


def reading(sender: str = "node1", receiver: str = "node2", duration_s: float = 0.03, **others: float) -> LinkReading:
    return LinkReading(1, sender, receiver, duration_s, int(others.get("n_bytes", 1)), others.get("foreign_share", 0.0))


@pytest.mark.parametrize(
    "report",
    [
        LinkReport((reading(sender="node2", receiver="node1"),)),
        LinkReport((reading(), reading(receiver="node9"))),
        LinkReport((), {"node9": "no answer"}),
        LinkReport((reading(duration_s=0.0),)),
        LinkReport((reading(duration_s=1e9),)),
        LinkReport((reading(duration_s=float("nan")),)),
        LinkReport((reading(n_bytes=0),)),
        LinkReport((reading(foreign_share=-1.0),)),
        LinkReport((reading(foreign_share=1e58),)),
    ],
)
def test_a_report_of_anything_but_ones_own_links_is_refused(report: LinkReport) -> None:
    job = Job()
    job.judge.note_device(("node1", ""), LinkReport((reading(),), {"node3": "no answer"}).tags("node1"))
    with pytest.raises(ValueError, match="the report of node1 is not one of its own links"):
        job.judge.note_device(("node1", ""), report.tags("node1"))


def test_the_number_of_bytes_is_chosen_by_measurement() -> None:
    job = Job()
    job.round({})
    assert job.told == [4 << 20]
    job.round({})
    assert job.told == [4 << 20]


def test_the_number_of_bytes_stays_after_three_measurements_however_the_rate_changes() -> None:
    job = Job()
    for factor in (1.0, 0.25, 1.0, 0.25, 1.0):
        job.round(dict.fromkeys(permutations(NODES, 2), factor))
    assert job.told == [4 << 20, 16 << 20, 4 << 20]


@pytest.mark.parametrize(("bytes_per_s", "n_bytes"), [(1e3, 256 << 10), (125e6, 4 << 20), (1e12, 64 << 20)])
def test_a_transfer_takes_about_30_ms_within_bounds(bytes_per_s: float, n_bytes: int) -> None:
    assert bytes_for(bytes_per_s) == n_bytes


def test_a_slow_node_is_named_with_its_side_and_the_cause_and_a_restart_is_asked_for() -> None:
    job = Job()
    job.symptoms["node3"] = LinkSymptoms("eth0", 1000, "full")
    verdict = job.until_verdict(sends("node3", 9.8))
    assert (verdict.host, verdict.gpu, verdict.action, verdict.severity) == ("node3", None, "restart", "very slow")
    assert str(verdict.evidence).startswith("node3 sends 9.8 times as slow as its 3 peers")
    assert str(verdict.cause) == "link speed 1000 Mb/s where its peers have 100000"


def test_a_restart_waits_until_it_is_worth_its_cost() -> None:
    job = Job(cost_s=300.0)
    verdict = job.until_verdict(sends("node2", 2.0))
    assert verdict.action == "report"
    assert "45 s lost in 90 s; a restart costs 300 s (as given): not yet" in str(verdict.evidence)
    verdict = job.until_verdict(sends("node2", 2.0))
    assert (verdict.host, verdict.action) == ("node2", "restart")


def test_a_node_that_is_as_fast_as_others_again_is_well() -> None:
    job = Job(cost_s=1e6)
    job.until_verdict(sends("node2", 2.0))
    verdict = job.until_verdict({})
    assert (verdict.host, verdict.severity, verdict.action) == ("node2", "well again", "report")


def test_a_slow_pair_is_reported_and_accuses_neither() -> None:
    job = Job()
    pair = {("node1", "node4"): 5.0, ("node4", "node1"): 5.0}
    assert [verdict for _ in range(30) for verdict in job.round(pair)] == []
    notices = " ".join(map(wording.notice, job.judge.take_notices()))
    assert "node1 to node4" in notices or "node4 to node1" in notices


def test_the_nodes_are_told_which_pair_is_to_meet_in_each_round_until_it_is_known_to_be_slow() -> None:
    job = Job()
    for _ in range(20):
        job.round({})
    assert job.pairs == []
    for _ in range(10):
        job.round({("node1", "node4"): 5.0})
    assert job.pairs == [[("node1", "node4")], []]


def test_what_competes_for_the_wires_accuses_nobody_and_is_told() -> None:
    job = Job()
    job.round({})
    assert [verdict for _ in range(30) for verdict in job.round(sends("node2", 2.0), foreign=1.0)] == []
    assert any("other traffic on its NIC" in wording.notice(notice) for notice in job.judge.take_notices())


def test_a_slow_network_is_a_notice_and_accuses_nobody() -> None:
    job = Job()
    for _ in range(8):
        job.round({})
    slow = dict.fromkeys(permutations(NODES, 2), 4.0)
    assert [verdict for _ in range(8) for verdict in job.round(slow)] == []
    assert list(map(wording.notice, job.judge.take_notices())) == [
        "all links are 4.0 times as slow as before since 1970-01-01 00:04:30 UTC: what they share is at fault,"
        " such as an uplink"
    ]


def test_a_link_that_goes_down_again_and_again_is_a_notice_and_another_one_when_it_is_over() -> None:
    job = Job()
    for downs in (0, 4, 2, *[0] * 21):
        job.symptoms["node2"] = LinkSymptoms("eth0", 100_000, "full", {"carrier_down_count": downs})
        assert job.round({}) == []
    assert list(map(wording.notice, job.judge.take_notices())) == [
        "node2's link went down 4 times in 30 s",
        "node2's link has stayed up for 10 min: it went down 6 times in 60 s",
    ]


def test_a_node_that_was_held_up_takes_the_round_that_has_begun_and_no_older_one() -> None:
    at_s = {number: moment_s(number, 2.0, "seed") for number in range(100, 120)}
    assert newest_due(104, at_s[105] - 0.01, 2.0, "seed") == 105
    assert newest_due(104, at_s[105], 2.0, "seed") == 105
    assert newest_due(104, at_s[106] - 0.01, 2.0, "seed") == 105
    assert newest_due(104, at_s[110], 2.0, "seed") == 110
    assert newest_due(110, at_s[110], 2.0, "seed") == 111  # the one that has been run


def test_rounds_are_left_out_so_that_a_synchronous_job_loses_no_more_than_its_share() -> None:
    for interval_s, share in ((3.0, 0.005), (30.0, 0.005), (1.0, 0.25)):
        lost_s = 3 * 3 * 0.03
        assert lost_s <= share * stride_of(interval_s, share) * interval_s

"""SlowLinkAnalysis on small simulated jobs: who is accused, who is not, and what is said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import pytest

from benchmarks.link_model import FAULTLESS, Fault, LinkJob, Traffic
from benchmarks.links import play
from laggard.collectors.links.reading import LinkReading
from laggard.collectors.links.schedule import rounds_of
from laggard.detectors.link_verdict import LinkVerdict
from laggard.detectors.slow_link_analysis import SlowLinkAnalysis

LEARNED = 12  # rounds before a fault
SEEDS = range(2)
LOUD = Traffic(bursts=0.2, own=0.1)

Slow = Mapping[tuple[str, str], float]
"""By how much the transfers of a sender and a receiver are slower."""


def names(count: int) -> list[str]:
    return [f"node{number}" for number in range(count)]


def readings(
    nodes: Sequence[str],
    slow: Slow,
    leaves: Mapping[str, str] | None = None,
    foreign: Mapping[str, float] | None = None,
) -> Iterator[list[LinkReading]]:
    """Yield rounds without noise."""
    shares = foreign or {}
    for number, sub_rounds in enumerate(rounds_of(nodes, "train 0", leaves)):
        yield [
            LinkReading(
                number,
                *ends,
                0.034 * slow.get(ends, 1.0),
                2**22,
                3e-5,
                max(shares.get(end, 0.0) for end in ends),
            )
            for pairs in sub_rounds
            for pair in pairs
            for ends in (pair, pair[::-1])
        ]


def verdicts(
    nodes: Sequence[str],
    slow: Slow,
    leaves: Mapping[str, str] | None = None,
    foreign: Mapping[str, float] | None = None,
) -> list[LinkVerdict]:
    """Return what is said in 20 rounds after ones in which nothing was slow."""
    analysis = SlowLinkAnalysis(nodes, leaves)
    for one_round in islice(readings(nodes, {}, leaves), LEARNED):
        assert analysis.add_round(one_round) == []
    return [
        verdict for each in islice(readings(nodes, slow, leaves, foreign), 20) for verdict in analysis.add_round(each)
    ]


def all_from(node: str, nodes: Sequence[str], slowdown: float) -> dict[tuple[str, str], float]:
    return {(node, other): slowdown for other in nodes if other != node}


def all_to(node: str, nodes: Sequence[str], slowdown: float) -> dict[tuple[str, str], float]:
    return {(other, node): slowdown for other in nodes if other != node}


@pytest.mark.parametrize("count", [2, 3, 8, 64])
@pytest.mark.parametrize("side", ["sends", "receives"])
def test_a_node_30_percent_slow_one_way_is_named_within_6_rounds(count: int, side: str) -> None:
    fault = Fault("node", 1.3, side == "sends", side == "receives", LEARNED)
    for seed in SEEDS:
        outcome = play(count, fault, Traffic(), seed, LEARNED + 10)
        assert outcome.delay is not None
        assert outcome.delay <= 6
        assert outcome.restarts == outcome.reports == 0


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_a_node_10_percent_slow_is_named_within_24_rounds(count: int) -> None:
    outcomes = [play(count, Fault("node", 1.1, since=LEARNED), Traffic(), seed, LEARNED + 24) for seed in SEEDS]
    assert [outcome.delay is not None for outcome in outcomes] == [True] * len(SEEDS)


@pytest.mark.parametrize("count", [3, 8])
def test_a_bad_pair_is_named_within_30_rounds_and_neither_of_its_nodes(count: int) -> None:
    for seed in SEEDS:
        outcome = play(count, Fault("pair", 2.0, receives=True, since=LEARNED), Traffic(), seed, LEARNED + 30)
        assert outcome.delay is not None
        assert outcome.restarts == outcome.reports == 0


def test_a_slow_uplink_is_named_as_the_leaf_within_6_rounds_and_none_of_its_nodes() -> None:
    for seed in SEEDS:
        outcome = play(64, Fault("leaf", 1.3, since=LEARNED), Traffic(), seed, LEARNED + 10)
        assert outcome.delay is not None
        assert outcome.delay <= 6
        assert outcome.restarts == outcome.reports == 0


@pytest.mark.parametrize(("count", "rounds"), [(2, 100), (3, 100), (8, 100), (64, 50)])
def test_bursts_of_others_and_the_jobs_own_traffic_accuse_nobody(count: int, rounds: int) -> None:
    outcome = play(count, FAULTLESS, LOUD, 1, rounds)
    assert outcome.restarts == outcome.reports == 0


def test_a_slow_node_says_which_way_and_how_slow() -> None:
    nodes = names(16)
    [verdict] = verdicts(nodes, all_from("node7", nodes, 9.8))
    assert verdict == replace(verdict, kind="node", names=("node7",), side="sends", peers=15, restart=True)
    assert verdict.reason() == "node7 sends 9.8 times as slow as its 15 peers (to all its partners), 4 rounds"


def test_a_node_slow_both_ways_is_told_once() -> None:
    nodes = names(8)
    [verdict] = verdicts(nodes, all_from("node3", nodes, 1.5) | all_to("node3", nodes, 1.5))
    assert (verdict.names, verdict.side, verdict.restart) == (("node3",), "both", True)
    assert verdict.reason().startswith("node3 sends and receives 50 % slower than its 7 peers")


def test_of_two_nodes_the_link_and_its_direction_are_named_and_nobody_is_excluded() -> None:
    [verdict] = verdicts(names(2), {("node1", "node0"): 1.3})
    assert verdict == replace(verdict, kind="link", names=("node1", "node0"), side="", restart=False)
    assert verdict.reason() == (
        "node1 to node0: 30 % slower than before or the other way, 4 rounds; either end may be at fault"
    )


def test_bursts_on_most_transfers_of_a_round_hide_neither_the_link_of_two_nodes_nor_accuse_it() -> None:
    found = {}
    for slowdown in (1.0, 1.3):
        analysis = SlowLinkAnalysis(names(2))
        for one_round in islice(readings(names(2), {}), LEARNED):
            assert analysis.add_round(one_round) == []
        rounds = islice(readings(names(2), {("node1", "node0"): slowdown}), 20)
        disturbed = [
            [
                replace(each, duration_s=each.duration_s * (1.6 if each.sender == "node0" and place < 4 else 1))
                for place, each in enumerate(one_round)
            ]
            for one_round in rounds
        ]
        found[slowdown] = [verdict.names for each in disturbed for verdict in analysis.add_round(each)]
    assert found == {1.0: [], 1.3: [("node1", "node0")]}


def test_a_slow_node_is_named_though_each_round_has_bursts_on_most_of_its_transfers() -> None:
    nodes = names(8)
    analysis = SlowLinkAnalysis(nodes)
    for one_round in islice(readings(nodes, {}), LEARNED):
        assert analysis.add_round(one_round) == []
    found, had_burst = [], set[str]()
    for one_round in islice(readings(nodes, all_from("node2", nodes, 1.3)), 20):
        partners = [each.receiver for each in one_round if each.sender == "node2"]
        bursts = [partner for partner in partners if partner not in had_burst][:2]  # never twice running on a path
        had_burst = (had_burst - set(partners)) | set(bursts)
        disturbed = [
            replace(each, duration_s=each.duration_s * 1.6)
            if each.sender == "node2" and each.receiver in bursts
            else each
            for each in one_round
        ]
        found += analysis.add_round(disturbed)
    assert [(verdict.names, verdict.side) for verdict in found] == [(("node2",), "sends")]
    assert found[0].rounds <= 6


def test_a_bad_pair_is_told_once_with_both_directions() -> None:
    [verdict] = verdicts(names(8), {("node1", "node5"): 2.0, ("node5", "node1"): 2.0})
    assert (verdict.kind, set(verdict.names), verdict.side) == ("pair", {"node1", "node5"}, "both")
    assert not verdict.restart
    assert "and back: 100 % slower than the other transfers of both" in verdict.reason()


def test_two_slow_nodes_of_four_are_both_named() -> None:
    nodes = names(4)
    found = verdicts(nodes, all_from("node0", nodes, 2.0) | all_to("node3", nodes, 2.0))
    assert {(verdict.names[0], verdict.side) for verdict in found} == {("node0", "sends"), ("node3", "receives")}


def test_a_slow_leaf_is_told_before_a_slow_node() -> None:
    nodes = names(64)
    leaves = {node: f"leaf{number // 16}" for number, node in enumerate(nodes)}
    below = {node for node in nodes if leaves[node] == "leaf0"}
    uplink = {(one, other): 2.0 for one in below for other in nodes if other not in below}
    found = verdicts(nodes, uplink | all_to("node40", nodes, 4.0), leaves)
    assert [(verdict.kind, verdict.names, verdict.side) for verdict in found] == [
        ("leaf", ("leaf0",), "sends"),
        ("node", ("node40",), "receives"),
    ]
    assert found[0].reason().startswith("leaf leaf0 sends 100 % slower than its 3 peers")


def test_readings_with_more_than_5_percent_of_foreign_bytes_are_none() -> None:
    nodes = names(8)
    slow = all_from("node2", nodes, 2.0)
    assert verdicts(nodes, slow, foreign={"node2": 0.06}) == []
    assert [verdict.names for verdict in verdicts(nodes, slow, foreign={"node2": 0.05})] == [("node2",)]


def test_traffic_that_only_a_counter_of_what_is_sent_shows_accuses_nobody_of_receiving_slowly() -> None:
    nodes = names(4)
    slow = all_to("node2", nodes, 1.1)  # acknowledgements wait behind what node2 sends to somebody else
    analysis = SlowLinkAnalysis(nodes)

    def with_traffic(each: LinkReading) -> LinkReading:
        return replace(each, foreign_share=1.0) if each.sender == "node2" else each

    calm = islice(readings(nodes, {}), LEARNED)
    busy = ([with_traffic(each) for each in one] for one in islice(readings(nodes, slow), 20))

    assert [verdict for one in (*calm, *busy) for verdict in analysis.add_round(one)] == []
    assert [notice.partition(":")[0] for notice in analysis.take_notices()] == ["node2"]
    assert [(verdict.names, verdict.side) for verdict in verdicts(nodes, slow)] == [(("node2",), "receives")]


def test_three_rounds_of_other_traffic_on_a_nic_are_said_once() -> None:
    nodes = names(4)
    analysis = SlowLinkAnalysis(nodes)
    for number, each in enumerate(islice(readings(nodes, {}, foreign={"node2": 1.0}), 6)):
        analysis.add_round(each)
        expected = ["node2: other traffic on its NIC in 3 rounds in a row; its links are not judged meanwhile"]
        assert analysis.take_notices() == (expected if number == 2 else [])


def test_readings_of_unknown_nodes_and_impossible_times_are_left_out() -> None:
    nodes = names(3)
    analysis = SlowLinkAnalysis(nodes)
    broken = [
        LinkReading(0, "node0", "elsewhere", 0.03, 2**22, 3e-5, 0.0),
        LinkReading(0, "node0", "node1", 0.0, 2**22, 3e-5, 0.0),
        LinkReading(0, "node0", "node1", float("nan"), 2**22, 3e-5, 0.0),
        LinkReading(0, "node0", "node1", 0.03, 0, 3e-5, 0.0),
    ]
    assert analysis.add_round(broken) == []
    assert analysis.add_round([]) == []


def test_a_simulated_job_is_the_same_for_the_same_seed() -> None:
    times = [next(LinkJob(8, traffic=LOUD, seed=4).rounds(1)).log_time.tolist() for _ in range(2)]
    assert times[0] == times[1]


def test_a_budget_that_is_no_probability_is_refused() -> None:
    with pytest.raises(ValueError, match="budget must be a probability between 0 and 1, got 1"):
        SlowLinkAnalysis(names(3), budget=1.1)

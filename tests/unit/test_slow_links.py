"""SlowLinkAnalysis on small simulated jobs: who is accused, who is not, and what is said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count, islice

import numpy as np
import pytest

from laggard.collectors.links.reading import LinkReading
from laggard.collectors.links.schedule import Pair, rounds_of, with_pairs
from laggard.detectors import wording
from laggard.detectors.links.slow_link_analysis import SlowLinkAnalysis, link_of
from laggard.detectors.notices import LinkBusy
from laggard.detectors.verdict import Verdict

LEARNED = 12  # rounds before a fault
SEEDS = range(2)
LEAF_NODES = 16

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
    rounds = rounds_of(nodes, "train 0", leaves)
    for number, sub_rounds in enumerate(map(rounds, count())):
        yield exchanged(number, sub_rounds, slow, foreign)


def exchanged(
    number: int, sub_rounds: Sequence[Sequence[Pair]], slow: Slow, foreign: Mapping[str, float] | None = None
) -> list[LinkReading]:
    """Return what the pairs of a round measure."""
    shares = foreign or {}
    return [
        LinkReading(number, *ends, 0.034 * slow.get(ends, 1.0), 2**22, max(shares.get(end, 0.0) for end in ends))
        for pair in chain(*sub_rounds)
        for ends in (pair, pair[::-1])
    ]


def verdicts(
    nodes: Sequence[str],
    slow: Slow,
    leaves: Mapping[str, str] | None = None,
    foreign: Mapping[str, float] | None = None,
) -> list[Verdict]:
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


def leaves_of(nodes: Sequence[str]) -> dict[str, str] | None:
    return {node: f"leaf{number // LEAF_NODES}" for number, node in enumerate(nodes)} if len(nodes) > 16 else None


def noisy(one_round: list[LinkReading], random: np.random.Generator, noise: float = 0.02) -> list[LinkReading]:
    """Add noise to the best of three repeats."""
    factors = np.exp(random.normal(0, noise, (len(one_round), 3)).min(axis=1))
    return [
        replace(each, duration_s=each.duration_s * float(factor))
        for each, factor in zip(one_round, factors, strict=True)
    ]


def first_said(nodes: Sequence[str], slow: Slow, seed: int, rounds: int) -> tuple[int, list[Verdict]]:
    """Return after how many rounds with noise something is said first, from 1, and all that is said then."""
    random, leaves = np.random.default_rng(seed), leaves_of(nodes)
    analysis = SlowLinkAnalysis(nodes, leaves)
    for one_round in islice(readings(nodes, {}, leaves), LEARNED):
        assert analysis.add_round(noisy(one_round, random)) == []
    for number, one_round in enumerate(islice(readings(nodes, slow, leaves), rounds)):
        if found := analysis.add_round(noisy(one_round, random)):
            return number + 1, found
    return rounds + 1, []


@pytest.mark.parametrize("count", [3, 8, 64])
@pytest.mark.parametrize("side", ["sends", "receives"])
def test_a_node_30_percent_slow_one_way_is_named_within_6_rounds(count: int, side: str) -> None:
    nodes = names(count)
    slow = all_from("node0", nodes, 1.3) if side == "sends" else all_to("node0", nodes, 1.3)
    for seed in SEEDS:
        rounds, [verdict] = first_said(nodes, slow, seed, 10)
        assert (link_of(verdict).kind, link_of(verdict).names, link_of(verdict).side) == ("node", ("node0",), side)
        assert rounds <= 6


def test_of_two_nodes_the_slow_direction_is_named_within_6_rounds() -> None:
    for seed in SEEDS:
        rounds, [verdict] = first_said(names(2), {("node1", "node0"): 1.3}, seed, 10)
        assert (link_of(verdict).kind, link_of(verdict).names) == ("link", ("node1", "node0"))
        assert rounds <= 6


@pytest.mark.parametrize("count", [3, 4, 8])
def test_a_node_10_percent_slow_is_named_within_24_rounds(count: int) -> None:
    nodes = names(count)
    for seed in SEEDS:
        _, [verdict] = first_said(nodes, all_from("node0", nodes, 1.1), seed, 24)
        assert (link_of(verdict).kind, link_of(verdict).names, link_of(verdict).side) == ("node", ("node0",), "sends")


@pytest.mark.parametrize("count", [3, 8])
def test_a_bad_pair_is_named_within_30_rounds_and_neither_of_its_nodes(count: int) -> None:
    for seed in SEEDS:
        slow = {("node0", "node1"): 2.0, ("node1", "node0"): 2.0}
        _, [verdict] = first_said(names(count), slow, seed, 30)
        assert (link_of(verdict).kind, set(link_of(verdict).names)) == ("pair", {"node0", "node1"})


def test_a_slow_uplink_is_named_as_the_leaf_within_6_rounds_and_none_of_its_nodes() -> None:
    nodes = names(64)
    slow = {(one, other): 1.3 for one in nodes[:LEAF_NODES] for other in nodes[LEAF_NODES:]}
    for seed in SEEDS:
        rounds, [verdict] = first_said(nodes, slow, seed, 10)
        assert (link_of(verdict).kind, link_of(verdict).names, link_of(verdict).side) == ("leaf", ("leaf0",), "sends")
        assert rounds <= 6


@pytest.mark.parametrize(("count", "rounds"), [(2, 100), (3, 100), (8, 100), (64, 20)])
def test_bursts_of_others_and_the_jobs_own_traffic_accuse_nobody(count: int, rounds: int) -> None:
    random, nodes = np.random.default_rng(1), names(count)
    leaves = leaves_of(nodes)
    analysis = SlowLinkAnalysis(nodes, leaves)

    def disturbed(each: LinkReading) -> LinkReading:
        """Make a fifth of the transfers longer, unseen, and a tenth with traffic that counters show."""
        burst = 1 + random.uniform(0.1, 1.0) * (random.random() < 0.2)
        own = random.uniform(0.1, 1.0) * (random.random() < 0.1)
        return replace(each, duration_s=each.duration_s * burst * (1 + own), foreign_share=own)

    for one_round in islice(readings(nodes, {}, leaves), rounds):
        assert analysis.add_round([disturbed(each) for each in noisy(one_round, random)]) == []


@pytest.mark.parametrize(("slowdown", "accused"), [(1.06, []), (1.3, [("node0",)])])
def test_from_the_first_round_on_healthy_nodes_may_differ_as_chips_do(slowdown: float, accused: list[object]) -> None:
    nodes = names(3)
    analysis = SlowLinkAnalysis(nodes)
    rounds = islice(readings(nodes, all_from("node0", nodes, slowdown)), 20)
    assert [link_of(verdict).names for each in rounds for verdict in analysis.add_round(each)] == accused


def test_a_slow_node_says_which_way_and_how_slow() -> None:
    nodes = names(16)
    [verdict] = verdicts(nodes, all_from("node7", nodes, 9.8))
    link = link_of(verdict)
    assert link == replace(link, kind="node", names=("node7",), side="sends", n_peers=15)
    assert verdict.action == "restart"
    assert str(verdict.evidence) == "node7 sends 9.8 times as slow as its 15 peers (to all its partners), 4 rounds"


def test_a_node_slow_both_ways_is_told_once() -> None:
    nodes = names(8)
    [verdict] = verdicts(nodes, all_from("node3", nodes, 1.5) | all_to("node3", nodes, 1.5))
    assert (link_of(verdict).names, link_of(verdict).side, verdict.action) == (("node3",), "both", "restart")
    assert str(verdict.evidence).startswith("node3 sends and receives 50 % slower than its 7 peers")


def test_of_two_nodes_the_link_and_its_direction_are_named_and_nobody_is_excluded() -> None:
    [verdict] = verdicts(names(2), {("node1", "node0"): 1.3})
    link = link_of(verdict)
    assert link == replace(link, kind="link", names=("node1", "node0"), side="")
    assert verdict.action == "report"
    assert str(verdict.evidence) == (
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
        found[slowdown] = [link_of(verdict).names for each in disturbed for verdict in analysis.add_round(each)]
    assert found == {1.0: [], 1.3: [("node1", "node0")]}


def test_a_slow_node_is_named_though_each_round_has_bursts_on_most_of_its_transfers() -> None:
    nodes = names(8)
    analysis = SlowLinkAnalysis(nodes)
    for one_round in islice(readings(nodes, {}), LEARNED):
        assert analysis.add_round(one_round) == []
    found, had_spike = [], set[str]()
    for one_round in islice(readings(nodes, all_from("node2", nodes, 1.3)), 20):
        partners = [each.receiver for each in one_round if each.sender == "node2"]
        bursts = [partner for partner in partners if partner not in had_spike][:2]  # never twice running on a path
        had_spike = (had_spike - set(partners)) | set(bursts)
        disturbed = [
            replace(each, duration_s=each.duration_s * 1.6)
            if each.sender == "node2" and each.receiver in bursts
            else each
            for each in one_round
        ]
        found += analysis.add_round(disturbed)
    assert [(link_of(verdict).names, link_of(verdict).side) for verdict in found] == [(("node2",), "sends")]
    assert link_of(found[0]).rounds <= 6


def test_a_bad_pair_is_told_once_with_both_directions() -> None:
    [verdict] = verdicts(names(8), {("node1", "node5"): 2.0, ("node5", "node1"): 2.0})
    assert (link_of(verdict).kind, set(link_of(verdict).names), link_of(verdict).side) == (
        "pair",
        {"node1", "node5"},
        "both",
    )
    assert verdict.action == "report"
    assert "and back: 100 % slower than the other transfers of both" in str(verdict.evidence)


def test_two_slow_nodes_of_four_are_both_named() -> None:
    nodes = names(4)
    found = verdicts(nodes, all_from("node0", nodes, 2.0) | all_to("node3", nodes, 2.0))
    assert {(link_of(verdict).names[0], link_of(verdict).side) for verdict in found} == {
        ("node0", "sends"),
        ("node3", "receives"),
    }


@pytest.mark.parametrize(("first", "then"), [(1.3, 1.3), (1.3, 2.0), (2.0, 1.3), (1.5, 9.0)])
@pytest.mark.parametrize("alone", [0, 20])
def test_both_links_of_one_of_three_nodes_are_its_own_however_slow_each_is_and_since_when(
    first: float, then: float, alone: int
) -> None:
    """With three nodes, nothing tells whether the node is slow or both of its links are."""
    one = {("node0", "node1"): first, ("node1", "node0"): first}
    both = one | {("node0", "node2"): then, ("node2", "node0"): then}
    for seed in SEEDS:
        random, analysis, found = np.random.default_rng(seed), SlowLinkAnalysis(names(3)), list[Verdict]()
        for slow, rounds in (({}, 20), (one, alone), (both, 20)):
            for one_round in islice(readings(names(3), slow), rounds):
                found += analysis.add_round(noisy(one_round, random))
        told = [link_of(verdict) for verdict in found]
        assert {frozenset(link.names) for link in told if link.kind == "pair"} <= {
            frozenset({"node0", "node1"}),
            frozenset({"node0", "node2"}),
        }
        assert [(link.names, link.side) for link in told if link.kind == "node"][-1:] == [(("node0",), "both")]
        assert {link.names for link in told if link.kind == "node"} == {("node0",)}


def test_much_noise_does_not_hide_that_the_other_link_of_a_node_of_three_has_become_as_slow() -> None:
    nodes = names(3)
    one = {("node0", "node1"): 1.3, ("node1", "node0"): 1.3}
    both = one | {("node0", "node2"): 1.3, ("node2", "node0"): 1.3}
    for seed in range(4):
        random, analysis, found = np.random.default_rng(seed), SlowLinkAnalysis(nodes), list[Verdict]()
        for slow, rounds in (({}, 40), (one, 40), (both, 60)):
            for one_round in islice(readings(nodes, slow), rounds):
                found += analysis.add_round(noisy(one_round, random, 0.12))
        assert "node0" in [link_of(verdict).names[0] for verdict in found if link_of(verdict).kind == "node"]


@pytest.mark.parametrize(
    ("slowdowns", "told"),
    [((1.12,), []), ((1.3,), ["node0"]), ((1.12, 1.3), ["node0"]), ((1.12, 1.0, 1.3), ["node0"])],
)
def test_the_last_good_path_of_a_node_accuses_it_only_if_that_is_as_slow_as_a_bad_one(
    slowdowns: Sequence[float], told: list[str]
) -> None:
    bad, nodes = {("node0", "node1"): 3.0, ("node1", "node0"): 3.0}, names(3)
    slow = [bad | {("node0", "node2"): slowdown, ("node2", "node0"): slowdown} for slowdown in slowdowns]
    analysis, found = SlowLinkAnalysis(nodes), list[Verdict]()
    for each, rounds in (({}, 20), (bad, 20), *((each, 25) for each in slow)):
        found += [verdict for one in islice(readings(nodes, each), rounds) for verdict in analysis.add_round(one)]
    assert [verdict.host for verdict in found if link_of(verdict).kind == "node"] == told
    assert not told or found[-1].slowdown > 1.15  # not as it was when held back


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_node_whose_verdict_was_held_back_is_told_once_it_has_two_good_paths_and_is_still_slow(
    goes_on: bool,
) -> None:
    bad, nodes = {("node0", "node1"): 3.0, ("node1", "node0"): 3.0}, names(3)
    held, then = bad | {("node0", "node2"): 1.12}, all_from("node0", nodes, 1.12) if goes_on else {}
    analysis, found = SlowLinkAnalysis(nodes), list[list[Verdict]]()
    for each, rounds in (({}, 20), (bad, 20), (held, 25), (then, 25)):
        found.append([verdict for one in islice(readings(nodes, each), rounds) for verdict in analysis.add_round(one)])
    assert [len(told) for told in found] == [0, 1, 0, int(goes_on)]  # the pair first
    assert all((verdict.host, link_of(verdict).side) == ("node0", "sends") for verdict in found[-1])


def test_a_node_below_a_slow_uplink_is_not_accused_though_its_only_near_path_is_bad() -> None:
    nodes = names(8)
    leaves = {node: f"leaf{number // 2}" for number, node in enumerate(nodes)}
    near = {("node0", "node1"): 2.0, ("node1", "node0"): 2.0}
    uplink = {(node, other): 1.3 for node in nodes[:2] for other in nodes[2:]}
    analysis, found = SlowLinkAnalysis(nodes, leaves), list[Verdict]()
    for slow, rounds in (({}, 20), (near, 20), (near | uplink, 20)):
        for one_round in islice(readings(nodes, slow, leaves), rounds):
            found += analysis.add_round(one_round)
    assert [link_of(verdict).kind for verdict in found] == ["pair", "leaf"]


def test_when_the_bad_path_of_one_of_three_nodes_is_well_again_nobody_is_accused() -> None:
    bad, nodes = {("node0", "node1"): 2.0, ("node1", "node0"): 2.0}, names(3)
    for seed in SEEDS:
        random, analysis, found = np.random.default_rng(seed), SlowLinkAnalysis(nodes), list[Verdict]()
        for slow in (bad, {}, bad, {}):
            for one_round in islice(readings(nodes, slow), 40):
                found += analysis.add_round(noisy(one_round, random))
        assert {link_of(verdict).names for verdict in found} <= {("node0", "node1"), ("node1", "node0")}


def test_of_a_node_that_is_slow_both_ways_the_worse_one_counts_until_both_are_well() -> None:
    nodes, analysis = names(8), SlowLinkAnalysis(names(8))
    slow = all_from("node0", nodes, 1.3) | all_to("node0", nodes, 2.0)
    for each in ({}, slow):
        for one_round in islice(readings(nodes, each), LEARNED):
            analysis.add_round(one_round)
    episode = analysis.episode("node0")
    assert episode is not None
    assert episode.slowdown == pytest.approx(2.0, rel=0.01)
    assert analysis.episode("node1") is None
    for one_round in islice(readings(nodes, {}), 20):
        analysis.add_round(one_round)
    assert analysis.episode("node0") is None


@pytest.mark.parametrize(("onset", "share"), [(20, 1.0), (60, 0.6)], ids=["before most have a past", "after that"])
def test_a_pair_is_met_in_each_round_once_it_is_suspected_and_until_it_is_told(onset: int, share: float) -> None:
    nodes, slow = names(16), {("node0", "node1"): 2.0, ("node1", "node0"): 2.0}
    rounds, delays = rounds_of(nodes, "train 0"), []
    for meets_again in (False, True):
        analysis, asked, found = SlowLinkAnalysis(nodes), list[list[Pair]](), list[Verdict]()
        for number in range(onset + 40):
            pairs = analysis.pairs_to_meet() if meets_again else []
            sub_rounds = with_pairs(rounds(number), pairs)
            found += analysis.add_round(exchanged(number, sub_rounds, slow if number >= onset else {}))
            asked.append(pairs)
            if found:
                break
        assert [set(link_of(each).names) for each in found] == [{"node0", "node1"}]
        assert analysis.pairs_to_meet() == []
        delays.append(number - onset + 1)
    by_schedule, again = delays
    assert again <= share * by_schedule
    assert not any(asked[:35])  # no pair has met eight times by then
    assert asked[-1] == [("node0", "node1")]


def test_no_more_than_one_pair_for_each_eight_nodes_is_met_out_of_its_turn() -> None:
    nodes, analysis = names(16), SlowLinkAnalysis(names(16))
    slow = {(f"node{number}", f"node{number + 8}"): 2.0 for number in range(8)}
    asked = 0
    for each, rounds in (({}, 60), (slow, 20)):
        for one_round in islice(readings(nodes, each), rounds):
            analysis.add_round(one_round)
            asked = max(asked, len(analysis.pairs_to_meet()))
    assert asked == 2


@pytest.mark.parametrize("count", [3, 8])
def test_a_slow_node_stays_slow_however_few_others_there_are_to_compare_with(count: int) -> None:
    nodes = names(count)
    slow = all_from("node0", nodes, 1.5) | all_to("node0", nodes, 1.5)
    for seed in SEEDS:
        random, analysis, found = np.random.default_rng(seed), SlowLinkAnalysis(nodes), list[Verdict]()
        for each, rounds in (({}, 20), (slow, 100)):
            for one_round in islice(readings(nodes, each), rounds):
                found += analysis.add_round(noisy(one_round, random))
                episode = analysis.episode("node0")
                assert not found or (episode is not None and episode.slowdown > 1.3)
        assert [verdict.host for verdict in found] == ["node0"]


def test_a_node_that_is_well_again_counts_again() -> None:
    nodes, analysis, found = names(3), SlowLinkAnalysis(names(3)), []
    slow = all_from("node0", nodes, 2.0)
    for each, rounds in (({}, LEARNED), (slow, 20), ({}, 60), (all_to("node2", nodes, 2.0), 20)):
        found += [told for one in islice(readings(nodes, each), rounds) for told in analysis.add_round(one)]
    assert [(link_of(each).names, link_of(each).side) for each in found] == [
        (("node0",), "sends"),
        (("node2",), "receives"),
    ]


def test_a_slow_leaf_is_told_before_a_slow_node() -> None:
    nodes = names(64)
    leaves = {node: f"leaf{number // 16}" for number, node in enumerate(nodes)}
    below = {node for node in nodes if leaves[node] == "leaf0"}
    uplink = {(one, other): 2.0 for one in below for other in nodes if other not in below}
    found = verdicts(nodes, uplink | all_to("node40", nodes, 4.0), leaves)
    assert [(link_of(verdict).kind, link_of(verdict).names, link_of(verdict).side) for verdict in found] == [
        ("leaf", ("leaf0",), "sends"),
        ("node", ("node40",), "receives"),
    ]
    assert str(found[0].evidence).startswith("leaf leaf0 sends 100 % slower than its 3 peers")


def test_readings_with_more_than_5_percent_of_foreign_bytes_are_none() -> None:
    nodes = names(8)
    slow = all_from("node2", nodes, 2.0)
    assert verdicts(nodes, slow, foreign={"node2": 0.06}) == []
    assert [link_of(verdict).names for verdict in verdicts(nodes, slow, foreign={"node2": 0.05})] == [("node2",)]


def test_traffic_that_only_a_counter_of_what_is_sent_shows_accuses_nobody_of_receiving_slowly() -> None:
    nodes = names(4)
    slow = all_to("node2", nodes, 1.1)  # acknowledgements wait behind what node2 sends to somebody else
    analysis = SlowLinkAnalysis(nodes)

    def with_traffic(each: LinkReading) -> LinkReading:
        return replace(each, foreign_share=1.0) if each.sender == "node2" else each

    calm = islice(readings(nodes, {}), LEARNED)
    busy = ([with_traffic(each) for each in one] for one in islice(readings(nodes, slow), 20))

    assert [verdict for one in (*calm, *busy) for verdict in analysis.add_round(one)] == []
    assert analysis.take_notices() == [LinkBusy("node2", 3)]
    assert [(link_of(verdict).names, link_of(verdict).side) for verdict in verdicts(nodes, slow)] == [
        (("node2",), "receives")
    ]


def test_three_rounds_of_other_traffic_on_a_nic_are_said_once() -> None:
    nodes = names(4)
    analysis = SlowLinkAnalysis(nodes)
    for number, each in enumerate(islice(readings(nodes, {}, foreign={"node2": 1.0}), 6)):
        analysis.add_round(each)
        words = ["node2: other traffic on its NIC in 3 rounds in a row; its links are not judged meanwhile"]
        assert list(map(wording.notice, analysis.take_notices())) == (words if number == 2 else [])


def test_readings_of_unknown_nodes_and_impossible_times_are_left_out() -> None:
    nodes = names(3)
    analysis = SlowLinkAnalysis(nodes)
    broken = [
        LinkReading(0, "node0", "elsewhere", 0.03, 2**22, 0.0),
        LinkReading(0, "node0", "node1", 0.0, 2**22, 0.0),
        LinkReading(0, "node0", "node1", float("nan"), 2**22, 0.0),
        LinkReading(0, "node0", "node1", 0.03, 0, 0.0),
    ]
    assert analysis.add_round(broken) == []
    assert analysis.add_round([]) == []


@pytest.mark.parametrize("budget", [-0.1, 0.0, 1.0, 1.1])
def test_a_budget_that_is_no_probability_is_refused(budget: float) -> None:
    with pytest.raises(ValueError, match=f"budget must be a probability between 0 and 1, got {budget}"):
        SlowLinkAnalysis(names(3), budget=budget)

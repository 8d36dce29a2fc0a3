"""What links share: the whole network, or what joins two halves of the nodes, without knowing the leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain

import numpy as np
import pytest
from numpy.typing import NDArray

from laggard.collectors.links.schedule import rounds_of
from laggard.detectors.links.flows import Flows
from laggard.detectors.links.slow_link_analysis import SlowLinkAnalysis, link_of
from laggard.detectors.notices import LinksSlower
from laggard.detectors.verdict import Verdict

ROUND_S = 84.0
ONSET, OVER = 20, 40
Numbers = NDArray[np.intp]
Which = Callable[[Numbers, Numbers], NDArray[np.bool_]]
"""Which transfers are slow, given the numbers of their senders and receivers."""


def network(sender: Numbers, receiver: Numbers) -> NDArray[np.bool_]:
    return np.asarray(sender != receiver)


def uplink(below: int) -> Which:
    """Return the transfers between the first nodes and the others."""
    return lambda sender, receiver: np.asarray((sender < below) != (receiver < below))


class Job:
    """A job whose nodes probe each other: 1 % between nodes, 2 % of noise, perhaps bursts and NICs that are busy."""

    def __init__(
        self, count: int, which: Which = network, ratio: float = 1.0, seed: int = 0, bursts: float = 0.0
    ) -> None:
        self.nodes = [f"node{number}" for number in range(count)]
        self.leaves: Mapping[str, str] | None = None
        self._which, self._ratio, self._bursts = which, ratio, bursts
        self._random = np.random.default_rng(seed)
        self._usual = self._random.normal(0, 0.01, (count, count))

    def flows(self, number: int, sender: Numbers, receiver: Numbers) -> Flows:
        noise = self._random.normal(0, 0.02, (3, len(sender))).min(axis=0)
        is_hit = self._random.random(len(sender)) < self._bursts
        log_time = self._usual[sender, receiver] + noise + is_hit * self._random.uniform(0.1, 0.7, len(sender))
        if ONSET <= number < OVER:
            log_time = log_time + np.log(self._ratio) * self._which(sender, receiver)
        is_busy = self._random.random(len(self.nodes)) < self._bursts / 2
        foreign = np.where(is_busy[sender] | is_busy[receiver], 0.5, 0.0)
        return Flows(sender, receiver, log_time.astype(np.float32), foreign.astype(np.float32))

    def play(self, rounds: int, min_slowdown: float = 1.05) -> tuple[list[tuple[int, LinksSlower]], list[Verdict]]:
        """Return what is told of many links and in which round, and of single ones."""
        analysis = SlowLinkAnalysis(self.nodes, self.leaves, min_slowdown=min_slowdown)
        number_of = {node: number for number, node in enumerate(self.nodes)}
        told, verdicts = [], list[Verdict]()
        for number, sub_rounds in enumerate(map(rounds_of(self.nodes, "job", self.leaves), range(rounds))):
            ends = np.array([[number_of[node] for node in pair] for pair in chain(*sub_rounds)], np.intp).T
            sender, receiver = np.concatenate([ends, ends[::-1]], axis=1)
            verdicts += analysis.add_flows(self.flows(number, sender, receiver), ROUND_S * number)
            told += [(number, each) for each in analysis.take_notices() if isinstance(each, LinksSlower)]
        return told, verdicts


@pytest.mark.parametrize("slowdown", [1.3, 3.0])
@pytest.mark.parametrize("count", [3, 4, 8, 16, 64])
def test_a_slow_network_is_one_notice_with_size_and_moment_and_another_one_when_it_is_over(
    count: int, slowdown: float
) -> None:
    told, verdicts = Job(count, network, slowdown).play(60)
    assert verdicts == []
    [(begun, slower), (ended, over)] = told
    assert (begun, ended) == (ONSET + 4, OVER + 4)
    assert slower.sides == over.sides == ()
    assert (slower.shift.since_s, slower.shift.is_over) == (ONSET * ROUND_S, False)
    assert (over.shift.over_s, over.shift.is_over) == (OVER * ROUND_S, True)
    assert slower.shift.ratio == over.shift.ratio == pytest.approx(slowdown, rel=0.05)


@pytest.mark.parametrize("slowdown", [1.3, 3.0])
@pytest.mark.parametrize(("count", "below"), [(4, 2), (8, 4), (16, 8), (64, 32), (64, 16)])
def test_a_slow_uplink_of_unknown_leaves_is_one_notice_and_blames_nobody(
    count: int, below: int, slowdown: float
) -> None:
    job = Job(count, uplink(below), slowdown)
    told, verdicts = job.play(60)
    assert verdicts == []
    [(begun, slower), (_, over)] = told
    assert set(slower.sides) == set(over.sides) == {tuple(job.nodes[:below]), tuple(job.nodes[below:])}
    assert (begun, slower.shift.since_s) == (ONSET + 4, ONSET * ROUND_S)
    assert slower.shift.ratio == pytest.approx(slowdown, rel=0.05)
    assert (over.shift.over_s, over.shift.is_over) == (OVER * ROUND_S, True)


def test_an_uplink_that_is_slow_one_way_is_found_too() -> None:
    told, verdicts = Job(8, lambda sender, receiver: (sender < 4) & (receiver >= 4), 3.0).play(OVER)
    assert verdicts == []
    [(_, slower)] = told
    assert len(slower.sides) == 2
    assert slower.shift.ratio == pytest.approx(3.0, rel=0.05)


def test_slow_links_between_three_leaves_are_one_notice() -> None:
    told, verdicts = Job(12, lambda sender, receiver: sender // 4 != receiver // 4, 2.0).play(OVER)
    assert verdicts == []
    [(_, slower)] = told
    assert sorted(map(len, slower.sides)) == [4, 4, 4]


def test_a_slow_uplink_that_is_hidden_by_bursts_and_busy_nics_is_found_within_fifteen_rounds() -> None:
    for seed in range(4):
        job = Job(8, uplink(4), 3.0, seed, bursts=0.2)
        told, verdicts = job.play(OVER)
        assert verdicts == []
        [(number, slower)] = told
        one, other = sorted(map(set, slower.sides), key=min)
        assert one <= set(job.nodes[:4])
        assert other <= set(job.nodes[4:])
        assert min(len(one), len(other)) >= 3
        assert number < ONSET + 15


@pytest.mark.parametrize("count", [4, 5, 8, 16, 64])
@pytest.mark.parametrize(
    "which",
    [
        lambda sender, receiver: (sender == 0) & (receiver > 0),
        lambda sender, receiver: (sender == 0) | (receiver == 0),
        lambda sender, receiver: np.minimum(sender, receiver) + 2 == np.maximum(sender, receiver) * (sender < 2),
    ],
    ids=["sends", "sends and receives", "a pair"],
)
def test_a_single_slow_node_or_pair_is_not_called_shared(count: int, which: Which) -> None:
    told, verdicts = Job(count, which, 3.0).play(60)
    assert told == []
    assert {link_of(verdict).names[0] for verdict in verdicts if link_of(verdict).kind == "node"} <= {"node0"}


def test_two_slow_nodes_are_accused_and_nothing_is_called_shared() -> None:
    told, verdicts = Job(8, lambda sender, receiver: (sender < 2) | (receiver < 2), 3.0).play(OVER)
    assert told == []
    assert {verdict.host for verdict in verdicts} == {"node0", "node1"}


def test_a_known_leaf_is_judged_by_itself_and_not_called_shared() -> None:
    job = Job(64, lambda sender, receiver: (sender < 16) & (receiver >= 16), 3.0)
    job.leaves = {node: f"leaf{number // 16}" for number, node in enumerate(job.nodes)}
    told, verdicts = job.play(OVER)
    assert told == []
    assert [(link_of(verdict).kind, link_of(verdict).names) for verdict in verdicts] == [("leaf", ("leaf0",))]


def test_what_joins_two_known_leaves_is_called_shared_since_neither_is_judged_by_itself() -> None:
    job = Job(8, uplink(4), 3.0)
    job.leaves = {node: f"leaf{number // 4}" for number, node in enumerate(job.nodes)}
    told, verdicts = job.play(OVER)
    assert verdicts == []
    assert [len(slower.sides) for _, slower in told] == [2]


@pytest.mark.parametrize("bursts", [0.0, 0.2], ids=["quiet", "bursts and busy NICs"])
@pytest.mark.parametrize(("count", "rounds"), [(3, 1000), (4, 1000), (16, 200), (64, 50)])
def test_in_a_healthy_job_nothing_is_called_shared(count: int, rounds: int, bursts: float) -> None:
    assert Job(count, bursts=bursts).play(rounds)[0] == []


def test_what_matters_less_than_the_smallest_slowdown_is_not_told() -> None:
    assert Job(4, network, 1.3).play(OVER, min_slowdown=1.5)[0] == []


def test_of_two_nodes_the_only_link_is_judged_by_itself() -> None:
    assert Job(2, network, 3.0).play(OVER)[0] == []

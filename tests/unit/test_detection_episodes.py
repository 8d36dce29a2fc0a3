"""What the evidence against a device amounts to: its slow episode, slowness at times, and its verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from laggard.collectors.links.reading import LinkReading
from laggard.detectors.economics.episode import Episode
from laggard.detectors.evidence import Reference, Slow
from laggard.detectors.links.episodes import LinkEpisodes
from laggard.detectors.statistics.device_index import DeviceIndex
from laggard.detectors.statistics.episodes import episode_at
from laggard.detectors.statistics.estimates import onset_weight
from laggard.detectors.statistics.findings import merged_by_node, rank_of, verdict_of
from laggard.detectors.statistics.grouping import Grouping
from laggard.detectors.statistics.history import PEER, REPORT, RESTART, SELF, History
from laggard.detectors.statistics.intermittent import accumulate_intermittent, typical_rate
from laggard.detectors.statistics.new_verdicts import NewVerdicts
from laggard.detectors.verdict import Action, Severity, Verdict

BUDGET = 0.01  # evidence of 100 is certain
NAN = math.nan


def floats(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def about(value: Any, rel: float = 1e-6) -> Any:
    """Return what equals a value but for rounding."""
    return pytest.approx(value, rel=rel)


def together(count: int) -> Grouping:
    return Grouping(np.zeros(count, np.int32))


# -- slow episodes -----------------------------------------------------------------------------------------------------


def slow_for(rounds: int, *last: float, baseline: float = 0.0) -> History:
    """Return the history of one device that has been slow for some rounds; its last residuals, the newest last."""
    history = History.empty(1)
    history.baseline[:], history.since_s[:], history.rounds[:] = baseline, 500.0, rounds
    history.seen[:] = len(last)
    history.recent[: len(last), 0] = last
    return history


def test_a_device_that_is_not_slow_is_in_no_episode() -> None:
    assert episode_at(0, slow_for(0, 0.3), together(1), floats(0.0)) is None
    assert episode_at(0, slow_for(1, NAN), together(1), floats(0.0)) is None


@pytest.mark.parametrize(
    ("baseline", "typical", "by_peers", "slowdown"),
    [
        (0.0, 0.0, 0.0, 1.3),
        (0.0, 0.1, 0.0, 1.3 / math.exp(0.1)),  # a typical device would be no faster than that
        (0.0, -0.1, 0.0, 1.3),  # its own past was less than typical
        (0.0, -0.1, 0.99, 1.3),
        (0.0, -0.1, 1.0, 1.3 * math.exp(0.1)),  # its peers accuse it as well
        (0.2, 0.2, 1.0, 1.3),
        (NAN, -0.1, 0.0, 1.3 * math.exp(0.1)),  # it has no past
    ],
)
def test_a_device_is_as_slow_as_beside_its_past_and_beside_what_would_take_its_place(
    baseline: float, typical: float, by_peers: float, slowdown: float
) -> None:
    history = slow_for(1, math.log(1.3), baseline=baseline)
    history.evidence[PEER, RESTART, 0] = by_peers
    found = episode_at(0, history, together(1), floats(typical))
    assert found is not None
    assert (found.since_s, found.slowdown) == (500.0, about(slowdown, rel=1e-5))
    assert found.share_lost == about(1 - 1 / slowdown, rel=1e-5)


@pytest.mark.parametrize(
    ("rounds", "run", "costly_part"), [(4, 0, 1.0), (16, 0, 0.25), (16, 4, 0.25), (16, 8, 0.5), (16, 200, 1.0)]
)
def test_what_is_known_of_the_last_rounds_or_of_the_present_run_is_all_that_cost_anything(
    rounds: int, run: int, costly_part: float
) -> None:
    history = slow_for(rounds, *[math.log(2)] * 4)
    history.run[PEER, RESTART, 0] = run
    assert episode_at(0, history, together(1), floats(0.0)) == Episode(500.0, about(2.0), about(0.5), costly_part)


def test_rounds_in_which_the_device_was_faster_than_typical_lose_nothing_and_earn_nothing() -> None:
    found = episode_at(0, slow_for(4, math.log(2), math.log(0.5)), together(1), floats(0.0))
    assert found == Episode(500.0, about(0.5), about(0.25), 0.5)


# -- slow at times -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exceeded", "rate"),
    [
        ((0, 0, 0), 0.01),
        ((0, 0, 50), 0.01),  # of one device alone
        ((0, 1, 50), 2 / 58),
        ((50, 50, 50), 0.5),
    ],
)
def test_a_healthy_device_exceeds_twice_as_often_as_its_groups_typical_one(
    exceeded: tuple[int, ...], rate: float
) -> None:
    history = History.empty(3)
    history.seen[:], history.exceedances[SELF, RESTART] = 50, exceeded
    assert typical_rate(history, together(3)).tolist() == about([rate])


@pytest.mark.parametrize(
    ("run", "now", "factor"),
    [
        (0, False, 0.94 / 0.99),  # a faulty one begins a run in 6 % of its rounds, a healthy one in 1 %
        (0, True, 6.0),
        (1, True, 2.0),  # and goes on in half of the cases instead of a quarter
        (2, True, 2.0),
        (3, True, 1.0),  # what lasts longer is for the other tests
        (1, False, 2 / 3),
        (2, False, 2 / 3),
        (3, False, 1.0),
    ],
)
def test_the_bets_on_a_device_that_is_slow_at_times(run: int, *, now: bool, factor: float) -> None:
    history = History.empty(3)
    history.run[SELF, RESTART], history.intermittent[:] = run, [2.0, 2.0, 3.0]
    tested = np.array([True, True, False])
    accumulate_intermittent(history, np.array([now, False, now]), tested, together(3), 4, BUDGET)
    assert history.intermittent[0] == about((2 + onset_weight(4) / 2) * factor, rel=1e-5)
    assert history.intermittent[2] == 3.0  # not tested


def test_in_a_restless_group_only_the_beginnings_of_runs_count() -> None:
    history = History.empty(3)
    history.seen[:], history.exceedances[SELF, RESTART] = 50, 5
    history.run[SELF, RESTART], history.intermittent[:] = [0, 0, 1], 1.0
    accumulate_intermittent(history, np.array([True, False, True]), np.ones(3, np.bool_), together(3), 1, BUDGET)
    good = 10 / 58
    bad = (1 + good) / 2  # half-way to always: six times as often would be more
    begun = 1 + onset_weight(1) / 3
    found = (begun * bad / good, begun * (1 - bad) / (1 - good), begun)
    assert history.intermittent.tolist() == about(found, rel=1e-5)


def test_evidence_of_slowness_at_times_has_a_cap_and_a_device_alone_all_of_the_budget() -> None:
    history, yes = History.empty(1), np.ones(1, np.bool_)
    accumulate_intermittent(history, yes, ~yes, together(1), 0, BUDGET)
    assert history.intermittent.tolist() == [0.0]
    accumulate_intermittent(history, yes, yes, together(1), 1, BUDGET)
    assert history.intermittent.tolist() == about([6 * onset_weight(1)])
    for sign in (1, -1):
        history.intermittent[:] = sign * 5000
        accumulate_intermittent(history, yes, yes, together(1), 1, BUDGET)
        assert history.intermittent.tolist() == [sign * 100 / BUDGET]


# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_a_verdict_is_graver_the_more_certain_and_the_slower() -> None:
    def graded(slowdown: float, *, sure: bool, own_past: bool = False) -> tuple[Severity, Action, int]:
        verdict = verdict_of(("n1", "0"), Slow(slowdown, "peers"), sure=sure, own_past=own_past)
        return verdict.severity, verdict.action, rank_of(verdict)

    assert not verdict_of(("n1", "0"), Slow(9.0, "peers"), sure=False).evidence.own_past
    assert graded(9.0, sure=False) == ("suspect", "report", 1)
    assert graded(9.0, sure=False, own_past=True) == ("suspect", "report", 2)
    assert graded(1.05, sure=True) == ("slow", "restart", 4)
    assert graded(1.32, sure=True) == ("slow", "restart", 4)
    assert graded(1.33, sure=True) == ("very slow", "restart", 6)


def device(gpu: int, slowdown: float, *, sure: bool = True, **more: Any) -> Verdict:
    found = Slow(slowdown, "peers", 7, **more)
    return verdict_of(("n1", str(gpu)), found, sure=sure, own_past=more.get("rounds") == 9)


@pytest.mark.parametrize(
    ("slowdowns", "n_devices", "node"),
    [
        ((1.2,), 1, None),  # a node of one device is that device
        ((1.2, 1.2), 3, None),  # one is well
        ((1.2, 1.2), 2, 1.2),
        ((1.04, 1.5), 2, None),  # half of them by less than matters
        ((1.05, 1.5), 2, 1.05),
        ((1.04, 1.3, 1.5), 3, 1.3),
        ((1.5, 1.4, 1.3, 1.2), 4, 1.3),  # of two in the middle the faster one
    ],
)
def test_a_node_all_of_whose_devices_are_slow_is_as_slow_as_half_of_them(
    slowdowns: tuple[float, ...], n_devices: int, node: float | None
) -> None:
    verdicts = [device(gpu, each) for gpu, each in enumerate(slowdowns)]
    other = replace(verdicts[0], host="n2")
    found = merged_by_node([other, *verdicts], {"n1": n_devices, "n2": 8}, 1.05)
    assert found[0] == other
    assert (
        found[1:] == verdicts if node is None else [(each.gpu, each.slowdown) for each in found[1:]] == [(None, node)]
    )


def test_a_nodes_verdict_has_the_longest_episode_and_the_certainty_of_its_worst_device() -> None:
    verdicts = [
        device(0, 1.2, sure=False, rounds=9, e_value=5.0, since_s=70.0),
        device(1, 1.4, rounds=3, e_value=700.0, since_s=90.0),
        device(2, 1.34, sure=False, rounds=1, e_value=6.0),
    ]
    [node] = merged_by_node(verdicts, {"n1": 3}, 1.05)
    assert (node.severity, node.action, node.slowdown) == ("very slow", "restart", 1.34)
    found = node.evidence.found
    assert found == Slow(1.34, "peers", 7, rounds=9, e_value=700.0, since_s=70.0, n_devices=3)
    assert not node.evidence.own_past  # that of the worst
    [suspects] = merged_by_node([device(gpu, 1.01, sure=False) for gpu in (0, 1)], {"n1": 2}, 1.05)
    assert (suspects.severity, suspects.action, suspects.slowdown) == ("suspect", "report", 1.01)


class Round:
    """Evidence about the devices of two nodes, which have been slow for three rounds of log seconds of 0.3."""

    def __init__(self, *hosts: str) -> None:
        self.new = NewVerdicts()
        each = zip(hosts or ("n1", "n1", "n2", "n2"), "0101" if not hosts else "0123", strict=True)
        self.index = DeviceIndex(each)
        self.history = History.empty(4)
        self.history.baseline[:] = [0.0, 0.0, 0.0, 0.5]
        self.history.rounds[:], self.history.seen[:], self.history.recent[:] = 3, 8, 0.3
        self.history.since_s[:] = [500.0, NAN, 500.0, 500.0]

    def verdicts(self, evidence: Mapping[tuple[int, int, int], float]) -> list[Verdict]:
        for place, value in evidence.items():
            self.history.evidence[place] = value
        return self.new.of_round(self.history, self.index, together(4), 600.0, budget=BUDGET, min_slowdown=1.05)


@pytest.mark.parametrize(
    ("evidence", "severity", "reference", "e_value"),
    [
        ({(SELF, REPORT): 99.0}, None, "own past", 0.0),
        ({(SELF, REPORT): 100.0}, "suspect", "own past", 100.0),
        ({(PEER, REPORT): 100.0}, "suspect", "peers", 100.0),
        ({(SELF, REPORT): 60.0, (PEER, REPORT): 50.0}, "suspect", "own past", 110.0),  # together
        ({(SELF, REPORT): 50.0, (PEER, REPORT): 60.0}, "suspect", "peers", 110.0),
        ({(SELF, REPORT): 100.0, (PEER, REPORT): 900.0}, "suspect", "own past", 1000.0),  # the more precise slowdown
        ({(SELF, RESTART): 100.0, (SELF, REPORT): 999.0}, "very slow", "own past", 100.0),
        ({(SELF, RESTART): 40.0, (PEER, RESTART): 60.0}, "very slow", "peers", 100.0),
        ({(SELF, RESTART): 99.0}, None, "own past", 0.0),
    ],
)
def test_a_device_whose_evidence_reaches_the_bar_has_a_verdict_once(
    evidence: dict[tuple[int, int], float], severity: Severity | None, reference: Reference, e_value: float
) -> None:
    job = Round()
    found = job.verdicts({(*place, 0): value for place, value in evidence.items()})
    assert [(each.host, each.gpu, each.severity) for each in found] == ([("n1", "0", severity)] if severity else [])
    for each in found:
        slow = each.evidence.found
        assert isinstance(slow, Slow)
        assert slow == Slow(about(math.exp(0.3)), reference, 3, 3, e_value, BUDGET, since_s=500.0, now_s=600.0)
        assert each.evidence.own_past == (reference == "own past")
    assert job.verdicts({}) == []


def test_against_its_peers_a_device_is_also_as_slow_as_its_past_was() -> None:
    job = Round()
    [verdict] = job.verdicts({(PEER, RESTART, 3): 100.0})
    assert verdict.slowdown == about(math.exp(0.3 + 0.5))
    [other] = Round().verdicts({(SELF, RESTART, 1): 100.0})
    found = other.evidence.found
    assert isinstance(found, Slow)
    assert found.since_s is None  # not known


def test_evidence_that_grows_is_worth_a_new_verdict_and_the_same_is_not() -> None:
    job = Round()
    assert [each.severity for each in job.verdicts({(PEER, REPORT, 0): 100.0})] == ["suspect"]
    assert [each.severity for each in job.verdicts({(SELF, REPORT, 0): 100.0})] == ["suspect"]  # now by its own past
    assert job.verdicts({(SELF, REPORT, 0): 5000.0}) == []
    job.history.recent[:] = 0.2
    assert [each.severity for each in job.verdicts({(SELF, RESTART, 0): 100.0})] == ["slow"]
    job.history.recent[:] = 0.3
    assert [each.severity for each in job.verdicts({})] == ["very slow"]
    assert job.verdicts({}) == []


@pytest.mark.parametrize(("other", "gpu"), [(9.9, "0"), (10.0, None)])
def test_a_device_that_is_half_way_counts_towards_its_nodes_verdict(other: float, gpu: str | None) -> None:
    job = Round()
    [verdict] = job.verdicts({(SELF, RESTART, 0): 100.0, (SELF, RESTART, 1): other, (SELF, RESTART, 2): 99.0})
    assert (verdict.host, verdict.gpu, verdict.severity) == ("n1", gpu, "very slow")
    whole = job.verdicts({(SELF, RESTART, 1): 100.0})
    assert [each.gpu for each in whole] == ([] if gpu is None else [None])
    assert job.verdicts({}) == []


def test_of_a_node_whose_other_devices_are_well_only_what_is_new_is_told() -> None:
    job = Round("n1", "n1", "n1", "n2")
    assert [each.gpu for each in job.verdicts({(SELF, RESTART, 0): 100.0})] == ["0"]
    assert [each.gpu for each in job.verdicts({(SELF, RESTART, 1): 100.0})] == ["1"]


def test_a_nodes_verdict_is_not_told_again_when_one_of_its_devices_is_slow_again() -> None:
    job = Round()
    assert [each.gpu for each in job.verdicts({(SELF, RESTART, 0): 100.0, (SELF, RESTART, 1): 100.0})] == [None]
    job.history.reported[1] = 0  # it was well in between
    assert job.verdicts({}) == []
    assert job.history.reported[1] == 6


def test_slowness_at_times_is_said_once_with_its_share_and_its_greatest_slowdown() -> None:
    job = Round()
    job.history.intermittent[0], job.history.recent[3, 0] = 100.0, 0.6
    job.history.exceedances[SELF, RESTART, 0] = 4
    [verdict] = job.verdicts({})
    found = verdict.evidence.found
    assert isinstance(found, Slow)
    assert (verdict.severity, verdict.action) == ("suspect", "report")
    assert (found.slowdown, found.e_value) == (about(math.exp(0.6)), 100.0)
    assert found.share == about(4 / 16)
    assert job.history.intermittent[0] == -100.0  # until it has been well for long
    assert job.verdicts({}) == []


# -- links -------------------------------------------------------------------------------------------------------------


def sent(times: Mapping[tuple[str, str], float]) -> list[LinkReading]:
    return [LinkReading(1, *ends, seconds, 1 << 20, 0.0) for ends, seconds in times.items()]


OTHERS = {("x", "y"): 1.0, ("y", "x"): 1.0, ("y", "z"): 3.0}


@pytest.mark.parametrize(
    ("side", "slowdown"),
    [("sends", 2.0), ("receives", 4.0), ("both", 2.0)],
)
def test_a_node_is_as_slow_as_its_fastest_transfer_on_its_side_beside_the_median_of_others(
    side: str, slowdown: float
) -> None:
    episodes = LinkEpisodes(1.1)
    assert episodes.of("a") is None
    episodes.begin("a", side, 9.0, 77.0)
    for _ in range(2):
        episodes.add_round(sent({**OTHERS, ("a", "x"): 2.0, ("a", "y"): 5.0, ("x", "a"): 4.0, ("y", "a"): 6.0}))
    assert episodes.of("a") == Episode(77.0, slowdown, 1 - 1 / slowdown)


def test_a_nodes_episode_ends_after_three_rounds_in_which_it_was_as_fast_as_others() -> None:
    episodes = LinkEpisodes(1.1)
    episodes.begin("a", "sends", 2.0, 77.0)
    fast, slow = sent({**OTHERS, ("a", "x"): 1.0}), sent({**OTHERS, ("a", "x"): 1.1})
    for one in (fast, fast, slow, fast, fast):
        episodes.add_round(one)
        assert episodes.of("a") is not None
    episodes.add_round(sent(OTHERS))  # without its transfers, or those of others, nothing is known
    episodes.add_round(sent({("a", "x"): 1.0}))
    assert episodes.of("a") == Episode(77.0, 1.0, 0.0)
    episodes.add_round(fast)
    assert episodes.of("a") is None


def test_of_an_episode_that_goes_on_the_beginning_stays_and_the_side_may_change() -> None:
    episodes = LinkEpisodes(1.1)
    episodes.begin("a", "sends", 2.0, 77.0)
    episodes.begin("a", "receives", 3.0, 99.0)
    assert episodes.of("a") == Episode(77.0, 2.5, 1 - 1 / 2.5)
    episodes.add_round(sent({**OTHERS, ("a", "x"): 9.0, ("x", "a"): 3.0}))
    assert episodes.of("a") == Episode(77.0, 3.0, 1 - 1 / 3.0)

"""Incidents: what they lose, how they end, and what is remembered of them, of the device and of its place."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from laggard.detectors.economics.episode import Episode
from laggard.detectors.economics.incidents import Incidents, key_of
from laggard.detectors.economics.restart_cost import RestartCost
from laggard.detectors.economics.restart_decision import Decision, Incident, Tradeoff
from laggard.detectors.evidence import Reason, Subject, WellAgain

BUSIER = Reason("busier", (88.0, 80.0))
SIXTY_SEVEN = Tradeoff(cost=RestartCost(200 / 3 / 0.45))  # a restart is due once 66.7 s are lost
GPU: Subject = ("node1", "0")
OTHER: Subject = ("node2", "0")


def about(value: float) -> Any:
    """Return what equals a value but for rounding."""
    return pytest.approx(value)


class Job:
    """Plays incidents on one place of a launch, which some device has."""

    def __init__(self, incidents: Incidents | None = None, slowdown: float = 1.25, gap_s: float = 1000.0) -> None:
        self.incidents = incidents or Incidents()
        self.gap_s = gap_s
        self.now_s = 0.0
        self.slowdown = slowdown

    def slow_for(self, length_s: float, subject: Subject = GPU, slowdown: float | None = None) -> Decision:
        """Let a device become slow; return the decision after some time."""
        slow = slowdown or self.slowdown
        self.now_s += self.gap_s
        episode = Episode(self.now_s - 12.0, slow, 1 - 1 / slow)
        self.incidents.begin(subject, slow, episode, self.now_s, identity=f"GPU-{subject[0]}", place="1/0")
        self.now_s += length_s - 12.0
        self.incidents.advance({subject: slow}, self.now_s)
        return self.incidents.decide(subject, SIXTY_SEVEN, self.now_s)

    def recover(self, subject: Subject = GPU) -> WellAgain:
        return self.incidents.advance({subject: None}, self.now_s)[subject]


def test_a_node_and_each_of_its_devices_have_keys_of_their_own() -> None:
    assert [key_of(("n1", part)) for part in (None, "0", "1")] == ["n1", "n1 0", "n1 1"]


def test_an_incident_loses_the_share_of_its_slow_rounds_and_nothing_in_others() -> None:
    incidents = Incidents()
    incidents.begin(GPU, 1.25, Episode(60.0, 1.25, 0.1), 100.0, identity="GPU-1", place="1/0")
    assert incidents.incident(GPU) == Incident(slowdown=1.25, slow_s=40.0, lost_s=about(4.0))
    for now_s, slowdowns in ((110.0, {GPU: 1.25}), (120.0, {GPU: 1.01}), (130.0, {}), (140.0, {GPU: 1.25})):
        assert incidents.advance(slowdowns, now_s) == {}
    assert incidents.incident(GPU) == Incident(slowdown=1.25, slow_s=60.0, lost_s=about(8.0))
    assert incidents.advance({GPU: None}, 150.0) == {GPU: WellAgain(60.0, about(8.0), 1, about(8.0), expected=False)}
    assert incidents.open == ()


def test_a_slowdown_that_grows_is_followed() -> None:
    incidents = Incidents()
    incidents.begin(GPU, 1.1, Episode(math.nan, 1.1, 0.1), 0.0, identity="GPU-1", place="1/0")
    for now_s in range(1, 50):
        incidents.advance({GPU: 1.5}, float(now_s))
    assert incidents.incident(GPU).slowdown == pytest.approx(1.5, abs=0.01)


def test_a_clock_that_is_set_back_loses_nothing() -> None:
    incidents = Incidents()
    incidents.begin(GPU, 1.25, Episode(1000.0, 1.25, 0.2), 900.0, identity="GPU-1", place="1/0")
    incidents.advance({GPU: 1.25}, 800.0)
    assert incidents.incident(GPU) == Incident(slowdown=1.25, slow_s=0.0, lost_s=0.0)


def test_an_incident_that_is_over_at_once_has_lost_nothing() -> None:
    incidents = Incidents()
    incidents.begin(GPU, 1.25, Episode(math.nan, 1.25, 0.2), 100.0, identity="GPU-1", place="1/0")
    assert incidents.advance({GPU: None}, 103.0) == {GPU: WellAgain(0.0, 0.0, 1, 0.0, expected=False)}


def test_a_nodes_incident_takes_over_those_of_its_devices() -> None:
    job = Job()
    job.slow_for(100.0)
    job.incidents.begin(("node1", None), 1.25, Episode(0.0, 1.25, 0.2), 0.0, identity="node1", place="node1")
    assert job.incidents.open == (("node1", None),)
    assert job.incidents.incident(("node1", None)).lost_s == pytest.approx(20.0)


def test_a_restart_is_asked_for_once_in_an_incident_and_again_in_the_next_launch_if_it_was_not_made() -> None:
    job = Job()
    assert job.slow_for(400.0).restart
    assert job.incidents.decide(GPU, SIXTY_SEVEN, job.now_s) == Decision(
        restart=False, in_s=math.inf, why=Reason("asked before")
    )
    job.incidents.forget_hosts({"node1"}, job.now_s)
    assert job.incidents.decide(GPU, SIXTY_SEVEN, job.now_s).restart
    job.incidents.forget_hosts({"node2"}, job.now_s)
    assert job.incidents.open == ()


def test_after_three_incidents_that_ended_a_fourth_is_expected_to_and_a_longer_one_is_not() -> None:
    job = Job(gap_s=20_000.0)
    ends = []
    for length_s in (100.0, 300.0, 200.0):
        assert not job.slow_for(length_s).restart
        ends.append(job.recover())
    assert [(ended.count, ended.expected) for ended in ends] == [(1, False), (2, False), (3, True)]
    decision = job.slow_for(350.0)
    assert decision == Decision(restart=False, in_s=about(100.0), why=Reason("a phase"))
    job.now_s += 101.0
    job.incidents.advance({GPU: 1.25}, job.now_s)
    assert job.incidents.decide(GPU, SIXTY_SEVEN, job.now_s).restart


def test_incidents_too_short_to_pay_are_added_up_and_one_restart_is_made_at_half_of_what_one_may_lose() -> None:
    job = Job(gap_s=100.0)
    decisions = []
    for _ in range(3):
        decisions.append(job.slow_for(101.0))  # 20.2 s lost in each
        job.recover()
    assert [decision.restart for decision in decisions] == [False, True, False]
    assert decisions[1].why == Reason("lost much together")


@pytest.mark.parametrize(
    ("length_s", "slowdown", "after_s", "is_told"),
    [
        (100.0, 1.25, 1000.0, False),
        (149.0, 1.5, 1000.0, False),
        (152.0, 1.25, 1000.0, True),  # longer than what was told of
        (100.0, 1.6, 1000.0, True),  # much slower
        (100.0, 1.25, 86_400.0, True),  # a day later
    ],
)
def test_what_is_like_an_incident_that_was_told_of_and_ended_is_not_told_of_for_a_day(
    length_s: float, slowdown: float, after_s: float, is_told: bool
) -> None:
    job = Job()
    job.slow_for(100.0)
    assert job.incidents.tell(GPU, job.now_s, is_new=True, must=False)
    assert not job.incidents.tell(GPU, job.now_s, is_new=False, must=False)
    assert job.incidents.tell(GPU, job.now_s, is_new=True, must=False)  # worse than it was told to be
    job.recover()
    job.gap_s = after_s
    job.slow_for(length_s, OTHER, slowdown)
    again = Incidents.from_state(json.loads(json.dumps(job.incidents.to_state())))
    for incidents in (job.incidents, again):
        assert incidents.tell(OTHER, job.now_s, is_new=True, must=False) == is_told
        assert incidents.tell(OTHER, job.now_s, is_new=is_told, must=True)


def test_of_what_is_usual_the_first_word_is_that_it_is_over_unless_it_lasts() -> None:
    job = Job()
    ends = []
    for length_s, gpu in ((100.0, GPU), (100.0, OTHER), (200.0, OTHER)):
        job.slow_for(length_s, gpu)
        job.incidents.advance({gpu: 1.25}, job.now_s, usual={gpu})
        is_told = job.incidents.tell(gpu, job.now_s, is_new=True, must=False)
        ends.append((is_told, job.recover(gpu).is_news))
    assert ends == [(False, True), (False, False), (True, True)]


def test_a_restart_that_was_announced_and_is_not_due_yet_is_told_of_again() -> None:
    job = Job()
    job.slow_for(100.0)

    def is_told(after_s: float, in_s: float, *, must: bool = False) -> bool:
        return job.incidents.tell(GPU, job.now_s + after_s, is_new=False, must=must, in_s=in_s)

    assert job.incidents.tell(GPU, job.now_s, is_new=True, must=False, in_s=60.0)
    assert not is_told(89.0, 10.0)
    assert is_told(91.0, 100.0)
    assert not is_told(220.0, 10.0)
    assert is_told(222.0, math.inf)
    assert not is_told(1e6, math.inf)
    assert not is_told(1e6, 10.0)


@pytest.mark.parametrize(
    ("lengths_s", "are_alike"),
    [((), False), ((9.0,), True), ((9.0, 13.0), True), ((87.0, 9.0), True), ((87.0, 9.0, 8.0), False)],
)
def test_incidents_are_alike_if_half_of_them_were_about_as_long_as_the_longest(
    lengths_s: tuple[float, ...], are_alike: bool
) -> None:
    job = Job()
    for length_s in lengths_s:
        job.slow_for(length_s + 12.0)
        job.recover()
    job.slow_for(20.0)
    assert job.incidents._past(job.incidents._open[GPU], job.now_s).are_alike == are_alike


def asked_for_all() -> Job:
    """Return a job that has asked for a restart for a device's incidents of 100 s, and goes on without it."""
    job = Job()
    while not job.slow_for(100.0).restart:
        job.recover()
    job.incidents.forget_hosts({"node2"}, job.now_s)
    return job


def test_what_is_back_on_another_device_in_the_same_place_is_the_programs_own_and_said_once() -> None:
    job = asked_for_all()
    ends = []
    for _ in range(100):
        assert not job.slow_for(100.0, OTHER).restart
        ends.append(job.recover(OTHER))
    assert [ended.instead_of for ended in ends] == [GPU] + [None] * 99
    assert all(ended.expected for ended in ends)
    assert not job.slow_for(140.0, OTHER).restart
    assert job.slow_for(400.0, OTHER).restart  # this is something else


def test_phases_of_the_program_may_grow_slowly() -> None:
    job = asked_for_all()
    for length_s in (100.0, 140.0, 200.0, 290.0):
        assert not job.slow_for(length_s, OTHER).restart
        assert job.recover(OTHER).expected
    assert job.slow_for(430.0, OTHER).why == Reason("a phase")


def test_a_longer_incident_in_the_place_of_phases_does_not_make_them_longer() -> None:
    job = asked_for_all()
    job.slow_for(100.0, OTHER)
    job.recover(OTHER)
    job.slow_for(160.0, OTHER)
    job.recover(OTHER)
    assert job.incidents.to_state()["programs_own"] == {"1/0": about(100.0)}


def test_a_longer_incident_on_the_next_device_in_the_place_proves_nothing() -> None:
    job = asked_for_all()
    job.slow_for(160.0, OTHER)
    assert job.recover(OTHER).instead_of is None
    assert job.incidents.to_state()["programs_own"] == {}


def test_another_slowness_in_the_same_place_is_judged_for_itself() -> None:
    for slowdown in (1.07, 1.9):
        job, lost_s = asked_for_all(), about(100 * (1 - 1 / slowdown))
        assert not job.slow_for(100.0, OTHER, slowdown=slowdown).restart
        ended = job.recover(OTHER)
        assert (ended.slow_s, ended.lost_s, ended.count, ended.expected) == (100.0, lost_s, 1, False)


@pytest.mark.parametrize("slowdown", [1.13, 1.25, 1.5])
def test_a_slowness_that_is_half_as_much_or_twice_in_logs_is_the_same(slowdown: float) -> None:
    job = asked_for_all()
    assert not job.slow_for(100.0, OTHER, slowdown=slowdown).restart
    assert job.recover(OTHER).instead_of == GPU


def test_what_is_known_to_be_the_programs_own_is_so_on_every_device_in_its_place() -> None:
    job = asked_for_all()
    job.slow_for(100.0, OTHER)
    job.recover(OTHER)
    third: Subject = ("node3", "0")
    assert not job.slow_for(100.0, third, slowdown=4.0).restart
    assert job.recover(third) == WellAgain(100.0, 75.0, 1, 75.0, expected=True)


def test_a_device_that_comes_back_elsewhere_brings_its_account() -> None:
    job = asked_for_all()
    incidents = job.incidents
    moved: Subject = ("node7", "3")
    incidents.begin(moved, 1.25, Episode(job.now_s, 1.25, 0.2), job.now_s, identity="GPU-node1", place="5/3")
    decision = incidents.decide(moved, SIXTY_SEVEN, job.now_s)
    assert not decision.restart
    assert decision.why == Reason("lost much together")
    assert 0 < decision.in_s < (200 / 3) / 0.2  # sooner than for a device without one


def test_a_lasting_slowness_that_is_back_in_the_same_place_must_lose_twice_as_much_each_time() -> None:
    job = Job()
    devices: list[Subject] = [(f"node{number}", "0") for number in range(4)]
    for number, device in enumerate(devices):
        factor = 2**number
        assert not job.slow_for(320.0 * factor, device).restart
        job.now_s += 20.0 * factor
        job.incidents.advance({device: 1.25}, job.now_s)
        assert job.incidents.decide(device, SIXTY_SEVEN, job.now_s).restart
        job.incidents.forget_hosts((), job.now_s)


def test_everything_survives_json() -> None:
    job = asked_for_all()
    job.slow_for(100.0, OTHER)
    again = Incidents.from_state(json.loads(json.dumps(job.incidents.to_state())))
    assert again.to_state() == job.incidents.to_state()
    assert again.decide(OTHER, SIXTY_SEVEN, job.now_s) == job.incidents.decide(OTHER, SIXTY_SEVEN, job.now_s)
    assert Job(again).incidents.advance({OTHER: None}, job.now_s) == job.incidents.advance({OTHER: None}, job.now_s)


def test_an_incident_at_times_goes_on_while_the_device_is_well_and_ends_after_ten_minutes() -> None:
    incidents = Incidents()
    episode = Episode(math.nan, 1.25, 0.2)
    incidents.begin(GPU, 1.25, episode, 0.0, identity="GPU-1", place="1/0", at_times=True)
    for now_s in range(5, 1005, 5):
        assert incidents.advance({GPU: 1.25 if now_s % 50 == 0 else None}, float(now_s)) == {}
    assert incidents.incident(GPU) == Incident(
        slowdown=about(1.25), slow_s=about(100.0), lost_s=about(20.0), span_s=1000.0, at_times=True
    )
    assert incidents.advance({GPU: None}, 1595.0) == {}
    assert incidents.advance({GPU: None}, 1600.0) == {
        GPU: WellAgain(about(100.0), about(20.0), 1, about(20.0), expected=False)
    }


def test_an_incident_at_times_began_with_its_first_slow_round() -> None:
    incidents = Incidents()
    incidents.begin(GPU, 1.25, Episode(60.0, 1.25, 0.1), 100.0, identity="GPU-1", place="1/0", at_times=True)
    assert incidents.incident(GPU).span_s == 40.0


def test_an_incident_at_times_asks_for_a_restart_once_its_sum_is_as_much_as_one_incident_may_lose() -> None:
    incidents = Incidents()
    incidents.begin(GPU, 2.0, Episode(math.nan, 2.0, 0.5), 0.0, identity="GPU-1", place="1/0", at_times=True)
    asked_s = []
    for now_s in range(10, 4000, 10):
        incidents.advance({GPU: 2.0 if now_s % 50 == 0 else None}, float(now_s))
        if incidents.decide(GPU, SIXTY_SEVEN, float(now_s)).restart:
            asked_s.append(now_s)
    assert asked_s == [700]  # a tenth of the time is lost


def test_a_device_that_stays_slow_is_no_longer_slow_at_times() -> None:
    incidents, episode = Incidents(), Episode(math.nan, 2.0, 0.5)
    incidents.begin(GPU, 2.0, episode, 0.0, identity="GPU-1", place="1/0", at_times=True)
    incidents.begin(GPU, 2.0, episode, 10.0, identity="GPU-1", place="1/0")
    assert not incidents.incident(GPU).at_times
    assert incidents.advance({GPU: None}, 20.0)


def slow_together(first: float, second: float, *, why_not: Reason | None = None, length_s: float = 400.0) -> Job:
    """Return a job in which two devices have been slow at the same time."""
    job = Job()
    for subject, slowdown in ((GPU, first), (OTHER, second)):
        episode = Episode(0.0, slowdown, 1 - 1 / slowdown)
        identity = f"GPU-{subject[0]}"
        job.incidents.begin(subject, slowdown, episode, 0.0, identity=identity, place=identity)
    job.incidents.decide(GPU, Tradeoff(cost=RestartCost(1e6)), 0.0, why_not)
    job.now_s = length_s
    job.incidents.advance({GPU: first, OTHER: second}, job.now_s)
    return job


def test_a_device_that_would_stay_makes_another_lose_only_what_it_is_slower_than_that_one() -> None:
    job = slow_together(1.25, 2.0, why_not=BUSIER)
    assert job.incidents.incident(GPU).lost_s == pytest.approx(0.2 * 400)
    assert job.incidents.incident(OTHER).lost_s == pytest.approx((0.5 - 0.2) * 400)
    assert slow_together(1.25, 1.25, why_not=BUSIER).incidents.incident(OTHER).lost_s == 0.0


def test_a_device_whose_incident_is_expected_to_end_stays() -> None:
    job = Job(gap_s=20_000.0)
    for _ in range(3):
        job.slow_for(100.0)
        job.recover()
    assert math.isfinite(job.slow_for(100.0).in_s)
    episode = Episode(math.nan, 2.0, 0.5)
    job.incidents.begin(OTHER, 2.0, episode, job.now_s, identity="GPU-node2", place="2/0")
    job.incidents.advance({GPU: 1.25, OTHER: 2.0}, job.now_s + 10.0)
    assert job.incidents.incident(OTHER).lost_s == about((0.5 - 0.2) * 10)


def test_devices_that_would_be_left_out_together_lose_what_each_would_lose_alone() -> None:
    job = slow_together(1.25, 1.25)
    assert [job.incidents.incident(subject).lost_s for subject in (GPU, OTHER)] == [about(80.0)] * 2


def test_a_restart_leaves_out_who_is_half_way_to_its_own_and_nobody_who_is_not() -> None:
    for slowdown, joins in ((1.1, True), (1.05, False)):  # of 66.7 s, 36 and 19 are lost
        job = slow_together(1.25, slowdown)
        assert job.incidents.decide(GPU, SIXTY_SEVEN, job.now_s).restart
        assert not job.incidents.decide(OTHER, SIXTY_SEVEN, job.now_s).restart
        assert job.incidents.join(OTHER, SIXTY_SEVEN, job.now_s) == joins
        assert not job.incidents.join(OTHER, SIXTY_SEVEN, job.now_s)


def test_a_reason_against_a_restart_is_the_decision_for_as_long_as_it_holds() -> None:
    job = slow_together(1.25, 1.25)
    decision = job.incidents.decide(GPU, SIXTY_SEVEN, job.now_s, BUSIER)
    assert decision == Decision(restart=False, in_s=math.inf, why=BUSIER)
    assert not job.incidents.join(GPU, SIXTY_SEVEN, job.now_s)
    assert job.incidents.decide(GPU, SIXTY_SEVEN, job.now_s).restart


def test_of_a_long_episode_only_its_costly_part_has_cost_anything() -> None:
    incidents = Incidents()
    episode = Episode(0.0, 2.0, 0.5, costly_part=0.1)
    incidents.begin(GPU, 2.0, episode, 300.0, identity="GPU-1", place="1/0")
    assert incidents.incident(GPU) == Incident(slowdown=2.0, slow_s=about(30.0), lost_s=about(15.0))

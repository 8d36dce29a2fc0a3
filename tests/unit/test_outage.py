"""What counts as an outage, when to ask again, and when it is over."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from laggard.resilience.decision.outage import (
    FIRST_WAIT_S,
    FORGOTTEN_AFTER,
    LONGEST_WAIT_S,
    Connected,
    OutageWatch,
    outage_among,
)
from laggard.resilience.decision.targets import NoAnswer, Target

V6, V4 = Target("port", "::1", 80), Target("port", "127.0.0.1", 80)
FILE = Target("path", of="/data/x")
REFUSED, MISSING = NoAnswer("refused"), NoAnswer("missing")


def test_it_is_an_outage_if_none_of_the_addresses_of_a_thing_answers() -> None:
    groups = [(V6, V4)]
    assert outage_among(groups, (REFUSED, NoAnswer("timed out")), passed=False) == ((V6, V4), REFUSED)
    assert outage_among(groups, (REFUSED, None), passed=False) is None
    assert outage_among(groups, (), passed=False) is None  # nobody knows


def test_of_several_things_the_first_that_is_away_counts() -> None:
    groups = [[V6], [V4], [FILE]]
    assert outage_among(groups, (None, REFUSED, MISSING), passed=True) == ([V4], REFUSED)
    assert outage_among(groups, (None, None, None), passed=True) is None


def test_a_file_is_missing_for_a_time_only_if_a_launch_has_got_further() -> None:
    assert outage_among([[FILE]], (MISSING,), passed=False) is None
    assert outage_among([[FILE]], (MISSING,), passed=True) == ([FILE], MISSING)
    assert outage_among([[FILE]], (NoAnswer("stale"),), passed=False) is not None


def test_what_launches_were_connected_to_is_kept_for_a_while_but_for_the_job_itself() -> None:
    connected = Connected()
    peer, server = Target("port", "10.0.0.2", 50000), Target("port", "127.0.0.1", 6000)
    own = [("10.0.0.2", None), ("127.0.0.1", 6000)]
    connected.take([V4, peer, server, FILE], own)
    connected.take([V6], own)
    assert connected.groups() == [[V6], [V4], [FILE]]
    assert V4 in connected
    assert Target("url", "127.0.0.1", 80, "http://127.0.0.1:80/x") in connected
    assert peer not in connected
    for _ in range(FORGOTTEN_AFTER):
        connected.take([V6], own)
    assert connected.groups() == [[V6]]


def test_it_is_over_at_the_second_answer_in_a_row() -> None:
    watch = OutageWatch(0.0)
    assert not watch.take([None], 2.0)
    assert not watch.take([REFUSED], 4.0)
    assert not watch.take([None], 6.0)
    assert not watch.take([], 8.0)  # nobody knows: the count goes on
    assert watch.take([None], 10.0)


@given(st.lists(st.sampled_from([[REFUSED], [None], []]), max_size=40), st.floats(0.0, 15.0))
def test_it_is_asked_every_few_seconds_and_twice_after_it_answers(
    answers: list[list[NoAnswer | None]], takes_s: float
) -> None:
    watch, now_s = OutageWatch(0.0), 0.0
    everything: list[list[NoAnswer | None]] = [*answers, [None], [None]]
    for answer in everything:
        waited_s = 0.0
        while not watch.asks(now_s + waited_s):
            waited_s += 0.25
        assert 0.9 * FIRST_WAIT_S <= waited_s <= max(FIRST_WAIT_S, LONGEST_WAIT_S - takes_s) + 0.25
        now_s += waited_s + takes_s
        if over := watch.take(answer, now_s):
            break
    assert over

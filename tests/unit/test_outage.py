"""What counts as an outage, when to ask again, and when it is over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.resilience.decision.failure import Failure
from laggard.resilience.decision.outage import (
    FIRST_WAIT_S,
    LONGEST_WAIT_S,
    Connected,
    OutageWatch,
    may_be_an_outage,
    outage_among,
)
from laggard.resilience.reading.signatures import Kind
from laggard.resilience.reading.targets import NoAnswer, Target

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
    for _ in range(9):
        connected.take([V6], own)
    assert connected.groups() == [[V6], [V4], [FILE]]
    connected.take([V6], own)
    assert connected.groups() == [[V6]]


def test_it_is_over_at_the_second_answer_in_a_row() -> None:
    watch = OutageWatch(0.0)
    assert not watch.take([None], 2.0)
    assert not watch.take([REFUSED], 4.0)
    assert not watch.take([None], 6.0)
    assert not watch.take([], 8.0)  # nobody knows: the count goes on
    assert watch.take([None], 10.0)


def test_the_longer_it_is_away_the_rarer_it_is_asked_up_to_a_limit() -> None:
    watch, now_s = OutageWatch(0.0), 0.0
    waits_s = []
    for _ in range(12):
        began_s = now_s
        while not watch.asks(now_s):
            now_s += 0.5
        waits_s.append(now_s - began_s)
        watch.take([REFUSED], now_s)
    assert waits_s == [2, 2, 2, 2, 2, 2.5, 3.5, 4, 5, 6.5, 8, 10]


@pytest.mark.parametrize(
    ("exit_code", "kind", "may_be"),
    [
        (1, "network", True),
        (1, "transient", True),
        (1, "unknown", True),
        (1, "program", False),
        (-9, "unknown", False),
        (0, "unknown", False),
        (None, "unknown", False),
    ],
)
def test_a_failure_that_names_nothing_may_be_an_outage_unless_its_kind_is_another(
    exit_code: int | None, kind: Kind, *, may_be: bool
) -> None:
    failure = Failure("n1", 1, 7, exit_code, 1, 0.0, 9.0, "odd", "", kind, "")
    assert may_be_an_outage(failure) is may_be


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

"""What is known of a node from the answers to its ping: when it is late, how long to wait, how its clock is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.telemetry.nodes.ping import LEAST_PATIENCE_S, RECENTLY_S, Ping, Pong

LONGEST_S = 1.5
UNIX_S = 1.7e9


def asked(ping: Ping, now_s: float, *, received: bool = True) -> Ping:
    """Return the ping after a question that was sent."""
    return ping.ask(now_s).sent(received=received)


def answered(ping: Ping, asked_s: float, now_s: float, *, ahead_s: float = 0.0, dropped: int = 0) -> Ping:
    """Return the ping after an answer that was written halfway, on a clock that is ahead by ``ahead_s``."""
    answer = Pong(asked_s, UNIX_S + (asked_s + now_s) / 2 + ahead_s, dropped)
    return ping.take(answer, now_s, UNIX_S + now_s, LONGEST_S)


def steady(took_s: float, n: int = 10) -> Ping:
    """Return the ping of a node that has always taken the same time."""
    ping = Ping()
    for second in range(n):
        ping = answered(asked(ping, float(second)), float(second), second + took_s)
    return ping


def test_a_node_that_answers_is_up_and_owes_nothing() -> None:
    ping = steady(0.002)

    health = ping.health(100.0, LONGEST_S)

    assert (health.up, ping.waiting_since_s) == (True, None)
    assert health.lag_s == pytest.approx(0.002)


def test_a_node_that_does_not_listen_is_down_at_once() -> None:
    assert not asked(steady(0.002), 20.0, received=False).health(20.0, LONGEST_S).up


def test_what_a_node_owes_counts_from_the_first_question_that_it_has_not_answered() -> None:
    ping = asked(asked(steady(0.002), 20.0), 21.0)

    assert ping.lag_s(21.5) == 1.5
    assert ping.health(21.5, LONGEST_S).up
    assert not ping.health(21.6, LONGEST_S).up
    assert not answered(ping, 21.0, 22.0).has_waited(0.0, 30.0)


def test_what_answers_take_after_a_hang_teaches_no_patience() -> None:
    before = ping = steady(0.002)
    for asked_s in (20.0, 21.0, 22.0, 23.0):
        ping = asked(ping, asked_s)
    for asked_s in (20.0, 21.0, 22.0, 23.0):
        ping = answered(ping, asked_s, 24.9)

    assert (ping.patience_s(LONGEST_S), ping.waiting_since_s) == (before.patience_s(LONGEST_S), None)
    assert ping.health(25.0, LONGEST_S).up


@pytest.mark.parametrize("asked_after_s", [(0.0,), (0.0, 0.9), (0.0, 0.3, 1.3)])
def test_a_short_hang_teaches_no_patience_but_by_the_question_that_it_began_with(
    asked_after_s: tuple[float, ...],
) -> None:
    """The last question may have been asked just before the hang ended, and its answer look quick or slow."""
    ping = steady(0.002)
    for after_s in asked_after_s:
        ping = asked(ping, 20.0 + after_s)
    for after_s in asked_after_s:
        ping = answered(ping, 20.0 + after_s, 21.6)

    assert ping.patience_s(LONGEST_S) == LEAST_PATIENCE_S
    assert ping.trips == steady(0.002).trips


def test_a_node_is_late_as_soon_as_it_owes_an_answer_for_longer_than_its_answers_take() -> None:
    ping = asked(steady(0.002), 20.0)

    assert not ping.is_late(20.0 + LEAST_PATIENCE_S, LONGEST_S)
    assert ping.is_late(20.01 + LEAST_PATIENCE_S, LONGEST_S)
    assert not ping.has_waited(LONGEST_S, 20.01 + LEAST_PATIENCE_S), "late is not silent"
    assert not answered(ping, 20.0, 20.2).is_late(30.0, LONGEST_S)


@pytest.mark.parametrize(
    ("ping", "now_s", "due"),
    [
        (Ping(), 0.0, True),
        (steady(0.002), 20.0, True),
        (steady(0.002), 9.003, False),  # it has just been asked, and has answered
        (steady(0.002), 9.0 + RECENTLY_S, True),
        (asked(steady(0.002), 20.0), 20.5, False),  # it owes an answer: another question would tell no more
    ],
)
def test_only_a_node_that_owes_nothing_and_was_not_just_asked_is_asked_in_between(
    ping: Ping, now_s: float, due: bool
) -> None:
    assert ping.is_due(now_s) is due


def test_an_answer_to_an_older_question_leaves_the_newer_one_owed() -> None:
    ping = answered(asked(asked(steady(0.002), 20.0), 21.0), 20.0, 21.1)

    assert ping.waiting_since_s == 21.0


def test_nobody_gives_up_a_node_that_was_never_timed() -> None:
    ping = asked(Ping(), 0.0)

    assert ping.patience_s(LONGEST_S) == LONGEST_S


@pytest.mark.parametrize(("took_s", "at_least_s", "at_most_s"), [(0.001, 0.15, 0.15), (0.3, 0.3, 0.6), (0.9, 1.0, 1.5)])
def test_patience_follows_what_answers_have_taken(took_s: float, at_least_s: float, at_most_s: float) -> None:
    assert at_least_s <= steady(took_s).patience_s(LONGEST_S) <= at_most_s


def test_a_node_that_becomes_busy_is_given_more_time() -> None:
    before = steady(0.002)
    after = answered(asked(before, 20.0), 20.0, 20.4)

    assert after.patience_s(LONGEST_S) > 0.4 > before.patience_s(LONGEST_S)


@given(
    ahead_s=st.floats(-1e6, 1e6),
    trips=st.lists(st.floats(0.0001, 1.0), min_size=1, max_size=20),
)
def test_the_clocks_difference_is_found_whatever_the_answers_took(ahead_s: float, trips: list[float]) -> None:
    ping = Ping()
    for second, took_s in enumerate(trips):
        asked_s = 2.0 * second
        ping = answered(asked(ping, asked_s), asked_s, asked_s + took_s, ahead_s=ahead_s)

    assert ping.health(100.0, LONGEST_S).clock_skew_s == pytest.approx(ahead_s, abs=1e-3)


@given(
    steps=st.lists(st.tuples(st.floats(0.001, 5.0), st.sampled_from(["ask", "lost", "answer", "rubbish"])), max_size=40)
)
def test_whatever_happens_times_are_sensible_and_an_answer_to_the_last_question_clears_a_node(
    steps: list[tuple[float, str]],
) -> None:
    ping, now_s, asked_s = Ping(), 0.0, None
    for pause_s, step in steps:
        now_s += pause_s
        match step:
            case "ask" | "lost":
                asked_s = now_s
                ping = asked(ping, now_s, received=step == "ask")
            case "answer" if asked_s is not None:
                ping = answered(ping, asked_s, now_s)
                assert ping.waiting_since_s is None
                assert ping.health(now_s, LONGEST_S).up
            case "rubbish":
                assert answered(ping, now_s + 1, now_s) == ping
        assert LEAST_PATIENCE_S <= ping.patience_s(LONGEST_S) <= LONGEST_S
        assert 0 <= ping.lag_s(now_s) <= now_s
        assert len(ping.trips) <= 8


@pytest.mark.parametrize("answer", [None, [], {}, {"asked_s": 1}, {"asked_s": [], "clock_s": 1, "dropped": 0}, "text"])
def test_what_is_no_answer_is_refused(answer: object) -> None:
    with pytest.raises(ValueError, match="not the answer"):
        Pong.of(answer)


def test_an_answer_is_read() -> None:
    assert Pong.of({"asked_s": 1.5, "clock_s": 2, "dropped": 3}) == Pong(1.5, 2.0, 3)
    assert math.isinf(Ping().asked_s)

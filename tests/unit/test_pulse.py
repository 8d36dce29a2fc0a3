"""What is known of a node from the answers to its pulse: when it is late, how long to wait, how its clock is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.telemetry.pulse import LEAST_PATIENCE_S, Pulse, PulseAnswer

LONGEST_S = 1.5
UNIX_S = 1.7e9


def answered(pulse: Pulse, asked_s: float, now_s: float, *, ahead_s: float = 0.0, dropped: int = 0) -> Pulse:
    """Return the pulse after an answer that was written halfway, on a clock that is ahead by ``ahead_s``."""
    answer = PulseAnswer(asked_s, UNIX_S + (asked_s + now_s) / 2 + ahead_s, dropped)
    return pulse.take(answer, now_s, UNIX_S + now_s, LONGEST_S)


def steady(took_s: float, n: int = 10) -> Pulse:
    """Return the pulse of a node that has always taken the same time."""
    pulse = Pulse()
    for second in range(n):
        pulse = answered(pulse.ask(float(second), received=True), float(second), second + took_s)
    return pulse


def test_a_node_that_answers_is_up_and_owes_nothing() -> None:
    pulse = steady(0.002)

    health = pulse.health(100.0, LONGEST_S)

    assert (health.up, pulse.waiting_since_s) == (True, None)
    assert health.lag_s == pytest.approx(0.002)


def test_a_node_that_does_not_listen_is_down_at_once() -> None:
    assert not steady(0.002).ask(20.0, received=False).health(20.0, LONGEST_S).up


def test_what_a_node_owes_counts_from_the_first_question_that_it_has_not_answered() -> None:
    pulse = steady(0.002).ask(20.0, received=True).ask(21.0, received=True)

    assert pulse.lag_s(21.5) == 1.5
    assert pulse.health(21.5, LONGEST_S).up
    assert not pulse.health(21.6, LONGEST_S).up
    assert not answered(pulse, 21.0, 22.0).has_waited(0.0, 30.0)


def test_what_answers_take_after_a_hang_teaches_no_patience() -> None:
    before = pulse = steady(0.002)
    for asked_s in (20.0, 21.0, 22.0, 23.0):
        pulse = pulse.ask(asked_s, received=True)
    for asked_s in (20.0, 21.0, 22.0, 23.0):
        pulse = answered(pulse, asked_s, 24.9)

    assert (pulse.patience_s(LONGEST_S), pulse.waiting_since_s) == (before.patience_s(LONGEST_S), None)
    assert pulse.health(25.0, LONGEST_S).up


def test_an_answer_to_an_older_question_leaves_the_newer_one_owed() -> None:
    pulse = answered(steady(0.002).ask(20.0, received=True).ask(21.0, received=True), 20.0, 21.1)

    assert pulse.waiting_since_s == 21.0


def test_nobody_gives_up_a_node_that_was_never_timed() -> None:
    pulse = Pulse().ask(0.0, received=True)

    assert pulse.patience_s(LONGEST_S) == LONGEST_S


@pytest.mark.parametrize(("took_s", "at_least_s", "at_most_s"), [(0.001, 0.15, 0.15), (0.3, 0.3, 0.6), (0.9, 1.0, 1.5)])
def test_patience_follows_what_answers_have_taken(took_s: float, at_least_s: float, at_most_s: float) -> None:
    assert at_least_s <= steady(took_s).patience_s(LONGEST_S) <= at_most_s


def test_a_node_that_becomes_busy_is_given_more_time() -> None:
    before = steady(0.002)
    after = answered(before.ask(20.0, received=True), 20.0, 20.4)

    assert after.patience_s(LONGEST_S) > 0.4 > before.patience_s(LONGEST_S)


@given(
    ahead_s=st.floats(-1e6, 1e6),
    trips=st.lists(st.floats(0.0001, 1.0), min_size=1, max_size=20),
)
def test_the_clocks_difference_is_found_whatever_the_answers_took(ahead_s: float, trips: list[float]) -> None:
    pulse = Pulse()
    for second, took_s in enumerate(trips):
        asked_s = 2.0 * second
        pulse = answered(pulse.ask(asked_s, received=True), asked_s, asked_s + took_s, ahead_s=ahead_s)

    assert pulse.health(100.0, LONGEST_S).clock_skew_s == pytest.approx(ahead_s, abs=1e-3)


@given(
    steps=st.lists(st.tuples(st.floats(0.001, 5.0), st.sampled_from(["ask", "lost", "answer", "rubbish"])), max_size=40)
)
def test_whatever_happens_times_are_sensible_and_an_answer_to_the_last_question_clears_a_node(
    steps: list[tuple[float, str]],
) -> None:
    pulse, now_s, asked_s = Pulse(), 0.0, None
    for pause_s, step in steps:
        now_s += pause_s
        match step:
            case "ask" | "lost":
                asked_s = now_s
                pulse = pulse.ask(now_s, received=step == "ask")
            case "answer" if asked_s is not None:
                pulse = answered(pulse, asked_s, now_s)
                assert pulse.waiting_since_s is None
                assert pulse.health(now_s, LONGEST_S).up
            case "rubbish":
                assert answered(pulse, now_s + 1, now_s) == pulse
        assert LEAST_PATIENCE_S <= pulse.patience_s(LONGEST_S) <= LONGEST_S
        assert 0 <= pulse.lag_s(now_s) <= now_s
        assert len(pulse.trips) <= 8


@pytest.mark.parametrize("answer", [None, [], {}, {"asked_s": 1}, {"asked_s": [], "clock_s": 1, "dropped": 0}, "text"])
def test_what_is_no_answer_is_refused(answer: object) -> None:
    with pytest.raises(ValueError, match="not the answer"):
        PulseAnswer.of(answer)


def test_an_answer_is_read() -> None:
    assert PulseAnswer.of({"asked_s": 1.5, "clock_s": 2, "dropped": 3}) == PulseAnswer(1.5, 2.0, 3)
    assert math.isinf(Pulse().asked_s)

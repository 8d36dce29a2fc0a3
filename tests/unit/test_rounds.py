"""Readings become rounds, a device that falls silent is named once, and so is one that answers again."""

from __future__ import annotations

import math

from laggard.detectors.judging.rounds import MOST_REPEATS, RoundAssembler, WatchClock

A, B = ("n1", "0"), ("n2", "0")


def assembler() -> RoundAssembler:
    return RoundAssembler([A, B], interval_s=1.0, start_s=0.0, start_allowance_s=10.0, shortest_silence_s=0.0)


def test_a_round_is_complete_when_every_device_has_answered() -> None:
    rounds = assembler()
    rounds.add(A, [1.0, 1.1], now_s=5.0)
    assert rounds.take(now_s=5.1) is None
    rounds.add(B, [2.0], now_s=5.2)
    assert rounds.take(now_s=5.2) == {A: [1.0, 1.1], B: [2.0]}
    assert rounds.take(now_s=5.3) is None


def test_a_round_waits_two_intervals_for_the_last_device() -> None:
    rounds = assembler()
    rounds.add(A, [1.0], now_s=5.0)
    assert rounds.take(now_s=6.9) is None
    assert rounds.take(now_s=7.0) == {A: [1.0]}


C = ("n3", "0")


def test_a_round_waits_for_as_long_as_most_devices_take() -> None:
    rounds = RoundAssembler([A, B, C], 1.0, 0.0, 10.0)
    rounds.expect_every(C, 1e9)  # by its own word
    rounds.add(A, [1.0], now_s=5.0)
    rounds.add(B, [1.0], now_s=5.0)
    assert rounds.take(now_s=6.9) is None
    assert rounds.take(now_s=7.0) == {A: [1.0], B: [1.0]}
    rounds.expect_every(B, 3.0)
    rounds.add(A, [1.0], now_s=8.0)
    assert rounds.take(now_s=13.9) is None
    assert rounds.take(now_s=14.0) == {A: [1.0]}


def test_a_device_that_is_to_be_rare_is_silent_later_than_others() -> None:
    rounds = assembler()
    rounds.expect_every(A, 4.0)
    rounds.add(A, [1.0], now_s=10.0)
    rounds.add(B, [1.0], now_s=10.0)
    assert rounds.newly_silent(now_s=13.9) == [B]
    assert rounds.newly_silent(now_s=25.1) == []
    assert rounds.newly_silent(now_s=25.3) == [A]


def test_a_device_that_never_stops_reading_has_a_limited_number_of_repeats() -> None:
    rounds = assembler()
    for _ in range(3):
        rounds.add(A, [1.0] * (MOST_REPEATS // 2), now_s=5.0)
    rounds.add(B, [1.0], now_s=5.0)
    found = rounds.take(now_s=5.0)
    assert found is not None
    assert len(found[A]) == MOST_REPEATS


def test_a_device_that_reads_twice_within_a_round_adds_repeats() -> None:
    rounds = assembler()
    rounds.add(A, [1.0], now_s=5.0)
    rounds.add(A, [1.2], now_s=6.0)
    rounds.add(B, [2.0], now_s=6.1)
    assert rounds.take(now_s=6.1) == {A: [1.0, 1.2], B: [2.0]}


def test_a_silent_device_is_named_once_until_it_answers_again() -> None:
    rounds = assembler()
    rounds.add(A, [1.0], now_s=14.0)
    assert rounds.newly_silent(now_s=13.7) == []
    assert rounds.newly_silent(now_s=13.9) == [B]
    assert rounds.newly_silent(now_s=14.0) == []
    rounds.add(B, [1.0], now_s=15.0)
    rounds.add(A, [1.0], now_s=18.8)
    assert rounds.newly_silent(now_s=18.9) == [B]


def test_a_device_that_answers_again_is_named_once() -> None:
    rounds = assembler()
    rounds.add(A, [1.0], now_s=14.0)
    assert rounds.newly_silent(now_s=14.0) == [B]
    assert rounds.newly_answering() == []
    rounds.add(B, [math.nan], now_s=15.0)
    assert rounds.newly_answering() == [], "it answers, but gives no reading"
    rounds.add(B, [1.0], now_s=16.0)
    rounds.add(A, [1.0], now_s=16.0)
    assert rounds.newly_answering() == [B]
    assert rounds.newly_answering() == []


def test_three_rounds_that_are_late_by_chance_are_not_silence() -> None:
    rounds = assembler()
    for device in (A, B):
        rounds.add(device, [1.0], now_s=14.8)  # due at 15, early by a fifth of the interval
    assert rounds.newly_silent(now_s=18.5) == []  # due at 18, late by a fifth, and sent two fifths later
    assert rounds.newly_silent(now_s=18.7) == [A, B]


def test_a_watcher_that_was_delayed_calls_no_device_silent_whose_readings_wait_for_it() -> None:
    """A read that took 1.3 s returned one node's sample and not the other's, which was written meanwhile."""
    clock, rounds = WatchClock(longest_s=0.5, now_s=0.0), RoundAssembler([A, B], 0.5, 0.0, 0.0, 0.0)
    for tenth in range(100):
        now_s = clock.look(tenth / 10)
        if tenth % 5 == 0:
            rounds.add(A, [1.0], now_s)
        if tenth % 5 == 4:
            rounds.add(B, [1.0], now_s)
        rounds.take(now_s)
        assert rounds.newly_silent(now_s) == []

    now_s = clock.look(13.0)  # after 3.1 s, six rounds: the process was stopped, or the state server did not answer
    rounds.add(B, [1.0], now_s)
    assert rounds.newly_silent(now_s) == []
    rounds.add(A, [1.0], clock.look(13.1))
    assert rounds.newly_silent(clock.look(13.1)) == []


def test_a_silence_of_a_few_seconds_is_not_worth_a_word_however_many_rounds_it_lasts() -> None:
    rounds = RoundAssembler([A], interval_s=0.5, start_s=0.0)
    rounds.add(A, [1.0], now_s=20.0)
    assert rounds.newly_silent(now_s=25.0) == []
    assert rounds.newly_silent(now_s=25.1) == [A]


def test_a_device_that_falls_silent_is_named_by_a_watcher_that_is_often_delayed() -> None:
    clock, rounds = WatchClock(longest_s=0.5, now_s=0.0), RoundAssembler([A, B], 0.5, 0.0, 0.0, 0.0)
    named = []
    for look in range(10):
        now_s = clock.look(1.3 * look)
        rounds.add(A, [1.0], now_s)
        named += rounds.newly_silent(now_s)
    assert named == [B]


def test_a_watch_clock_counts_the_time_between_looks_up_to_a_limit() -> None:
    clock = WatchClock(longest_s=0.5, now_s=100.0)
    looks_s = (100.0, 100.25, 100.75, 107.0, 107.25)
    assert [clock.look(now_s) for now_s in looks_s] == [100, 100.25, 100.75, 101.25, 101.5]


def test_a_device_that_answers_only_nan_is_silent_and_delays_no_round() -> None:
    rounds = assembler()
    for number in range(20):
        rounds.add(A, [1.0], now_s=float(number))
        rounds.add(B, [math.nan, math.inf], now_s=float(number))
        assert rounds.take(now_s=float(number)) is not None
        assert rounds.newly_silent(now_s=float(number)) == ([B] if number == 14 else [])


def test_devices_have_time_to_start_before_they_count_as_silent() -> None:
    assert assembler().newly_silent(now_s=13.3) == []


def test_a_round_does_not_wait_for_a_device_that_is_known_to_be_silent() -> None:
    rounds = assembler()
    rounds.add(A, [1.0], now_s=14.0)
    assert rounds.take(now_s=14.1) is None
    assert rounds.newly_silent(now_s=14.1) == [B]
    assert rounds.take(now_s=14.2) == {A: [1.0]}
    rounds.add(B, [2.0], now_s=14.3)
    assert rounds.take(now_s=14.4) is None, "B is back, so A is waited for"
    rounds.add(A, [1.0], now_s=15.0)
    assert rounds.take(now_s=15.0) == {A: [1.0], B: [2.0]}


def test_a_device_that_comes_back_alone_can_fall_silent_again() -> None:
    rounds = assembler()
    assert rounds.newly_silent(now_s=20.0) == [A, B]
    rounds.add(A, [1.0], now_s=21.0)
    assert rounds.newly_silent(now_s=24.7) == []
    assert rounds.newly_silent(now_s=24.9) == [A]

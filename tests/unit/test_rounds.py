"""Readings become rounds, and a device that falls silent is named once."""

from __future__ import annotations

import math

from laggard.detectors.rounds import RoundAssembler

A, B = ("n1", "0"), ("n2", "0")


def assembler() -> RoundAssembler:
    return RoundAssembler([A, B], interval_s=1.0, start_s=0.0, start_allowance_s=10.0)


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


def test_a_device_that_reads_twice_within_a_round_adds_repeats() -> None:
    rounds = assembler()
    rounds.add(A, [1.0], now_s=5.0)
    rounds.add(A, [1.2], now_s=6.0)
    rounds.add(B, [2.0], now_s=6.1)
    assert rounds.take(now_s=6.1) == {A: [1.0, 1.2], B: [2.0]}


def test_a_silent_device_is_named_once_until_it_answers_again() -> None:
    rounds = assembler()
    rounds.add(A, [1.0], now_s=14.0)
    assert rounds.newly_silent(now_s=13.0) == []
    assert rounds.newly_silent(now_s=13.1) == [B]
    assert rounds.newly_silent(now_s=14.0) == []
    rounds.add(B, [1.0], now_s=15.0)
    rounds.add(A, [1.0], now_s=18.5)
    assert rounds.newly_silent(now_s=18.6) == [B]


def test_a_device_that_answers_only_nan_is_silent_and_delays_no_round() -> None:
    rounds = assembler()
    for number in range(20):
        rounds.add(A, [1.0], now_s=float(number))
        rounds.add(B, [math.nan, math.inf], now_s=float(number))
        assert rounds.take(now_s=float(number)) is not None
        assert rounds.newly_silent(now_s=float(number)) == ([B] if number == 14 else [])


def test_devices_have_time_to_start_before_they_count_as_silent() -> None:
    assert assembler().newly_silent(now_s=12.9) == []


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
    assert rounds.newly_silent(now_s=24.0) == []
    assert rounds.newly_silent(now_s=24.1) == [A]

"""When a program counts as hung."""

from __future__ import annotations

from laggard.resilience.decision.hang import HangTimeout, HangWatch


def first_hang_s(timeout: HangTimeout, signs_s: list[float], until_s: int) -> float | None:
    """Check a program with signs of life at these moments every second; return when it counted as hung."""
    watch = HangWatch(timeout, 0, 0.0)
    for now_s in range(1, until_s):
        if watch.check(sum(moment <= now_s for moment in signs_s), now_s) is not None:
            return now_s
    return None


def test_a_program_may_be_silent_for_its_timeout_and_not_longer() -> None:
    assert first_hang_s(30.0, [10, 20], 1000) == 51
    assert first_hang_s(30.0, [], 1000) == 31
    assert first_hang_s(30.0, list(range(0, 1000, 30)), 1000) is None


def test_the_derived_timeout_is_a_minute_for_quick_steps() -> None:
    assert first_hang_s("auto", [100, 101, 102, 103, 104], 1000) == 165


def test_the_derived_timeout_is_ten_times_the_longest_silence_and_starting_does_not_count() -> None:
    assert first_hang_s("auto", [500, 520, 530, 540, 550], 2000) == 751


def test_the_derived_timeout_needs_five_signs() -> None:
    assert first_hang_s("auto", [1, 2, 3, 4], 100_000) is None


def test_a_program_left_hanging_is_reported_once_per_timeout() -> None:
    watch = HangWatch(10.0, 0, 0.0)
    assert [now_s for now_s in range(40) if watch.check(0, now_s) is not None] == [11, 22, 33]

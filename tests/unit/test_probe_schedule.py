"""All devices run a round at one moment, early or late at random, and a device skips what it cannot afford."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.collectors.probe_schedule import OVERHEAD, Intrusion, ProbeSchedule, moment_s

NOW_S = 1.8e9  # a Unix time


def test_rounds_are_early_and_late_by_up_to_a_fifth_of_the_interval() -> None:
    late_s = [moment_s(number, 3.0, "a launch") - 3.0 * number for number in range(1000)]
    assert max(map(abs, late_s)) <= 0.6 + 1e-9
    assert min(late_s) < -0.5 < 0.5 < max(late_s)


def test_the_first_round_is_due_at_once() -> None:
    assert ProbeSchedule(3.0, NOW_S).wait_s(NOW_S) == 0


@given(
    st.floats(0.1, 100),
    st.lists(st.tuples(st.floats(0, 500), st.floats(0, 3)), min_size=2, max_size=6),
    st.integers(1, 5),
    st.text(max_size=5),
)
def test_all_devices_run_a_round_at_one_moment_whenever_they_started(
    interval_s: float, starts_and_tests_s: list[tuple[float, float]], stride: int, seed: str
) -> None:
    """Each device has its own start and its own time for a test, and no device knows of another."""
    moments: dict[int, set[float]] = {}
    for start_s, test_s in starts_and_tests_s:
        now_s = NOW_S + start_s
        schedule = ProbeSchedule(interval_s, now_s, seed)
        for _ in range(8):
            schedule.advance(now_s + test_s, stride)
            now_s += test_s + schedule.wait_s(now_s + test_s)
            assert schedule.number % stride == 0
            moments.setdefault(schedule.number, set()).add(round(now_s, 3))
    for of_round in moments.values():
        assert max(of_round) - min(of_round) <= 0.0011


def test_launches_and_metrics_have_moments_of_their_own() -> None:
    seeds = "probe 1", "probe 2", "bus 1"
    assert len({moment_s(7, 3.0, seed) for seed in seeds}) == len(seeds)


@given(
    interval_s=st.floats(0.1, 100),
    durations=st.lists(st.floats(0, 500), max_size=30),
    stride=st.integers(1, 5),
)
def test_a_round_comes_when_its_number_says_however_long_others_took(
    interval_s: float, durations: list[float], stride: int
) -> None:
    schedule, now_s = ProbeSchedule(interval_s, NOW_S), NOW_S
    numbers = [schedule.number]
    for duration_s in durations:
        now_s += schedule.wait_s(now_s) + duration_s
        schedule.advance(now_s, stride)
        numbers.append(schedule.number)
        at_s = now_s + schedule.wait_s(now_s)
        assert abs(at_s - schedule.number * interval_s) <= 0.2 * interval_s * (1 + 1e-9) + 1e-3
        assert at_s >= now_s  # what was missed is not made up for
        assert at_s - now_s <= (stride + 1.4) * interval_s + 1e-3

    assert all(later > earlier for earlier, later in itertools.pairwise(numbers))


@pytest.mark.parametrize(
    ("seconds", "check_s", "stride"),
    [
        (0.001, 0.0, 1),  # 3 ms of 3 s
        (0.001, 0.0075, 1),  # 10.5 ms, and a quarter more: 13.1 ms of at most 15
        (0.001, 0.015, 2),  # 18, and a quarter more: 22.5 ms
        (0.02, 0.0003, 6),  # 60.3, and a quarter more: 75.4 ms
    ],
)
def test_a_device_skips_rounds_so_that_its_probes_stay_within_their_share(
    seconds: float, check_s: float, stride: int
) -> None:
    intrusion = Intrusion(max_share=0.005)
    assert intrusion.stride(interval_s=3.0) == 1
    intrusion.note([seconds, 10 * seconds, seconds], check_s)
    assert intrusion.stride(interval_s=3.0) == stride


@given(
    st.lists(st.lists(st.floats(1e-6, 10), min_size=3, max_size=3), min_size=1, max_size=9),
    st.floats(1e-3, 1),
    st.floats(0.1, 60),
)
def test_the_share_is_kept_for_every_cost(rounds: list[list[float]], share: float, interval_s: float) -> None:
    intrusion = Intrusion(share)
    for seconds in rounds:
        intrusion.note(seconds, check_s=0.001)

    stride = intrusion.stride(interval_s)

    cost_s = OVERHEAD * (0.001 + 3 * min(map(min, rounds)))
    assert cost_s <= stride * interval_s * share * (1 + 1e-9)
    assert stride == 1 or cost_s > (stride - 1) * interval_s * share * (1 - 1e-9)


def test_a_wait_for_the_programs_own_kernels_is_not_a_cost() -> None:
    intrusion = Intrusion(max_share=0.005)
    intrusion.note([0.001] * 3, 0.0)
    intrusion.note([2.0] * 3, 0.0)
    intrusion.note([math.nan], 0.0)

    assert intrusion.cost_s == pytest.approx(0.003)

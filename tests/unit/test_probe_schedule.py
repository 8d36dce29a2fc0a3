"""A device's rounds stay aligned with the others', early or late at random, and it skips those it cannot afford."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.collectors.probe_schedule import OVERHEAD, Intrusion, ProbeSchedule, jittered


def test_readings_are_early_and_late_by_up_to_a_fifth_of_the_interval() -> None:
    random.seed(1)
    at = [jittered(100.0, 3.0) for _ in range(1000)]
    assert max(abs(at_s - 100.0) for at_s in at) <= 0.6
    assert min(at) < 99.5 < 100.5 < max(at)


@given(
    interval_s=st.floats(0.1, 100),
    durations=st.lists(st.floats(0, 500), max_size=30),
    stride=st.integers(1, 5),
)
def test_a_round_comes_when_its_number_says_however_long_others_took(
    interval_s: float, durations: list[float], stride: int
) -> None:
    schedule, now_s, numbers = ProbeSchedule(interval_s, 0.0), 0.0, [0]
    for duration_s in durations:
        now_s += schedule.wait_s(now_s) + duration_s
        schedule.advance(now_s, stride)
        numbers.append(schedule.number)
        due_s = schedule.number * interval_s
        early_s, late_s = due_s - 0.2 * interval_s, due_s + 0.2 * interval_s
        at_s = now_s + schedule.wait_s(now_s)
        assert early_s * (1 - 1e-9) - 1e-9 <= at_s <= max(now_s, late_s * (1 + 1e-9) + 1e-9)
        assert now_s - due_s < interval_s * (1 + 1e-9) + 1e-9  # never more than one behind

    assert all(later - earlier >= stride for earlier, later in itertools.pairwise(numbers))


@pytest.mark.parametrize(
    ("main_s", "other_s", "stride"),
    [
        (0.001, [], 1),  # 3 ms of 3 s
        (0.001, [0.001, 0.0025], 1),  # 3 ms and 7.5, and a quarter more: 13.1 ms of at most 15
        (0.001, [0.005], 2),  # 3 and 15, and a quarter more: 22.5 ms
        (0.02, [0.0001] * 3, 6),  # 60.3, and a quarter more: 75.4 ms
    ],
)
def test_a_device_skips_rounds_so_that_its_probes_stay_within_their_share(
    main_s: float, other_s: list[float], stride: int
) -> None:
    intrusion = Intrusion(max_share=0.005)
    intrusion.note("main", [main_s, 10 * main_s, main_s])
    for number, seconds in enumerate(other_s):
        intrusion.note(str(number), [seconds] * 3)

    assert intrusion.stride("main", interval_s=3.0) == stride


@given(
    st.lists(st.lists(st.floats(1e-6, 10), min_size=3, max_size=3), min_size=1, max_size=9),
    st.floats(1e-3, 1),
    st.floats(0.1, 60),
)
def test_the_share_is_kept_for_every_cost(rounds: list[list[float]], share: float, interval_s: float) -> None:
    intrusion = Intrusion(share)
    for seconds in rounds:
        intrusion.note("main", seconds, prepare_s=0.001)

    stride = intrusion.stride("main", interval_s)

    cost_s = OVERHEAD * (0.001 + 3 * min(map(min, rounds)))
    assert cost_s <= stride * interval_s * share * (1 + 1e-9)
    assert stride == 1 or cost_s > (stride - 1) * interval_s * share * (1 - 1e-9)


def test_a_wait_for_the_programs_own_kernels_is_not_a_cost() -> None:
    intrusion = Intrusion(max_share=0.005)
    intrusion.note("main", [0.001] * 3)
    intrusion.note("main", [2.0] * 3)
    intrusion.note("main", [math.nan])

    assert intrusion.cost_s("main") == pytest.approx(0.003)

"""Waits that grow, and calls that are due later: as tables, and on a clock of the tests' own."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.resilience.agent.later import Later
from laggard.resilience.decision.backoff import Backoff, backoff_s


@pytest.mark.parametrize(("failures", "wait_s"), [(0, 0), (1, 10), (2, 20), (3, 40), (6, 300), (10_000, 300)])
def test_each_wait_is_twice_as_long_as_the_one_before(failures: int, wait_s: float) -> None:
    assert backoff_s(failures, 10, 300) == wait_s


def test_a_helper_waits_a_second_at_first_and_a_minute_at_most() -> None:
    backoff = Backoff()
    assert [backoff.next_s(0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert backoff.next_s(59.9) == 60
    assert backoff.next_s(60) == 1


def test_a_process_that_was_well_begins_anew() -> None:
    backoff = Backoff(first_s=1, most_s=4, good_run_s=60)
    assert [backoff.next_s(ran_s) for ran_s in (0, 59.9, 0, 0, 60, 0)] == [1, 2, 4, 4, 1, 2]


@given(st.lists(st.integers(0, 100), min_size=1))
def test_calls_are_made_in_the_order_in_which_they_are_due_and_not_before(waits_s: list[int]) -> None:
    now_s = 0.0
    later = Later(lambda: now_s)
    called: list[int] = []
    for wait_s in waits_s:
        later.after(wait_s, partial(called.append, wait_s))
    while len(called) < len(waits_s):
        now_s += later.wait_s(1000.0)
        later.run_due()
        assert all(due_s <= now_s for due_s in called)
    assert called == sorted(waits_s)
    assert later.wait_s(7.0) == 7.0

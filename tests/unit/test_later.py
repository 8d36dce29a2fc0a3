"""Calls that are due later, on a clock of the tests' own."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from laggard.resilience.agent.later import Later


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

"""Threads share a call, but never one that began before they asked."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from laggard.telemetry.sharing import SharedCall
from tests.waiting import DEADLINE_S, wait_until

N_LATER = 5


def n_waiting() -> int:
    """Return how many threads have asked and wait for the lock."""
    frames = sys._current_frames().values()
    return sum(frame.f_code is SharedCall.__call__.__code__ and "n_before" in frame.f_locals for frame in frames)


def test_who_asks_during_a_call_shares_the_next_one() -> None:
    begun, may_end, n_calls = threading.Event(), threading.Event(), 0

    def call() -> int:
        nonlocal n_calls
        n_calls += 1
        begun.set()
        assert may_end.wait(DEADLINE_S)
        return n_calls

    shared = SharedCall(call)
    with ThreadPoolExecutor(1 + N_LATER) as threads:
        first = threads.submit(shared)
        assert begun.wait(DEADLINE_S)
        later = [threads.submit(shared) for _ in range(N_LATER)]
        wait_until(lambda: n_waiting() == N_LATER)
        may_end.set()
        assert first.result(DEADLINE_S) == 1
        assert {each.result(DEADLINE_S) for each in later} == {2}


def test_a_call_that_fails_is_repeated_by_whoever_asks_next() -> None:
    answers: Iterator[ValueError | int] = iter([ValueError("no answer"), 1])

    def call() -> int:
        answer = next(answers)
        if isinstance(answer, ValueError):
            raise answer
        return answer

    shared = SharedCall(call)
    with pytest.raises(ValueError, match="no answer"):
        shared()
    assert shared() == 1

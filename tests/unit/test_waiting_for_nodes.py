"""Waiting for many nodes: every change notifies, but all nodes are not looked at after each."""

from __future__ import annotations

import sys
import threading
import time

from laggard.resilience.nodes.waiting import wait_for

DEADLINE_S = 60.0


def test_a_change_ends_the_wait() -> None:
    changed, happened, looked = threading.Condition(), threading.Event(), threading.Event()

    def done() -> bool:
        looked.set()
        return happened.is_set()

    def change() -> None:
        looked.wait(DEADLINE_S)
        with changed:
            happened.set()
            changed.notify_all()

    thread = threading.Thread(target=change)
    thread.start()
    assert wait_for(changed, done, DEADLINE_S)
    thread.join()


def test_at_the_deadline_it_says_so() -> None:
    assert not wait_for(threading.Condition(), lambda: False, 0.01)


def test_while_a_look_takes_long_most_of_the_time_is_left_to_those_who_change_something() -> None:
    """Else ten thousand answers would each wait for a look at ten thousand nodes."""
    changed, n_looks, n_changes = threading.Condition(), 0, 0

    def done() -> bool:
        nonlocal n_looks
        n_looks += 1
        until_s = time.thread_time() + 0.002
        while time.thread_time() < until_s:
            pass
        return n_changes == 500

    def change() -> None:
        nonlocal n_changes
        for _ in range(500):
            with changed:
                n_changes += 1
                changed.notify_all()
            time.sleep(0)

    thread = threading.Thread(target=change)
    thread.start()
    assert wait_for(changed, done, DEADLINE_S)
    thread.join()
    assert n_looks < 50


def test_a_look_that_only_lasts_since_the_machine_is_busy_delays_nothing() -> None:
    changed, looks, pauses = threading.Condition(), iter([False, False, True]), list[object]()

    def done() -> bool:
        threading.Event().wait(0.01)  # the processor is taken away from it
        return next(looks)

    def note_pauses(_frame: object, event: str, called: object) -> None:
        if event == "c_call" and called is time.sleep:
            pauses.append(called)

    sys.setprofile(note_pauses)
    try:
        assert wait_for(changed, done, DEADLINE_S)
    finally:
        sys.setprofile(None)
    assert pauses == []

"""One thread waits for all connections: what it calls, when, and what ends it."""

from __future__ import annotations

import os
import selectors
import socket
import threading
from collections.abc import Iterator

import pytest

from laggard.resilience.agent.loop import Loop
from tests.waiting import wait_until

DEADLINE_S = 60.0


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop("test")
    yield loop
    loop.close()


def test_calls_come_in_order_and_from_one_thread_whoever_asks(loop: Loop) -> None:
    called: list[tuple[int, int, int]] = []

    def ask(asker: int) -> None:
        for number in range(1000):
            loop.call(lambda number=number: called.append((asker, number, threading.get_ident())))  # type: ignore[misc]

    askers = [threading.Thread(target=ask, args=(asker,)) for asker in range(4)]
    for asker in askers:
        asker.start()
    wait_until(lambda: len(called) == 4000)
    assert len({thread for _, _, thread in called}) == 1
    for number in range(4):
        assert [each for asker, each, _ in called if asker == number] == list(range(1000))


def test_what_a_call_asks_for_comes_later_and_not_before_its_time(loop: Loop) -> None:
    called: list[str] = []
    done = threading.Event()

    def first() -> None:
        loop.after(0.02, lambda: called.append("later"))
        loop.after(0.04, done.set)
        loop.call(lambda: called.append("soon"))
        called.append("first")

    loop.call(first)
    assert done.wait(DEADLINE_S)
    assert called == ["first", "soon", "later"]


def test_a_call_that_fails_ends_neither_the_loop_nor_the_calls_after_it(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()

    def fail() -> None:
        raise ValueError("a failure")

    loop.call(lambda: loop.after(0.0, fail))
    loop.call(fail)
    loop.call(lambda: loop.after(0.01, done.set))
    assert done.wait(DEADLINE_S)
    assert caplog.text.count("ValueError: a failure") == 2


def test_a_file_is_watched_for_what_was_asked_last_and_no_longer_than_wanted(loop: Loop) -> None:
    reader, writer = os.pipe()
    seen: list[int] = []

    def see(events: int) -> None:
        seen.append(events)
        loop.unwatch(writer)
        loop.unwatch(writer)  # twice does nothing

    loop.call(lambda: loop.watch(writer, selectors.EVENT_READ, lambda _: seen.append(-1)))
    loop.call(lambda: loop.watch(writer, selectors.EVENT_WRITE, see))
    wait_until(lambda: seen)
    later = threading.Event()
    loop.call(lambda: loop.after(0.05, later.set))
    assert later.wait(DEADLINE_S)
    assert seen == [selectors.EVENT_WRITE]
    os.close(reader)
    os.close(writer)


def test_closing_it_ends_the_thread_and_its_connections_and_later_calls_do_nothing() -> None:
    ours, theirs = socket.socketpair()
    loop, called = Loop("test"), threading.Event()
    loop.call(lambda: loop.watch(ours, selectors.EVENT_READ, lambda _: None))
    loop.call(called.set)
    loop.close()
    assert called.is_set(), "what was asked for before"
    assert theirs.recv(1) == b""
    loop.call(lambda: pytest.fail("it is closed"))
    loop.close()
    assert "test" not in {thread.name for thread in threading.enumerate()}
    theirs.close()

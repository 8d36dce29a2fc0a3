"""How long a client tries again while the state server does not answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.client.retry import RetryPolicy
from laggard.kvstore.errors import StateUnavailableError

ENDPOINT = Endpoint("127.0.0.1", 1, "job", "password")


class Clock:
    """Time passes only while somebody sleeps, or an operation takes some."""

    now_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def policy(clock: Clock) -> RetryPolicy:
    return RetryPolicy(ENDPOINT, 30.0, lambda: clock.now_s, clock.sleep)


def fails(clock: Clock, *each_takes_s: float) -> Callable[[], str]:
    """Return an operation that fails as often as times are given, and then succeeds."""
    left_s = list(each_takes_s)

    def operation() -> str:
        if not left_s:
            return "done"
        clock.now_s += left_s.pop(0)
        raise redis.ConnectionError("Connection refused")

    return operation


def test_an_operation_is_tried_again_until_it_succeeds(clock: Clock) -> None:
    assert policy(clock).call(fails(clock, 0.1, 0.1, 0.1)) == "done"


def test_a_server_that_does_not_answer_in_time_is_given_up(clock: Clock) -> None:
    with pytest.raises(StateUnavailableError):
        policy(clock).call(fails(clock, *[0.1] * 1000))
    assert 29.0 < clock.now_s < 31.0


def test_a_client_that_was_stopped_for_an_hour_tries_again(clock: Clock) -> None:
    assert policy(clock).call(fails(clock, 3600.0)) == "done"

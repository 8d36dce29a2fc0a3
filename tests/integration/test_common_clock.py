"""The clock that a job's processes share, with a real state server."""

from __future__ import annotations

import math
import time

import pytest

from laggard.kvstore.client.common_clock import MEASURE_EVERY_S, CommonClock
from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.server.process import StateServer

# Of a server on this machine; so much even where it is busy.
CLOSE_S = 1.0


class SetClock:
    """A machine's monotonic clock, at a zero of its own."""

    def __init__(self, zero_s: float) -> None:
        self.zero_s = zero_s

    def __call__(self) -> float:
        return time.monotonic() - self.zero_s


@pytest.mark.parametrize("zero_s", [0.0, 1e5, -1e5])
def test_processes_whose_own_clocks_differ_agree_on_the_time(state_server: StateServer, zero_s: float) -> None:
    client = state_server.endpoint.connect()
    ours, theirs = CommonClock(client), CommonClock(client, SetClock(zero_s))
    assert ours.uncertainty_s + theirs.uncertainty_s < CLOSE_S
    before_s, theirs_s, after_s = ours.now_s(), theirs.now_s(), ours.now_s()
    uncertain_s = ours.uncertainty_s + theirs.uncertainty_s
    assert before_s - uncertain_s <= theirs_s <= after_s + uncertain_s


def test_a_clock_that_drifts_is_corrected_after_a_minute(state_server: StateServer) -> None:
    own = SetClock(0.0)
    right, drifting = CommonClock(state_server.endpoint.connect()), CommonClock(state_server.endpoint.connect(), own)
    own.zero_s -= MEASURE_EVERY_S  # it is a minute ahead
    assert drifting.now_s() - right.now_s() > MEASURE_EVERY_S / 2
    drifting.measure_if_due()
    assert abs(drifting.now_s() - right.now_s()) < CLOSE_S


def test_without_the_server_it_is_the_machines_own_clock() -> None:
    clock = CommonClock(Endpoint("127.0.0.1", 9, "job", "secret").connect(timeout_s=0.2))
    assert clock.uncertainty_s == math.inf
    assert abs(clock.now_s() - time.time()) < CLOSE_S

"""Questions go before samples, which wait for a bounded time."""

from __future__ import annotations

import threading

from laggard.telemetry.nodes.precedence import Precedence
from tests.waiting import DEADLINE_S


def test_others_wait_until_the_last_block_has_ended() -> None:
    answering, went_on = Precedence(), threading.Event()

    def give_way() -> None:
        assert answering.give_way(DEADLINE_S)
        went_on.set()

    other = threading.Thread(target=give_way)
    with answering:
        with answering:
            other.start()
        assert not answering.give_way(0.0)
        assert not went_on.is_set()
    assert went_on.wait(DEADLINE_S)
    other.join(DEADLINE_S)


def test_others_wait_no_longer_than_they_say_and_not_at_all_for_nothing() -> None:
    answering = Precedence()
    assert answering.give_way(0.0)
    with answering:
        assert not answering.give_way(0.01)
    assert answering.give_way(0.0)

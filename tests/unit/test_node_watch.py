"""What is known of nodes from their answers to a small question."""

from __future__ import annotations

import time
from typing import Any

import pytest

from laggard.telemetry.nodes.bus import Replies
from laggard.telemetry.nodes.watch import NodeWatch
from tests.waiting import wait_until


class Asker:
    """Nodes that answer at once: one rightly, the others with this."""

    def __init__(self, odd: object) -> None:
        self.odd = odd

    def hosts(self) -> list[str]:
        return ["right", "odd"]

    def ask(self, question: dict[str, Any], *, hosts: list[str]) -> Replies:
        assert (question, hosts) == ({"kind": "ping"}, ["gone", "odd", "right"])
        answers = {"right": {"clock_s": time.time() + 100, "dropped": 3}, "odd": self.odd}
        return Replies(answers, took_s=dict.fromkeys(answers, 0.02))


@pytest.mark.parametrize("odd", [None, 5, "up", {}, {"clock_s": "now", "dropped": 0}, {"clock_s": 1.0}])
def test_an_answer_that_is_not_understood_is_no_answer_and_hides_nobody(odd: object) -> None:
    with NodeWatch(Asker(odd), lambda: ["gone"]) as watch:  # type: ignore[arg-type]
        wait_until(watch.health)

    health = watch.health()
    assert {host: each.up for host, each in health.items()} == {"gone": False, "odd": False, "right": True}
    assert (health["right"].lag_s, health["right"].dropped) == (0.02, 3)
    assert health["right"].clock_skew_s == pytest.approx(100, abs=5)

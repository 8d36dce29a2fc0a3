"""A clock that does not count the time in which this process slept."""

from __future__ import annotations

from resilience.attention import LONGEST_TICK_S, Attention


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def counted_s(*ticks_s: float) -> float:
    clock = Clock()
    attention = Attention(clock)
    for elapsed_s in ticks_s:
        clock.now_s += elapsed_s
        attention.tick()
    return round(attention.now_s(), 6)


def test_an_attentive_process_counts_every_second() -> None:
    assert counted_s(*[0.2] * 50) == 10


def test_a_process_that_gets_its_turn_somewhat_late_counts_every_second_too() -> None:
    assert counted_s(*[0.45] * 10) == 4.5


def test_the_time_in_which_it_slept_accuses_nobody() -> None:
    assert counted_s(0.2, 3600, 0.2) == 0.4 + LONGEST_TICK_S


def test_it_counts_by_itself_until_it_is_stopped() -> None:
    attention = Attention()
    attention.start()
    while attention.now_s() == 0:
        pass
    attention.stop()

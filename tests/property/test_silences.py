"""What is told of devices whose readings come and go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from laggard.collectors.device import DeviceId
from laggard.collectors.silences import HOUR_S, Silences

DEVICE: DeviceId = ("node1", "0")
Line = tuple[float, bool]


def told_of(spans_s: list[float], last_s: float) -> list[Line]:
    """Return when what is told of a device that answers, is silent, answers, ..., and at last stays as it is."""
    silences, lines, is_silent, now_s = Silences(), list[Line](), False, 0.0
    for span_s in [*spans_s, last_s]:
        news = {True: ([DEVICE], []), False: ([], [DEVICE])}[is_silent] if now_s else ([], [])
        ends_s = now_s + span_s
        while now_s <= ends_s:
            silent, answering = silences.add(*news, now_s)
            lines += [(now_s, True)] * len(silent) + [(now_s, False)] * len(answering)
            news, now_s = ([], []), now_s + 5.0
        is_silent = not is_silent
    return lines


@given(st.lists(st.floats(5, 4000), max_size=60))
def test_in_no_hour_more_than_two_lines_are_told_of_readings_that_come_and_go(spans_s: list[float]) -> None:
    lines = told_of(spans_s, 5.0)
    assert [is_silent for _, is_silent in lines] == [number % 2 == 0 for number in range(len(lines))]
    assert all(third - first >= HOUR_S for (first, _), (third, _) in zip(lines, lines[2:], strict=False))


@given(st.lists(st.floats(5, 4000), max_size=20))
def test_who_stays_silent_or_goes_on_answering_is_known_to_be_so_after_an_hour(spans_s: list[float]) -> None:
    lines = told_of(spans_s, HOUR_S + 5)
    was_told_silent = bool(lines) and lines[-1][1]
    assert was_told_silent == (len(spans_s) % 2 == 1)


def test_the_first_silence_and_its_end_are_told_at_once() -> None:
    assert told_of([60.0, 15.0], 60.0) == [(65.0, True), (85.0, False)]

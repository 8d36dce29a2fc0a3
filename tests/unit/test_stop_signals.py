"""What the signals do that ask a job to end."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from laggard.resilience.controller.stop_signals import SIGNAL_DEBOUNCE_S, WARNINGS, StopSignals
from laggard.resilience.controller.stopping import StopRequested

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *WARNINGS)


class Clock:
    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def signals(clock: Clock) -> Iterator[StopSignals]:
    before = {each: signal.getsignal(each) for each in ALL}
    signals = StopSignals(clock.monotonic, end=lambda **_: None)  # the test's own processes go on
    signals.listen()
    yield signals
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("signum", ALL)
def test_the_first_signal_asks_for_a_stop_and_a_later_one_ends_at_once(signum: signal.Signals, clock: Clock) -> None:
    with pytest.raises(StopRequested) as stop:
        signal.raise_signal(signum)
    assert stop.value.signum == signum
    signal.raise_signal(signal.SIGTERM)  # as Slurm does, twice in a row
    clock.now_s += SIGNAL_DEBOUNCE_S
    with pytest.raises(SystemExit) as end:
        signal.raise_signal(signal.SIGTERM)
    assert end.value.code == 128 + signal.SIGTERM


def test_a_signal_that_comes_after_what_it_asks_for_has_begun_asks_for_nothing_more(
    signals: StopSignals, clock: Clock
) -> None:
    signals.anticipate()
    clock.now_s += 60 * SIGNAL_DEBOUNCE_S
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    clock.now_s += SIGNAL_DEBOUNCE_S
    with pytest.raises(SystemExit):
        signal.raise_signal(signal.SIGTERM)

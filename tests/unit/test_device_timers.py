"""Timers of work on a GPU: found where a program uses one, and made of what PyTorch and CuPy really have."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from laggard.collectors.device_timers import CupyTimer, TorchTimer, find_device_timer
from tests.fake_cupy.machine import Board, cupy_on


def torch_on(cupy: Any) -> Any:
    """Return a stand-in for PyTorch on the stand-in for CuPy, with what a long test finds there."""

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing
            self.event = cupy.cuda.Event()

        def record(self) -> None:
            self.event.record()

        def query(self) -> bool:
            return bool(self.event.done)

        def elapsed_time(self, end_event: Event) -> float:
            return float(cupy.cuda.get_elapsed_time(self.event, end_event.event))

    cuda = SimpleNamespace(
        Event=Event,
        current_device=lambda: cupy.cuda.Device().id,
        is_current_stream_capturing=lambda: cupy.cuda.get_current_stream().is_capturing(),
        is_initialized=lambda: True,
    )
    return SimpleNamespace(cuda=cuda)


@pytest.mark.parametrize("kind", [TorchTimer, CupyTimer])
def test_a_timer_tells_the_devices_time_without_waiting(kind: type[TorchTimer | CupyTimer]) -> None:
    boards = Board(), Board()
    with cupy_on(*boards) as cupy, cupy.cuda.Device(1):
        timer = kind(torch_on(cupy) if kind is TorchTimer else cupy)
        begun = timer.mark()
        boards[1].works("kernel", None, 0.25)
        ended = timer.mark()
        assert timer.ordinal() == 1
        assert timer.is_reached(ended)
        assert timer.seconds(begun, ended) == pytest.approx(0.25)
        boards[1].stuck = True
        assert not timer.is_reached(timer.mark())


@pytest.mark.parametrize("kind", [TorchTimer, CupyTimer])
def test_a_timer_leaves_a_stream_alone_whose_work_becomes_a_graph(kind: type[TorchTimer | CupyTimer]) -> None:
    with cupy_on(Board()) as cupy:
        timer = kind(torch_on(cupy) if kind is TorchTimer else cupy)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.captures = True
            assert timer.mark() is None


def test_pytorchs_context_comes_before_cupys(monkeypatch: pytest.MonkeyPatch) -> None:
    with cupy_on(Board()) as cupy:
        cupy.zeros(4)
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        assert isinstance(find_device_timer(), CupyTimer)
        torch = torch_on(cupy)
        monkeypatch.setitem(sys.modules, "torch", torch)
        assert isinstance(find_device_timer(), TorchTimer)
        torch.cuda.is_initialized = lambda: False
        assert isinstance(find_device_timer(), CupyTimer)


def test_there_is_none_where_no_gpu_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with cupy_on(Board()):
        assert find_device_timer() is None, "CuPy is loaded, but has not used the device"
    with cupy_on(Board(is_amd=True)) as cupy:
        cupy.zeros(4)
        assert find_device_timer() is None, "ROCm has no contexts to ask for"
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    assert find_device_timer() is None

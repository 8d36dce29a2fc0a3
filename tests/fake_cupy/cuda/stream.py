"""CuPy's ``cupy.cuda.stream``: all streams of a board share its one virtual clock."""

from __future__ import annotations

from itertools import count
from typing import ClassVar, Self

from tests.fake_cupy.machine import CUDARuntimeError, the_machine

__all__ = ["Event", "Stream", "get_current_stream", "get_elapsed_time", "stream_of"]

_pointers = count(0x1000)


class Stream:
    """A stream of the device that is current when it is made; current itself within a ``with`` block."""

    null: ClassVar[Stream]

    def __init__(
        self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: int | None = None
    ) -> None:
        assert not ptds
        self.device_id = -1 if null else the_machine().board().used().number
        self.ptr = 0 if null else next(_pointers)
        self.is_non_blocking, self.priority = non_blocking, priority or 0
        self.captures = False  # a test may set it: work is then not captured

    def __enter__(self) -> Self:
        machine = the_machine()
        if self.device_id not in (-1, machine.device):
            raise RuntimeError(
                f"The device that the stream is created on ({self.device_id})"
                f" does not match with the current device ({machine.device})"
            )
        machine.streams[machine.device].append(self)
        return self

    def __exit__(self, *_: object) -> None:
        streams = the_machine().streams
        next(stack for stack in streams.values() if stack and stack[-1] is self).pop()

    def is_capturing(self) -> bool:
        return self.captures

    def synchronize(self) -> None:
        if self.captures:
            raise CUDARuntimeError(900)
        the_machine().board(None if self.device_id == -1 else self.device_id).synchronize()


Stream.null = Stream(null=True)


class Event:
    """A moment of the clock of the board on whose current stream it is recorded."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        assert not interprocess
        self.block, self.has_time = block, not disable_timing
        self.device_id = the_machine().board().used().number
        self.at_s: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        assert stream is None
        if the_machine().device != self.device_id:
            raise CUDARuntimeError(400)
        stream = get_current_stream()
        assert not stream.captures, "an event with a time cannot be recorded in a graph"
        self.at_s = the_machine().board(self.device_id).reach_event()

    @property
    def done(self) -> bool:
        """Whether the device has reached it: not while it is stuck."""
        return self.at_s is not None and not the_machine().board(self.device_id).used().stuck

    def synchronize(self) -> None:
        the_machine().board(self.device_id).synchronize()


def get_current_stream(device_id: int = -1) -> Stream:
    machine = the_machine()
    stack = machine.streams[machine.device if device_id == -1 else device_id]
    return stack[-1] if stack else Stream.null


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Return milliseconds."""
    if start_event.at_s is None or end_event.at_s is None or not (start_event.has_time and end_event.has_time):
        raise CUDARuntimeError(400)
    return (end_event.at_s - start_event.at_s) * 1000


def stream_of(pointer: int) -> Stream:
    """Return the current stream, which must be the one that is named."""
    stream = get_current_stream()
    assert stream.ptr == pointer, f"stream {pointer:#x} is not the current one of device {the_machine().device}"
    return stream

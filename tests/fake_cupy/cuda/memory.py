"""CuPy's ``cupy.cuda.memory``: pointers into a board's memory."""

from __future__ import annotations

from tests.fake_cupy.cuda.stream import Stream, get_current_stream
from tests.fake_cupy.machine import Memory, OutOfMemoryError, the_machine

__all__ = ["MemoryPointer", "OutOfMemoryError"]


class MemoryPointer:
    """A place in a piece of a board's memory."""

    def __init__(self, mem: Memory, offset: int) -> None:
        self.mem, self.ptr, self.device_id = mem, mem.ptr + offset, mem.device_id

    def copy_from_device_async(self, src: MemoryPointer, size: int, stream: Stream | None = None) -> None:
        """Copy, directly between boards of which the source's can reach the other, else by way of the host."""
        assert stream is None
        machine = the_machine()
        source, target = src.mem.board, self.mem.board
        target.memory_at(self.ptr, size)[:] = source.memory_at(src.ptr, size)
        if target.number in source.peers:
            source.enabled_peers.add(target.number)  # CuPy turns it on
        direct = source is target or target.number in source.enabled_peers
        usual = source.speed.link_bytes_s if direct else source.speed.bus_bytes_s / 2
        rate = source.rate_to.get(target.number, usual)
        for board in {machine.board(), source, target}:
            seconds = size / rate if board is machine.board() else 0.0
            board.works("copy_between_devices", get_current_stream(), seconds)

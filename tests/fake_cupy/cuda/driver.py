"""CuPy's ``cupy.cuda.driver``."""

from __future__ import annotations

from tests.fake_cupy.machine import the_machine

__all__ = ["ctxGetCurrent"]

_CONTEXT = 0xC0DE  # of device 0; the next ones' follow


def ctxGetCurrent() -> int:  # noqa: N802 - CuPy's name
    """Return the current context; 0 as long as nothing has run or been allocated on the current device."""
    machine = the_machine()
    if not machine.boards:
        return 0
    board = machine.board()
    return _CONTEXT + board.number if board.log or board.peak_bytes else 0

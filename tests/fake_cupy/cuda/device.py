"""CuPy's ``cupy.cuda.device``."""

from __future__ import annotations

from typing import Self

from tests.fake_cupy.machine import the_machine

__all__ = ["Device", "get_cublas_handle"]

_HANDLE = 0xB1A5  # of device 0; the next ones' follow


class Device:
    """A device, current within a ``with`` block."""

    def __init__(self, device: int | None = None) -> None:
        self.id = the_machine().device if device is None else device
        self._before: list[int] = []

    def __enter__(self) -> Self:
        self._before.append(the_machine().device)
        the_machine().device = self.id
        return self

    def __exit__(self, *_: object) -> None:
        the_machine().device = self._before.pop()

    def synchronize(self) -> None:
        the_machine().board(self.id).synchronize()


def get_cublas_handle() -> int:
    return _HANDLE + the_machine().board().used().number

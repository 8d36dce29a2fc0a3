"""What others see of this process's environment: the kernel shows what it was started with."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from pathlib import Path


def show(environment: Mapping[str, str], comes_first: Callable[[str], bool]) -> None:
    """Show an environment in ``/proc``; what has no room there is left out, last of all what is to come first."""
    begin, end = map(int, Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[47:49])
    shown, room = b"", end - begin - 1
    for name in sorted(environment, key=lambda name: not comes_first(name)):
        entry = os.fsencode(f"{name}={environment[name]}") + b"\0"
        if len(shown) + len(entry) <= room:
            shown += entry
    if begin:  # otherwise the kernel does not say where it is
        for name, value in list(os.environ.items()):  # a copy for the C library, which reads what is overwritten
            os.environ[name] = value
        ctypes.memmove(begin, shown + bytes(end - begin - len(shown)), end - begin)

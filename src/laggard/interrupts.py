"""Ctrl-C while Python loads: an import that it interrupts prints a traceback, wherever that is caught."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended_by_interrupts() -> Iterator[None]:
    """End the process at once, with exit code 130, if Ctrl-C comes in this block: it has nothing to clean up."""
    # Outside of the main thread, and where Ctrl-C is handled already, nothing changes.
    changes = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not changes:
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(signum: int, _: object) -> None:
    os._exit(128 + signum)

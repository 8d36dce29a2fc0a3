"""Sections: the program times parts of its own step, and slow ranks are found by comparing them.

    with laggard.section("forward"):
        loss = model(batch)

A section only appends its seconds to a buffer. A background thread sends the median of each section once per interval,
as samples of a metric of its own, and :class:`laggard.detectors.SectionDetector` compares the ranks.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import os
import threading
from collections import deque
from contextlib import AbstractContextManager
from time import perf_counter
from types import TracebackType
from typing import Any

from laggard.collectors.device_timers import DeviceTimer, find_device_timer
from laggard.kvstore.client.environment import ENDPOINT_FILE

_log = logging.getLogger("laggard.collectors")

MAX_SECTIONS = 64  # of a program: a name made of a step number would be one more each time
MAX_BUFFERED = 4096  # of one section in one interval, the newest ones: enough for a median
# Two events cost several times as much as a section without them.
DEVICE_TIMING_EVERY_S = 0.01
_MAX_RESOLVED = 2  # finished uses that a use looks at: more than it adds
_Span = tuple[Any, Any]
"""The events at both ends of a section; None if there is none."""


def section(name: str, *, waits: bool = False, group: str | int | None = None) -> AbstractContextManager[None]:
    """Time a part of this process's step: ``with laggard.section("forward"): ...``.

    Ranks are compared section by section. Outside a job nothing is kept. If the program uses a GPU through PyTorch or
    CuPy, the time is that between two events in the current stream, so nothing waits for the device; otherwise it is
    that of a monotonic clock. A use that ends with an exception does not count.

    Sections may be nested, and used by several threads. They do not belong inside functions that are compiled
    (``torch.compile``), or in coroutines that take turns in one thread.

    Parameters
    ----------
    name
        Name of the section, the same on all ranks. At most 64 different ones.
    waits
        The section waits for other ranks, as in a collective. It is never judged, and its time does not count in the
        sections around it: otherwise all ranks would seem to be as slow as the slowest.
    group
        Label of this rank in this section, for instance its pipeline stage; only ranks with the same label are
        compared. ``None``: the label in ``LAGGARD_GROUP``, or that of the detector's ``groups``.

    Examples
    --------
    >>> with section("step"):
    ...     with section("all_reduce", waits=True):
    ...         pass
    """
    key = name if group is None and not waits else (name, waits, group)
    found = _sections.get(key)
    return _add_section(key, Section(name, group, waits=waits)) if found is None else found


class _Thread(threading.local):
    """What a thread has open: for each section what has been waited in it, and when it began."""

    def __init__(self) -> None:
        self.open: list[Any] = []


class _Device:
    """The GPU that the program uses, as far as it is known."""

    __slots__ = ("is_out_of_question", "ordinal", "timer")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Know nothing."""
        self.timer: DeviceTimer | None = None  # times work on it; None: there is none, or it is not known yet
        self.ordinal: int | None = None  # its index among those that the process sees
        self.is_out_of_question = True  # whether there is neither a timer nor a reason to look for one

    def look(self) -> None:
        """Look for a timer; from a thread of the program, since another one has no context."""
        try:
            timer = find_device_timer()
            self.ordinal = None if timer is None else timer.ordinal()
            self.timer = timer
        except Exception as error:  # noqa: BLE001 - a library that is half loaded or has no driver may raise anything
            _log.info("sections are timed on the host: %s", error)
        self.is_out_of_question = self.timer is None

    def look_again(self) -> None:
        """Have the next section look, if the device is not known yet."""
        self.is_out_of_question = False

    def mark(self) -> Any:
        """Return an event in the current stream; None if that is not possible now."""
        try:
            return None if self.timer is None else self.timer.mark()
        except RuntimeError:
            return None  # the device is in trouble, which the program notices itself


class Section:
    """One section of this process, for all of its threads. Nothing here takes a lock."""

    __slots__ = ("_add", "_due_s", "_pending", "group", "name", "seconds", "waits")

    def __init__(self, name: str, group: str | int | None = None, *, waits: bool = False) -> None:
        if not name or not isinstance(name, str):
            raise TypeError(f"the name of a section is {name!r}: it must be text")
        self.name, self.waits = name, waits
        self.group = None if group is None else str(group)
        # Of the uses since they were last sent; whoever sends them takes them from the left
        self.seconds: deque[float] = deque(maxlen=MAX_BUFFERED)
        self._pending: deque[tuple[Any, Any, list[_Span]]] = deque(maxlen=MAX_BUFFERED)
        self._add = self.seconds.append
        self._due_s = -math.inf

    def ignored(self) -> Section:
        """Have nothing kept from now on."""
        self.seconds = deque(maxlen=0)
        self._add = self.seconds.append
        return self

    def __enter__(self) -> None:
        stack = _thread.open
        if not _device.is_out_of_question:
            self._enter_on_device(stack)
            return
        stack.append(0.0)
        stack.append(perf_counter())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now_s = perf_counter()
        stack = _thread.open
        begun = stack.pop()
        waited = stack.pop()
        if type(begun) is not float:
            self._exit_on_device(stack, begun, waited, counts=kind is None)
            return
        seconds = now_s - begun
        if stack:
            stack[-2] += seconds if self.waits else waited
        if kind is None:
            self._add(seconds - waited)

    def _enter_on_device(self, stack: list[Any]) -> None:
        if _device.timer is None:
            _device.look()
        if _device.timer is None:
            stack += 0.0, perf_counter()
            return
        now_s = perf_counter()
        around = stack[-2] if stack else None
        counted_by = around if self.waits and isinstance(around, list) else None  # a section around it that is timed
        begun = None
        if now_s >= self._due_s or counted_by is not None:
            self._due_s = now_s + DEVICE_TIMING_EVERY_S
            begun = _device.mark()
            if begun is None and counted_by is not None:
                counted_by.append((None, None))
        # A section that is not timed leaves it to the one around it how long is waited in it.
        stack += around if begun is None else [], begun

    def _exit_on_device(self, stack: list[Any], begun: Any, waits: list[_Span], *, counts: bool) -> None:
        around = stack[-2] if stack else None
        if isinstance(around, float):
            stack[-2] = math.nan  # it began before the device was known
        if begun is None:
            return
        ended = _device.mark() if counts else None
        if isinstance(around, list):
            around += [(begun, ended)] if self.waits else waits
        if ended is not None and not any(None in span for span in waits):
            self._pending.append((begun, ended, waits))
            self._resolve()

    def _resolve(self) -> None:
        """Turn the oldest uses that the device has finished into seconds."""
        # Not left to the background thread: while one thread captures a graph, others must not ask for events.
        timer = _device.timer
        try:
            for _ in range(_MAX_RESOLVED):
                if timer is None or not self._pending or not timer.is_reached(self._pending[0][1]):
                    return
                begun, ended, waits = self._pending.popleft()
                self._add(timer.seconds(begun, ended) - sum(timer.seconds(*span) for span in waits))
        except (IndexError, RuntimeError):
            return  # another thread was faster, or the device is in trouble, which the program notices itself


_thread = _Thread()
_device = _Device()
_sections: dict[Any, Section] = {}
_starts = itertools.count()  # of the thread that sends; the first of several threads starts it


def _add_section(key: Any, new: Section) -> Section:
    """Keep a new section; nothing is kept of its times outside a job, or if there are too many."""
    if ENDPOINT_FILE not in os.environ:
        return _sections.setdefault(key, new.ignored())
    if len(_sections) >= MAX_SECTIONS:
        _warn_of_too_many(MAX_SECTIONS)
        return new.ignored()
    if next(_starts) == 0:
        _forget_in_children()
        from laggard.collectors.section_sender import send_sections  # which a program outside a job does not need

        send_sections(_sections, _device.look_again, lambda: _device.ordinal)
    return _sections.setdefault(key, new)


@functools.cache
def _warn_of_too_many(limit: int) -> None:
    _log.warning("there are more than %d different sections: the others are not timed", limit)


@functools.cache
def _forget_in_children() -> None:
    """Have a forked process begin anew with its first section: it has no thread that sends."""
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    global _starts
    _sections.clear()
    _device.forget()
    _starts = itertools.count()

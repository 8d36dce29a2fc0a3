"""Which silences of devices are told: not each of those that come and go. Pure: the time is passed in."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection

from laggard.collectors.device import DeviceId

HOUR_S = 3600.0
IN_AN_HOUR = 2


class Silences:
    """The devices that give no readings, and what was told of them: at most two lines in an hour about each.

    What may not be told yet is told later, if it is still so.
    """

    def __init__(self) -> None:
        self._silent: set[DeviceId] = set()
        self._told: set[DeviceId] = set()  # those that were last told to be silent
        self._lines_s: dict[DeviceId, deque[float]] = {}  # when the last two were told

    def add(
        self, newly_silent: Collection[DeviceId], newly_answering: Collection[DeviceId], now_s: float
    ) -> tuple[list[DeviceId], list[DeviceId]]:
        """Note what is new; return which devices to tell of, as silent and as answering again."""
        self._silent -= {*newly_answering}
        self._silent |= {*newly_silent}
        due = [device for device in self._silent ^ self._told if self._may_tell(device, now_s)]
        for device in due:
            self._lines_s.setdefault(device, deque([-math.inf], IN_AN_HOUR)).append(now_s)
        silent = [device for device in due if device in self._silent]
        answering = [device for device in due if device not in self._silent]
        self._told |= {*silent}
        self._told -= {*answering}
        return sorted(silent), sorted(answering)

    def see(self, silent: Collection[DeviceId], now_s: float) -> tuple[list[DeviceId], list[DeviceId]]:
        """Note all that are silent now; return what :meth:`add` does."""
        return self.add({*silent} - self._silent, self._silent - {*silent}, now_s)

    def _may_tell(self, device: DeviceId, now_s: float) -> bool:
        return device not in self._lines_s or now_s - self._lines_s[device][0] >= HOUR_S

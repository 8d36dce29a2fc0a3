"""Which silences of devices are told: not each of those that come and go. Pure: the time is passed in."""

from __future__ import annotations

import math
from collections.abc import Collection

from laggard.collectors.device import DeviceId

QUIET_S = 3600.0  # since the last line about a device, for which short silences of it are not told
LONG_S = 600.0  # a silence as long is told all the same


class Silences:
    """The devices that give no readings, and what was told of them: in an hour, two lines about short silences."""

    def __init__(self) -> None:
        self._since_s: dict[DeviceId, float] = {}  # of those that are silent now
        self._told: set[DeviceId] = set()
        self._last_s: dict[DeviceId, float] = {}  # when something was told of a device

    def add(
        self, newly_silent: Collection[DeviceId], newly_answering: Collection[DeviceId], now_s: float
    ) -> tuple[list[DeviceId], list[DeviceId]]:
        """Note what is new; return which devices to tell of, as silent and as answering again."""
        for device in newly_answering:
            self._since_s.pop(device, None)
        self._since_s |= dict.fromkeys(newly_silent, now_s)
        silent = [device for device in self._since_s if device not in self._told and self._is_due(device, now_s)]
        answering = [device for device in newly_answering if device in self._told and device not in self._since_s]
        self._told |= {*silent}
        self._told -= {*answering}
        self._last_s |= dict.fromkeys((*silent, *answering), now_s)
        return silent, answering

    def see(self, silent: Collection[DeviceId], now_s: float) -> tuple[list[DeviceId], list[DeviceId]]:
        """Note all that are silent now; return what :meth:`add` does."""
        new = [device for device in silent if device not in self._since_s]
        return self.add(new, [device for device in self._since_s if device not in silent], now_s)

    def _is_due(self, device: DeviceId, now_s: float) -> bool:
        was_quiet = now_s - self._last_s.get(device, -math.inf) >= QUIET_S
        return was_quiet or now_s - self._since_s[device] >= LONG_S

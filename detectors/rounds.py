"""Rounds: readings as they arrive, put together into one reading of every device. Pure: the time is passed in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

__all__ = ["DeviceKey", "Round", "RoundAssembler"]

DeviceKey = tuple[str, str]
"""``(host, gpu)``"""

Round = dict[DeviceKey, list[float]]
"""The repeats of each device in one round, in seconds; a device that did not answer is missing."""


class RoundAssembler:
    """Collects readings until every expected device has answered, or until it has waited long enough.

    Parameters
    ----------
    devices
        The devices that are expected to answer.
    interval_s
        Seconds from one round to the next. A round waits two of them for its last devices; a device that was not heard
        for three is silent.
    start_s
        When the collectors were started.
    start_allowance_s
        How long they may take to come up.
    """

    def __init__(
        self, devices: Iterable[DeviceKey], interval_s: float, start_s: float, start_allowance_s: float = 15.0
    ) -> None:
        self._interval_s = interval_s
        self._readings: Round = {}
        self._opened_s = start_s
        self._heard_s = dict.fromkeys(devices, start_s + start_allowance_s)
        self._silent: set[DeviceKey] = set()

    def add(self, device: DeviceKey, values: Sequence[float], now_s: float) -> None:
        """Take one device's reading; one that reads twice within a round adds repeats to it.

        A device whose readings are all NaN or infinite answers and says nothing: it becomes silent too.
        """
        if not self._readings:
            self._opened_s = now_s
        self._readings.setdefault(device, []).extend(values)
        self._heard_s.setdefault(device, now_s)
        if any(map(math.isfinite, values)):
            self._heard_s[device] = now_s
            self._silent.discard(device)

    def take(self, now_s: float) -> Round | None:
        """Return the round if it is complete or has waited long enough, else ``None``."""
        complete = self._heard_s.keys() <= self._readings.keys()
        waited = now_s - self._opened_s >= 2 * self._interval_s
        if not self._readings or not (complete or waited):
            return None
        readings, self._readings = self._readings, {}
        return readings

    def newly_silent(self, now_s: float) -> list[DeviceKey]:
        """Return the devices that have just become silent: each is named once, until it is heard again."""
        silent = {device for device, heard_s in self._heard_s.items() if now_s - heard_s > 3 * self._interval_s}
        news = sorted(silent - self._silent)
        self._silent = silent
        return news

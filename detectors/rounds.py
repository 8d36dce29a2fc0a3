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
        for three is silent, and no round waits for it until it is heard again.
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
        self._silence_from_s = -math.inf  # before this nobody can fall silent

    def add(self, device: DeviceKey, values: Sequence[float], now_s: float) -> None:
        """Take one device's reading; one that reads twice within a round adds repeats to it.

        A device whose readings are all NaN or infinite answers and says nothing: it becomes silent too.
        """
        if not self._readings:
            self._opened_s = now_s
        self._readings.setdefault(device, []).extend(values)
        self._heard_s.setdefault(device, now_s)
        self._silence_from_s = min(self._silence_from_s, now_s + 3 * self._interval_s)
        if any(map(math.isfinite, values)):
            self._heard_s[device] = now_s
            self._silent.discard(device)

    def expect_every(self, interval_s: float) -> None:
        """Wait for devices that answer more seldom than the others."""
        self._interval_s = max(self._interval_s, interval_s)

    def take(self, now_s: float) -> Round | None:
        """Return the round if it is complete or has waited long enough, else ``None``."""
        not_waited_for = self._silent - self._readings.keys()
        complete = len(self._readings) + len(not_waited_for) >= len(self._heard_s)
        waited = now_s - self._opened_s >= 2 * self._interval_s
        if not self._readings or not (complete or waited):
            return None
        readings, self._readings = self._readings, {}
        return readings

    def newly_silent(self, now_s: float) -> list[DeviceKey]:
        """Return the devices that have just become silent: each is named once, until it is heard again."""
        silence_s = 3 * self._interval_s
        if now_s <= self._silence_from_s:
            return []
        silent = {device for device, heard_s in self._heard_s.items() if now_s - heard_s > silence_s}
        news = sorted(silent - self._silent)
        self._silent = silent
        heard_first_s = min(
            (heard_s for device, heard_s in self._heard_s.items() if device not in silent), default=math.inf
        )
        self._silence_from_s = heard_first_s + silence_s
        return news

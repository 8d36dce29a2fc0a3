"""Rounds: assembles readings, as they arrive, into one reading of every device. Pure: the time is passed in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from laggard.collectors.device import DeviceId
from laggard.collectors.group import SENT_WITHIN
from laggard.collectors.probe_schedule import JITTER

Round = dict[DeviceId, list[float]]
"""Each device's repeats in one round, in seconds; a device that did not answer is missing."""


MOST_REPEATS = 1000  # of a device in a round

# Three rounds, of which the one before was early and the last is late, and sent late.
_SILENT_AFTER = 3 + 2 * JITTER + SENT_WITHIN  # intervals


class WatchClock:
    """Measures the time during which somebody looked: of the time between two looks, at most ``longest_s`` counts.

    A watcher that was stopped, or waited for the state server, has not seen what the devices did meanwhile, so its own
    delay must not look like their silence.
    """

    def __init__(self, longest_s: float, now_s: float) -> None:
        self._longest_s = longest_s
        self._looked_s = self._watched_s = now_s

    def look(self, now_s: float) -> float:
        """Return the time on this clock; ``now_s`` is the time before looking."""
        self._watched_s += min(now_s - self._looked_s, self._longest_s)
        self._looked_s = now_s
        return self._watched_s


class RoundAssembler:
    """Collects readings until every expected device has answered, or the wait is over."""

    def __init__(
        self,
        devices: Iterable[DeviceId],
        interval_s: float,
        start_s: float,
        start_allowance_s: float = 15.0,
        shortest_silence_s: float = 5.0,
    ) -> None:
        # Seconds from one round to the next. A round waits for missing devices for two intervals. A device that has not
        # answered for three rounds is silent, and no round waits for it until it answers again.
        self._interval_s = interval_s
        self._every_s: dict[DeviceId, float] = {}  # time from one answer of a device to the next, by its own word
        self._usual_s: float | None = interval_s  # that of most devices, but no less; `None`: not known now
        # No device is called silent before: on a busy machine, any process may be delayed by a few seconds
        self._shortest_silence_s = shortest_silence_s
        self._readings: Round = {}
        self._opened_s = start_s
        self._answered_s = dict.fromkeys(devices, start_s + start_allowance_s)
        self._silent: set[DeviceId] = set()
        self._back: set[DeviceId] = set()  # answer again, and not named yet
        self._silence_from_s = -math.inf  # before this no device can become silent

    def add(self, device: DeviceId, values: Sequence[float], now_s: float) -> None:
        """Add one device's reading; a second reading in the same round adds repeats."""
        # A device whose readings are all NaN or infinite becomes silent too, although it answers.
        if not self._readings:
            self._opened_s = now_s
        readings = self._readings.setdefault(device, [])
        readings.extend(values[: MOST_REPEATS - len(readings)])
        self._answered_s.setdefault(device, now_s)
        self._silence_from_s = min(self._silence_from_s, now_s + self._silence_s(device))
        if any(map(math.isfinite, values)):
            self._answered_s[device] = now_s
            if device in self._silent:
                self._silent.remove(device)
                self._back.add(device)

    def _silence_s(self, device: DeviceId) -> float:
        every_s = max(self._interval_s, self._every_s.get(device, 0.0))
        return max(_SILENT_AFTER * every_s, self._shortest_silence_s)

    def expect_every(self, device: DeviceId, every_s: float) -> None:
        """Allow for a device that answers less often: rounds wait for as long as most devices take."""
        if self._every_s.get(device) != every_s:
            self._every_s[device], self._usual_s = every_s, None

    def _wait_s(self) -> float:
        """Return for how long a round waits for missing devices: a few that are rare by their own word delay none."""
        if self._usual_s is None:
            rarest_first, middle = sorted(self._every_s.values(), reverse=True), len(self._answered_s) // 2
            self._usual_s = max(self._interval_s, *rarest_first[middle : middle + 1], 0.0)
        return 2 * self._usual_s

    def take(self, now_s: float) -> Round | None:
        """Return the round if it is complete or the wait is over, else ``None``."""
        not_waited_for = self._silent - self._readings.keys()
        complete = len(self._readings) + len(not_waited_for) >= len(self._answered_s)
        waited = now_s - self._opened_s >= self._wait_s()
        if not self._readings or not (complete or waited):
            return None
        readings, self._readings = self._readings, {}
        return readings

    def newly_silent(self, now_s: float) -> list[DeviceId]:
        """Return the devices that have just become silent: each once, until it answers again."""
        if now_s <= self._silence_from_s:
            return []
        due_s = {device: answered_s + self._silence_s(device) for device, answered_s in self._answered_s.items()}
        silent = {device for device, each_s in due_s.items() if now_s > each_s}
        newly_silent = sorted(silent - self._silent)
        self._silent = silent
        self._silence_from_s = min(
            (each_s for device, each_s in due_s.items() if device not in silent), default=math.inf
        )
        return newly_silent

    def newly_answering(self) -> list[DeviceId]:
        """Return the silent devices that have just given a reading again, each once."""
        back, self._back = sorted(self._back), set()
        return back

"""What devices are doing beside the probes: an idle or cold device reads less than a busy, warm one.

Temperature and clock never excuse a device that is hotter or slower than its peers: that is what most faults look like.
So a device is told from its peers only if it is colder than they are, and has only two states more: idle, and busy.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from statistics import median

from laggard.collectors.causes import TEMPERATURE, UTILISATION, WARMED
from laggard.collectors.device import DeviceId

_BUSY_FROM = 0.1  # utilisation
_BUSY_ROUNDS = 2  # in a row: a copy or a test of the program is not yet its work
_COLD_BY_C = 10.0  # colder than its peers
_MUCH_BUSIER = 0.05  # utilisation, above that of its peers
_REMEMBERED = 32  # rounds
_HOTTEST_C = 200.0


def _within(tags: Mapping[str, str], name: str, most: float) -> float | None:
    """Return the number in a tag, if it has one, and if that can be."""
    if name in tags and not 0 <= float(tags[name]) <= most:
        raise ValueError(f"a device's {name} cannot be {tags[name]}")
    return float(tags[name]) if name in tags else None


class DeviceState(enum.IntFlag):
    """What raises a device's readings though nothing is wrong with it; without any, it is idle and cold."""

    BUSY = 1
    WARM = 2


@dataclass(slots=True)
class _Seen:
    """What the driver said of a device last."""

    utilisation: float | None = None
    temperature_c: float | None = None
    mean_utilisation: float = 0.0  # of the last rounds in which it was busy
    n_mean: int = 0
    busy_rounds: int = 0


class DeviceStates:
    """The states of a launch's devices, from round to round."""

    def __init__(self) -> None:
        self._seen: dict[DeviceId, _Seen] = {}

    def note(self, device: DeviceId, tags: Mapping[str, str]) -> None:
        """Record what a sample's tags say of its device."""
        if UTILISATION in tags or TEMPERATURE in tags or device in self._seen:
            seen = self._seen.setdefault(device, _Seen())
            percent = _within(tags, UTILISATION, 100.0)
            seen.utilisation = None if percent is None else percent / 100
            seen.temperature_c = _within(tags, TEMPERATURE, _HOTTEST_C)
            if WARMED in tags:
                seen.utilisation = 0.0  # its clock was that of an idle device

    def of_round(
        self, devices: Collection[DeviceId], labels: Mapping[DeviceId, Hashable], *, has_progress: bool
    ) -> dict[DeviceId, DeviceState]:
        """Return the states of a round's devices."""
        usual_c = self._usual_temperatures(devices, labels)
        unknown = DeviceState.BUSY if has_progress else DeviceState(0)
        found = dict.fromkeys(devices, unknown)
        for device in devices & self._seen.keys():
            seen, state = self._seen[device], unknown
            if seen.utilisation is not None:
                state = self._by_utilisation(seen, seen.utilisation)
            if seen.temperature_c is not None and seen.temperature_c > usual_c[labels.get(device)] - _COLD_BY_C:
                state |= DeviceState.WARM
            found[device] = state
        return found

    def much_busier(self, device: DeviceId, labels: Mapping[DeviceId, Hashable]) -> tuple[float, float] | None:
        """Return how busy a device and its typical peer are if it is much busier, in percent."""
        own = self._mean(device)
        label = labels.get(device)
        others = [self._mean(peer) for peer in self._seen if peer != device and labels.get(peer) == label]
        known = [mean for mean in others if mean is not None]
        if own is None or not known or own < median(known) + _MUCH_BUSIER:
            return None
        return 100 * own, 100 * median(known)

    def _mean(self, device: DeviceId) -> float | None:
        seen = self._seen.get(device)
        return seen.mean_utilisation if seen is not None and seen.n_mean else None

    def _by_utilisation(self, seen: _Seen, utilisation: float) -> DeviceState:
        seen.busy_rounds = seen.busy_rounds + 1 if utilisation >= _BUSY_FROM else 0
        if seen.busy_rounds < _BUSY_ROUNDS:
            return DeviceState(0)
        seen.n_mean = min(seen.n_mean + 1, _REMEMBERED)
        seen.mean_utilisation += (utilisation - seen.mean_utilisation) / seen.n_mean
        return DeviceState.BUSY

    def _usual_temperatures(
        self, devices: Collection[DeviceId], labels: Mapping[DeviceId, Hashable]
    ) -> dict[Hashable, float]:
        by_label: dict[Hashable, list[float]] = {}
        for device in devices & self._seen.keys():
            if (temperature_c := self._seen[device].temperature_c) is not None:
                by_label.setdefault(labels.get(device), []).append(temperature_c)
        return {label: median(temperatures) for label, temperatures in by_label.items()}

"""DeviceIndex: the devices and their rows. Turns a round of readings, a mapping, into an array in a fixed order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laggard.collectors.device import DeviceId
from laggard.detectors.errors import DeviceNameError

Readings = Mapping[DeviceId, Sequence[float]]
ReadingsByProbe = Readings | Mapping[DeviceId, Mapping[str, Sequence[float]]]


def codes_of(labels: Sequence[Hashable]) -> NDArray[np.int32]:
    """Return a number for each label: 0, 1, ... in order of appearance."""
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return np.fromiter(map(numbers.__getitem__, labels), np.int32, len(labels))


def check_names(devices: Collection[Any]) -> None:
    """Check that each device is named by its host and its GPU."""
    for device in devices:
        if not (isinstance(device, tuple) and len(device) == 2 and all(isinstance(part, str) for part in device)):
            raise DeviceNameError(device)


def as_array(repeats: Collection[Sequence[float]]) -> NDArray[np.float64]:
    """Return each device's repeats as a row, with ``NaN`` where a device has fewer than another."""
    seconds = np.array(list(zip_longest(*repeats, fillvalue=np.nan)), np.float64)
    return seconds.T.reshape(len(repeats), -1 if seconds.size else 0)


def arrays_by_probe(readings: ReadingsByProbe) -> list[NDArray[np.float64]]:
    """Return an array for each probe, as :func:`as_array` does; for one alone if the readings name none."""
    values: list[Any] = list(readings.values())
    if not any(isinstance(by_probe, Mapping) for by_probe in values):
        return [as_array(values)]
    probes = dict.fromkeys(chain.from_iterable(values))
    return [as_array([by_probe.get(probe, ()) for by_probe in values]) for probe in probes]


class DeviceIndex:
    """The devices that are expected. What most rounds do not need is computed on first use."""

    def __init__(self, devices: Iterable[DeviceId] = ()) -> None:
        self.devices = tuple(devices)  # each device once, in the order of the rows

    def __len__(self) -> int:
        return len(self.devices)

    @cached_property
    def hosts(self) -> NDArray[np.int32]:
        """Number of each device's host, ``(n_devices,)``."""
        return codes_of([host for host, _ in self.devices])

    @cached_property
    def devices_of(self) -> Counter[str]:
        """The number of devices of each host."""
        return Counter(host for host, _ in self.devices)

    @cached_property
    def _rows(self) -> dict[DeviceId, int]:
        return {device: row for row, device in enumerate(self.devices)}

    def row_of(self, device: DeviceId) -> int | None:
        """Return the row of a device, ``None`` if it has none; from any thread."""
        return self._rows.get(device)

    def extended(self, devices: Iterable[DeviceId]) -> DeviceIndex:
        """Return an index that also has these devices: this one if none of them is new."""
        new = [device for device in dict.fromkeys(devices) if device not in self._rows]
        check_names(new)
        return DeviceIndex((*self.devices, *new)) if new else self

    def rows_outside(self, hosts: Collection[str]) -> NDArray[np.intp]:
        """Return the rows of the devices that are on none of these hosts."""
        return np.array([row for row, (host, _) in enumerate(self.devices) if host not in hosts], np.intp)

    def rows_of(self, devices: tuple[DeviceId, ...]) -> NDArray[np.intp]:
        """Return the rows of devices."""
        return np.fromiter(map(self._rows.__getitem__, devices), np.intp, len(devices))

"""Who is there: the devices, each with a row in the history, and where a round's readings belong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from detectors.grouping import codes_of
from detectors.readings import Device

__all__ = ["Roster"]


class Roster:
    """The devices that are expected.

    Attributes
    ----------
    devices
        In the order of their rows.
    hosts, gpus
        Each device's host, and place on it, as numbers, ``(n_devices,)``.
    devices_of
        How many devices a host has.
    """

    def __init__(self, devices: Iterable[Device] = ()) -> None:
        self._set(list(devices))

    def _set(self, devices: list[Device]) -> None:
        self.devices = devices
        self._rows = {device: row for row, device in enumerate(devices)}
        names = [host for host, _ in devices]
        self.hosts, self.gpus = codes_of(names), codes_of([gpu for _, gpu in devices])
        self.devices_of = Counter(names)
        self._last: tuple[Device, ...] = ()
        self._last_rows = np.zeros(0, np.intp)

    def __len__(self) -> int:
        return len(self.devices)

    def add(self, devices: Iterable[Device]) -> bool:
        """Make room for devices; return whether any was new."""
        fresh = [device for device in dict.fromkeys(devices) if device not in self._rows]
        if not fresh:
            return False
        self._set(self.devices + fresh)
        return True

    def drop(self, hosts: Iterable[str]) -> NDArray[np.intp]:
        """Drop the devices of hosts; return the rows of those that stay."""
        gone = set(hosts)
        kept = [row for row, (host, _) in enumerate(self.devices) if host not in gone]
        self._set([self.devices[row] for row in kept])
        return np.array(kept, np.intp)

    def rows_of(self, devices: tuple[Device, ...]) -> NDArray[np.intp]:
        """Return the rows of devices; the same ones as last time need no looking up.

        Raises
        ------
        KeyError
            If one of them is new.
        """
        if devices is not self._last and devices != self._last:
            self._last_rows = np.fromiter(map(self._rows.__getitem__, devices), np.intp, len(devices))
        self._last = devices
        return self._last_rows

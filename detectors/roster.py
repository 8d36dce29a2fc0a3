"""Who is there: the devices, each with a row in the history, and where a round's readings belong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from detectors.grouping import codes_of
from detectors.readings import Device

__all__ = ["Roster"]


class Roster:
    """The devices that are expected; what most rounds do not need is made when it is first asked for.

    Attributes
    ----------
    devices
        In the order of their rows, each once.
    """

    def __init__(self, devices: Iterable[Device] = ()) -> None:
        self.devices = tuple(devices)
        self._last, self._last_rows = self.devices, np.arange(len(self.devices))

    def __len__(self) -> int:
        return len(self.devices)

    @cached_property
    def hosts(self) -> NDArray[np.int32]:
        """Each device's host as a number, ``(n_devices,)``."""
        return codes_of([host for host, _ in self.devices])

    @cached_property
    def gpus(self) -> NDArray[np.int32]:
        """Each device's place on its host as a number, ``(n_devices,)``."""
        return codes_of([gpu for _, gpu in self.devices])

    def numbered(self) -> Roster:
        """Return this roster with its hosts and places numbered now, rather than in the round that needs them first."""
        _ = self.hosts, self.gpus
        return self

    @cached_property
    def devices_of(self) -> Counter[str]:
        """How many devices a host has."""
        return Counter(host for host, _ in self.devices)

    @cached_property
    def _rows(self) -> dict[Device, int]:
        return {device: row for row, device in enumerate(self.devices)}

    def extended(self, devices: Iterable[Device]) -> Roster:
        """Return a roster with these devices too: this one if none of them is new."""
        fresh = list(dict.fromkeys(devices))
        if self.devices:
            fresh = [device for device in fresh if device not in self._rows]
        return Roster((*self.devices, *fresh)) if fresh else self

    def rows_but_of(self, hosts: Iterable[str]) -> NDArray[np.intp]:
        """Return the rows of the devices that are on none of these hosts."""
        gone = set(hosts)
        return np.array([row for row, (host, _) in enumerate(self.devices) if host not in gone], np.intp)

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

"""One round of readings: from a mapping to an array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest

import numpy as np
from numpy.typing import NDArray

__all__ = ["ONLY_PROBE", "Device", "Readings", "as_array"]

Device = tuple[str, str]  # host and gpu
Readings = Mapping[Device, Sequence[float]] | Mapping[Device, Mapping[str, Sequence[float]]]

ONLY_PROBE = "probe"  # the name of the only probe where the caller gives none


def as_array(readings: Readings) -> tuple[tuple[Device, ...], tuple[str, ...], NDArray[np.float64]]:
    """Turn a mapping into an array, ``NaN`` where one device has fewer repeats or probes than another.

    Returns
    -------
    devices, probes
        Names, in the order in which the mapping has them.
    seconds
        Shape ``(n_devices, n_probes, n_repeats)``.
    """
    devices = tuple(readings)
    probes: tuple[str, ...] = (ONLY_PROBE,)
    cells: list[Sequence[float]] = [cell for cell in readings.values() if not isinstance(cell, Mapping)]
    by_probe = [cell for cell in readings.values() if isinstance(cell, Mapping)]
    if by_probe:
        probes = tuple(dict.fromkeys(chain.from_iterable(by_probe)))
        cells = [cell.get(probe, ()) for cell in by_probe for probe in probes]
    lengths = set(map(len, cells))
    repeats = max(lengths, default=0)
    if len(lengths) == 1:
        flat = np.fromiter(chain.from_iterable(cells), np.float64, len(cells) * repeats)
    else:
        padded = list(zip_longest(*cells, fillvalue=np.nan))
        flat = np.array(padded, np.float64).reshape(repeats, len(cells)).T.ravel()
    return devices, probes, flat.reshape(len(devices), len(probes), repeats)

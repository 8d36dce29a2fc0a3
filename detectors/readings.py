"""One round of readings: from a mapping to an array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

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
    values: list[Any] = list(readings.values())
    probes: tuple[str, ...] = (ONLY_PROBE,)
    if any(issubclass(kind, Mapping) for kind in set(map(type, values))):
        probes, values = _by_probe(values)
    lengths = set(map(len, values))
    repeats = max(lengths, default=0)
    if len(lengths) == 1:
        flat = np.fromiter(chain.from_iterable(values), np.float64, len(values) * repeats)
    else:
        padded = list(zip_longest(*values, fillvalue=np.nan))
        flat = np.array(padded, np.float64).reshape(repeats, len(values)).T.ravel()
    return devices, probes, flat.reshape(len(devices), len(probes), repeats)


def _by_probe(values: list[Mapping[str, Sequence[float]]]) -> tuple[tuple[str, ...], list[Sequence[float]]]:
    """Return the probes, and the repeats of each device and probe."""
    probes = tuple(values[0])
    if set(map(len, values)) == {len(probes)}:
        try:
            return probes, [cells[probe] for cells in values for probe in probes]
        except KeyError:
            pass  # as many probes, but not the same: the long way, as if their numbers differed
    probes = tuple(dict.fromkeys(chain.from_iterable(values)))
    return probes, [cells.get(probe, ()) for cells in values for probe in probes]

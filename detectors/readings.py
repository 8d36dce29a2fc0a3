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

_BLOCK = 2000  # devices
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
    has_probes = any(issubclass(kind, Mapping) for kind in set(map(type, values)))
    probes = tuple(values[0]) if has_probes else (ONLY_PROBE,)
    seconds = _of_one_shape(values, probes if has_probes else None)
    if seconds is None:
        cells = values
        if has_probes:
            probes = tuple(dict.fromkeys(chain.from_iterable(values)))
            cells = [by_probe.get(probe, ()) for by_probe in values for probe in probes]
        padded = list(zip_longest(*cells, fillvalue=np.nan))
        seconds = np.array(padded, np.float64).reshape(len(padded), len(cells)).T
    return devices, probes, seconds.reshape(len(devices), len(probes), -1 if seconds.size else 0)


def _of_one_shape(values: list[Any], probes: tuple[str, ...] | None) -> NDArray[np.float64] | None:
    """Walk through readings in blocks that stay in the processor's cache; ``None`` where their shapes differ."""
    blocks = []
    lengths: set[int] = set()
    sizes: set[int] = set() if probes is None else {len(probes)}
    for start in range(0, len(values), _BLOCK):
        cells = values[start : start + _BLOCK]
        if probes is not None:
            sizes.update(map(len, cells))
            try:
                cells = [by_probe[probe] for by_probe in cells for probe in probes]
            except KeyError:
                return None
        lengths.update(map(len, cells))
        if len(lengths) != 1 or len(sizes) > 1:
            return None
        blocks.append(np.fromiter(chain.from_iterable(cells), np.float64, len(cells) * max(lengths)))
    return np.concatenate(blocks) if blocks else None

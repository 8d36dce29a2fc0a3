"""One round of readings: from a mapping to an array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, starmap, zip_longest
from struct import Struct
from struct import error as StructError  # noqa: N812 - an exception, named like the others
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ONLY_PROBE", "Device", "Readings", "as_array"]

Device = tuple[str, str]  # host and gpu
Readings = Mapping[Device, Sequence[float]] | Mapping[Device, Mapping[str, Sequence[float]]]

_BLOCK = 2000  # devices
ONLY_PROBE = "probe"  # the name of the only probe where the caller gives none


def as_array(readings: Readings) -> tuple[tuple[Device, ...], tuple[str, ...], NDArray[np.floating]]:
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
    try:
        return devices, *_of_one_shape(values)
    except (KeyError, IndexError, TypeError, ValueError, StructError):
        return devices, *_padded(values)


def _padded(values: list[Any]) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Take readings of any shape."""
    probes: tuple[str, ...] = (ONLY_PROBE,)
    cells = values
    if any(isinstance(by_probe, Mapping) for by_probe in values):
        probes = tuple(dict.fromkeys(chain.from_iterable(values)))
        cells = [by_probe.get(probe, ()) for by_probe in values for probe in probes]
    seconds = np.array(list(zip_longest(*cells, fillvalue=np.nan)), np.float64)
    return probes, seconds.T.reshape(len(values), len(probes), -1 if seconds.size else 0)


def _of_one_shape(values: list[Any]) -> tuple[tuple[str, ...], NDArray[np.float32]]:
    """Walk through readings in blocks that stay in the processor's cache, the first one's shape being that of all.

    Raises
    ------
    KeyError, IndexError, TypeError, ValueError, struct.error
        If it is not.
    """
    has_probes = isinstance(values[0], Mapping)
    probes = tuple(values[0]) if has_probes else (ONLY_PROBE,)
    repeats = len(values[0][probes[0]] if has_probes else values[0])
    seconds = np.empty((repeats, len(probes), len(values)), np.float32).T
    for start in range(0, len(values), _BLOCK):
        cells, block = values[start : start + _BLOCK], seconds[start : start + _BLOCK]
        if has_probes:
            cells = _by_probe(cells, probes)
        with np.errstate(over="ignore"):  # what is beyond single precision is as good as infinite
            block[...] = _flat(cells, repeats).reshape(block.shape)
    return probes, seconds


def _by_probe(values: list[Any], probes: tuple[str, ...]) -> list[Any]:
    if set(map(len, values)) != {len(probes)}:
        raise ValueError("a device has more or fewer probes than the first one")
    return [by_probe[probe] for by_probe in values for probe in probes]


def _flat(cells: list[Any], repeats: int) -> NDArray[np.float64]:
    if repeats == 1:  # unpacking takes half the time of asking for lengths and chaining
        return np.fromiter([seconds for (seconds,) in cells], np.float64, len(cells))
    # packing refuses another number of repeats, and takes less time than asking for lengths and chaining
    return np.frombuffer(b"".join(starmap(Struct(f"{repeats}d").pack, cells)))

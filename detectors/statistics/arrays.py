"""Arrays: a record of arrays whose last axis is the device, or the group; all are taken and kept alike."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

_LAYOUT = "layout"


def of(fill: float = 0.0, *lead: int, dtype: type[np.generic] = np.float32) -> Any:
    """Return the field of an array: what it holds until something is known, and its axes but for the last."""
    return field(metadata={_LAYOUT: (fill, lead, dtype)})


@dataclass
class Arrays:
    """A record of arrays; their fields are made by :func:`of`."""

    @classmethod
    def empty(cls, n: int) -> Self:
        """Return arrays of so many devices or groups about which nothing is known."""
        return cls(**{name: np.full((*lead, n), fill, dtype) for name, (fill, lead, dtype) in cls._layout().items()})

    @classmethod
    def from_state(cls, kept: Mapping[str, str]) -> Self:
        """Return what :meth:`to_state` returned."""
        layout = cls._layout().items()
        found = {name: _unpacked(kept[name], *lead, dtype=dtype) for name, (_, lead, dtype) in layout}
        if len({array.shape[-1] for array in found.values()}) > 1:
            raise ValueError("its arrays have different lengths")
        return cls(**found)

    @classmethod
    def _layout(cls) -> dict[str, tuple[float, tuple[int, ...], type[np.generic]]]:
        return {each.name: each.metadata[_LAYOUT] for each in fields(cls) if _LAYOUT in each.metadata}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        return {name: getattr(self, name) for name in self._layout()}

    def to_state(self) -> dict[str, str]:
        """Return the arrays by name, as values of JSON."""
        return {name: _packed(array) for name, array in self.arrays().items()}

    def take(self, places: NDArray[np.intp]) -> Self:
        """Return a copy with these devices or groups, in this order; -1: one about which nothing is known."""
        taken, known = self.empty(len(places)), places >= 0
        for name, array in self.arrays().items():
            getattr(taken, name)[..., known] = array[..., places[known]]
        return taken

    def clear(self, names: Sequence[str], which: NDArray[np.bool_]) -> None:
        """Forget what some of the arrays hold of some devices or groups."""
        for name in names:
            getattr(self, name)[..., which] = self._layout()[name][0]


def _packed(array: NDArray[Any]) -> str:
    """Return an array as text: JSON has no NaN, and lists of numbers take three times as long."""
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode()


def _unpacked(kept: str, *lead: int, dtype: type[np.generic]) -> NDArray[Any]:
    stored = np.dtype(dtype).newbyteorder("<")
    return np.frombuffer(base64.b64decode(kept), stored).reshape(*lead, -1).astype(dtype)

"""Arrays: a record of arrays whose last axis is the device, or the group; all are taken and kept alike."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


def of(fill: float = 0.0, *lead: int, dtype: type[np.generic] = np.float32, until: str = "") -> Any:
    """Return the field of an array: what it holds until something is known, and its axes but for the last.

    ``until`` names what it is cleared with.
    """
    return field(metadata={"layout": (fill, lead, dtype, until)})


@dataclass
class Arrays:
    """A record of arrays; their fields are made by :func:`of`."""

    @classmethod
    def empty(cls, n: int) -> Self:
        """Return arrays of so many devices or groups about which nothing is known."""
        return cls(**{name: np.full((*lead, n), fill, dtype) for name, (fill, lead, dtype, _) in cls._layout().items()})

    @classmethod
    def from_state(cls, kept: Mapping[str, str]) -> Self:
        """Return what :meth:`to_state` returned."""
        found = dict[str, NDArray[Any]]()
        for name, (_, lead, dtype, _) in cls._layout().items():
            stored = np.frombuffer(base64.b64decode(kept[name]), np.dtype(dtype).newbyteorder("<"))
            found[name] = stored.reshape(*lead, -1).astype(dtype)
        if len({array.shape[-1] for array in found.values()}) > 1:
            raise ValueError("its arrays have different lengths")
        return cls(**found)

    @classmethod
    def _layout(cls) -> dict[str, tuple[float, tuple[int, ...], type[np.generic], str]]:
        return {each.name: each.metadata["layout"] for each in fields(cls) if each.metadata}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        return {name: getattr(self, name) for name in self._layout()}

    def to_state(self) -> dict[str, str]:
        """Return the arrays by name, as text: JSON has no NaN, and lists of numbers take three times as long."""
        stored = {name: array.astype(array.dtype.newbyteorder("<")) for name, array in self.arrays().items()}
        return {name: base64.b64encode(array.tobytes()).decode() for name, array in stored.items()}

    def take(self, places: NDArray[np.intp]) -> Self:
        """Return a copy with these devices or groups, in this order; -1: one about which nothing is known."""
        taken, known = self.empty(len(places)), places >= 0
        for name, array in self.arrays().items():
            getattr(taken, name)[..., known] = array[..., places[known]]
        return taken

    def clear(self, which: NDArray[np.bool_], *until: str) -> None:
        """Forget what some of the arrays hold of some devices or groups, or of parts of them."""
        for name, (fill, _, dtype, ends) in self._layout().items():
            if ends in until:
                np.copyto(getattr(self, name), dtype(fill), where=which)

"""What outlives a process: the devices' past as plain values and arrays, found again by the devices' own names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from detectors.history import History
from detectors.readings import Device

__all__ = ["Saved"]

_VERSION = 2


@dataclass
class Saved:
    """All that a detector remembers.

    Attributes
    ----------
    devices, probes
        Of the rows of the history.
    rounds_tested
        Rounds of the run in which each test could be made, ``(2,)``.
    told_hosts
        Rank of the worst verdict against a whole node.
    codes
        Each device's group.
    """

    devices: list[Device]
    probes: list[str]
    history: History
    rounds_tested: NDArray[np.int64]
    told_hosts: dict[str, int]
    codes: NDArray[np.int32]

    def to_state(self, identity: Mapping[Device, str]) -> dict[str, Any]:
        """Return plain values and arrays; ``identity`` gives names that stay with a device when it moves."""
        return {
            "version": _VERSION,
            "devices": [list(device) for device in self.devices],
            "identities": [identity.get(device, "") for device in self.devices],
            "probes": list(self.probes),
            "rounds_tested": self.rounds_tested.tolist(),
            "told_hosts": dict(self.told_hosts),
            "codes": self.codes,
            "history": self.history.arrays(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], identity: Mapping[Device, str], *, same_run: bool) -> Self:
        """Read it back, without the devices whose place another one has taken.

        Raises
        ------
        ValueError
            If the state was written by a program of another version.
        """
        if state["version"] != _VERSION:
            raise ValueError(f"state has version {state['version']}, this program reads version {_VERSION}")
        names = [(str(host), str(gpu)) for host, gpu in state["devices"]]
        present = _present_places(names, state["identities"], identity)
        kept = np.array([row for row, device in enumerate(present) if device is not None], np.intp)
        history = History.from_arrays(state["history"]).take(kept)
        if not same_run:
            history.forget_run()
        return cls(
            devices=[device for device in present if device is not None],
            probes=list(state["probes"]),
            history=history,
            rounds_tested=np.array(state["rounds_tested"], np.int64) * same_run,
            told_hosts=dict(state["told_hosts"]) if same_run else {},
            codes=np.asarray(state["codes"], np.int32)[kept],
        )


def _present_places(
    saved: Sequence[Device], names: Sequence[str], identity: Mapping[Device, str]
) -> list[Device | None]:
    """Return where each saved device is now: where its name is, else where it was; ``None`` if another sits there."""
    place = {name: device for device, name in identity.items()}
    moved_in = {place[name] for name in names if name in place}
    return [
        place.get(name, None if device in moved_in or (name and device in identity) else device)
        for device, name in zip(saved, names, strict=True)
    ]

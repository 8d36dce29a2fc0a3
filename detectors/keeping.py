"""What detectors keep in the program's State from launch to launch, under keys of their own."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from laggard.kvstore.errors import StateUnavailableError

if TYPE_CHECKING:
    from laggard.kvstore.state.mapping import State
    from laggard.kvstore.values.codec import Value

__all__ = ["Keeper"]

_log = logging.getLogger("laggard.detectors")


class Keeper:
    """Reads and writes values of detectors, and counts the commits: they are no progress of the program.

    Parameters
    ----------
    state
        Where they are kept; ``None``: nowhere.

    Attributes
    ----------
    commits
        How many there were in this process.
    """

    def __init__(self, state: State | None) -> None:
        self._state = state
        self.commits = 0

    @property
    def keeps(self) -> bool:
        """Whether there is a place to keep anything."""
        return self._state is not None

    def read(self, key: str) -> Any:
        """Return what was kept under a key; ``None`` if there is nothing."""
        try:
            return None if self._state is None else self._state.get(key)
        except StateUnavailableError as error:
            _log.warning("what an earlier launch has kept as %s cannot be read: %s", key, error)
            return None

    def write(self, key: str, value: Value) -> None:
        """Keep a value; if the server does not answer, the next one will be kept."""
        if self._state is None:
            return
        try:
            self._state[key] = value
            self.commits += 1
        except StateUnavailableError as error:
            _log.warning("%s was not kept this time: %s", key, error)

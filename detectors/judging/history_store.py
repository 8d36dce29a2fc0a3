"""What detectors keep in the program's State from launch to launch, under keys of their own."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from laggard.kvstore.errors import StateFullError, StateUnavailableError

if TYPE_CHECKING:
    from laggard.kvstore.state.mapping import State
    from laggard.kvstore.values.decoding import Value

_log = logging.getLogger("laggard.detectors")

_SECTIONS = "laggard/slow-sections"
"""The key of State."""


class HistoryStore:
    """Keeps values in State; ``None``: nowhere."""

    def __init__(self, state: State | None) -> None:
        self._state = state

    def read(self, key: str) -> Any:
        """Return what was kept; ``None`` if there is nothing."""
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
            self._state.update_with(lambda t: t.__setitem__(key, value), is_upkeep=True)
        except (StateUnavailableError, StateFullError) as error:
            _log.warning("%s was not kept this time: %s", key, error)


class SectionKeeper:
    """Keeps the values of all sections under one key."""

    def __init__(self, keeper: HistoryStore) -> None:
        self._keeper = keeper
        self._sections: dict[str, Any] = {}
        # For which ranks any section has asked for a restart, and on which node that was
        self.asked: dict[str, str] = {}

    def begin(self) -> None:
        """Begin a launch: read what was kept of the one before."""
        kept = self._keeper.read(_SECTIONS) or {"sections": {}, "asked": {}}
        try:
            self._sections, self.asked = dict(kept["sections"]), dict(kept["asked"])
        except (KeyError, TypeError, ValueError) as error:  # the program's State may hold anything
            _log.warning("%s cannot be read, so it starts afresh: %s", _SECTIONS, error)

    def read(self, key: str) -> Any:
        """Return what was kept of a section; ``None`` if nothing was."""
        return self._sections.get(key)

    def write(self, key: str, value: Any) -> None:
        """Keep what is known of a section."""
        self._sections[key] = value
        self._keeper.write(_SECTIONS, {"sections": dict(self._sections), "asked": dict(self.asked)})

"""What is kept of the sections' incidents in State, from launch to launch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from laggard.collectors.device import DeviceId
from laggard.detectors.judging.keeping import Keeper

__all__ = ["KEPT", "SectionMemory"]

KEPT = "laggard/slow-sections"
"""The key of State."""


class SectionMemory:
    """The incidents in each section, in this launch and the one before.

    Parameters
    ----------
    keeper
        Where they are kept.
    """

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._run = ""
        self._sections: dict[str, Any] = {}
        self._asked: dict[str, str] = {}  # by rank, the last node
        self.is_same_run = False

    @property
    def own_commits(self) -> int:
        """Number of commits to State that are not the program's."""
        return self._keeper.commits

    def begin(self, run: str) -> None:
        """Begin a launch: read what was kept of the one before."""
        kept = self._keeper.read(KEPT) or {"run": "", "sections": {}, "asked": {}}
        self._run, self.is_same_run = run, kept["run"] == run
        self._sections, self._asked = dict(kept["sections"]), dict(kept["asked"])

    def of(self, section: str) -> Mapping[str, Any] | None:
        """Return what was kept of a section; ``None`` if nothing was."""
        return self._sections.get(section)

    def write(self, section: str, restarts: Mapping[str, Any], asked: Iterable[DeviceId]) -> None:
        """Keep what is known of a section, and for which ranks it has asked for a restart."""
        self._sections[section] = restarts
        self._asked |= {rank: host for host, rank in asked}
        self._keeper.write(KEPT, {"run": self._run, "sections": dict(self._sections), "asked": dict(self._asked)})

    def asked_elsewhere(self, rank: str, host: str) -> str:
        """Return on which other node any section has asked for a restart because of a rank; empty if on none."""
        before = self._asked.get(rank, host)
        return "" if before == host else before

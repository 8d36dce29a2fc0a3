"""Phases that the program declares (``with job.phase("checkpoint"):``): which nodes' readings say nothing. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from laggard.kvstore.control import PhaseRecord

# A process that is killed in a phase never says that it is over.
LONGEST_PHASE_S = 3600.0


class DeclaredPhases:
    """The phases that processes of a launch have declared, from round to round."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[PhaseRecord, float]] = {}  # by process, and when it was first seen so

    def hosts(self, phases: Mapping[str, PhaseRecord], now_s: float) -> frozenset[str]:
        """Return the nodes on which a process is in a phase, or has been since the last call."""
        found = set()
        for process, phase in phases.items():
            seen, since_s = self._seen.get(process, (None, now_s))
            if phase != seen:
                since_s = now_s
                self._seen[process] = phase, now_s
            goes_on = phase.running and now_s - since_s <= LONGEST_PHASE_S
            if goes_on or phase != seen:
                found.add(phase.host)
        return frozenset(found)

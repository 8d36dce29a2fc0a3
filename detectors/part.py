"""Parts: what the other probes of a job find is reported. Whether it is worth a relaunch, only the program knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from detectors.analysis import SlowGPUAnalysis
from detectors.blame import with_cause
from detectors.peers import Peers
from detectors.rounds import DeviceKey, Round
from detectors.verdict import Verdict

__all__ = ["PART", "Part", "found_by"]

PART = "."  # between the name of a detector's metric and that of the probe


def found_by(probe: str) -> str:
    """Return the words at the end of a verdict's evidence that name the probe."""
    return f", by the probe {probe}"


class Part:
    """Judges the rounds of one probe, and reports the devices that are slow in it.

    Parameters
    ----------
    probe
        Its name.
    settings
        As for :class:`SlowGPUAnalysis`.
    """

    def __init__(self, probe: str, settings: Mapping[str, Any]) -> None:
        self._probe = probe
        self._peers = Peers(settings["groups"])
        self._analysis = SlowGPUAnalysis(**{**settings, "groups": self._peers.labels})

    def meet(self, device: DeviceKey, tags: Mapping[str, str]) -> None:
        """Take note of a device."""
        self._peers.meet(device, tags)

    def set_thresholds(self, *, min_slowdown: float | None = None, very_slow: float | None = None) -> None:
        """Change the thresholds while the job runs; what is not given stays."""
        self._analysis.set_thresholds(min_slowdown=min_slowdown, very_slow=very_slow)

    def judge(self, readings: Round, now_s: float) -> list[Verdict]:
        """Return the verdicts that are new with this round; none asks for a restart."""
        self._peers.group(self._analysis)
        return [
            replace(
                with_cause(verdict, self._peers.causes),
                action="report",
                evidence=verdict.evidence + found_by(self._probe),
            )
            for verdict in self._analysis.update(readings, now_s)
        ]

"""Verdicts: which device is slow, and how sure we are.

The detectors are loaded on first use, with what only a job needs: the statistics run without.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from detectors.analysis import SlowGPUAnalysis
from detectors.cost import RestartCost
from detectors.verdict import Verdict

if TYPE_CHECKING:
    from detectors.detector import CollectorDetectorGroup, Detector
    from detectors.slow_gpu import SlowGPUDetector

__all__ = ["CollectorDetectorGroup", "Detector", "RestartCost", "SlowGPUAnalysis", "SlowGPUDetector", "Verdict"]

_HOMES = {
    "CollectorDetectorGroup": "detectors.detector",
    "Detector": "detectors.detector",
    "SlowGPUDetector": "detectors.slow_gpu",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        globals()[name] = getattr(import_module(_HOMES[name]), name)
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Verdicts: which device is slow, and how certain that is.

Names are loaded on first use: a light module below this one loads neither NumPy nor what only a job needs.

Words: a *source* is where samples come from; a *label* says who are peers; a *cross-section* is one look without
history. A *finding* is what is known of a device in one round, an *episode* a time in which it is slow, a *place* its
position in a launch, by which ranks usually go.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from laggard.detectors.detector import CollectorDetectorGroup, Detector
    from laggard.detectors.economics.restart_cost import RestartCost
    from laggard.detectors.errors import DetectorError, DeviceNameError, GroupsError, StateVersionError
    from laggard.detectors.sections import SectionDetector
    from laggard.detectors.slow_gpu import SlowGPUDetector
    from laggard.detectors.slow_link import SlowLinkDetector
    from laggard.detectors.statistics.device_states import DeviceState
    from laggard.detectors.statistics.slow_gpu_analysis import SlowGPUAnalysis
    from laggard.detectors.verdict import Verdict

__all__ = [
    "CollectorDetectorGroup",
    "Detector",
    "DetectorError",
    "DeviceNameError",
    "DeviceState",
    "GroupsError",
    "RestartCost",
    "SectionDetector",
    "SlowGPUAnalysis",
    "SlowGPUDetector",
    "SlowLinkDetector",
    "StateVersionError",
    "Verdict",
]

_HOMES = {
    "CollectorDetectorGroup": "detector",
    "Detector": "detector",
    "DetectorError": "errors",
    "DeviceNameError": "errors",
    "DeviceState": "statistics.device_states",
    "GroupsError": "errors",
    "RestartCost": "economics.restart_cost",
    "SectionDetector": "sections",
    "SlowGPUAnalysis": "statistics.slow_gpu_analysis",
    "SlowGPUDetector": "slow_gpu",
    "SlowLinkDetector": "slow_link",
    "StateVersionError": "errors",
    "Verdict": "verdict",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Verdicts: which device is slow, and how certain that is.

Names are loaded on first use: a light module below this one loads neither NumPy nor what only a job needs.

Words: a *source* is where samples come from; a *label* says who are peers; a *cross-section* is one look without
history. A *finding* is what is known of a device in one round, an *episode* a time in which it is slow, a *place* its
position in a launch, by which ranks usually go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from laggard.lazy import lazily

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


__getattr__ = lazily(__name__, {name: f"{__name__}.{home}" for name, home in _HOMES.items()})


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

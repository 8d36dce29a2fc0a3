"""Verdicts: which device is slow, and how sure we are."""

from detectors.analysis import SlowGPUAnalysis
from detectors.cost import RestartCost
from detectors.detector import CollectorDetectorGroup, Detector
from detectors.slow_gpu import SlowGPUDetector
from detectors.verdict import Verdict

__all__ = ["CollectorDetectorGroup", "Detector", "RestartCost", "SlowGPUAnalysis", "SlowGPUDetector", "Verdict"]

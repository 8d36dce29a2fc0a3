"""Metrics of the program: sent with Telemetry, read with AnalysisClient."""

from __future__ import annotations

from telemetry.client import AnalysisClient
from telemetry.sender import Telemetry

__all__ = ["AnalysisClient", "Telemetry"]

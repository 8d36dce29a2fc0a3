"""Metrics of the program: sent with Telemetry, read with AnalysisClient.

Both are loaded on first use, with NumPy and the state server's client, so that the errors can be imported without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from laggard.lazy import lazily

if TYPE_CHECKING:
    from laggard.telemetry.client import AnalysisClient
    from laggard.telemetry.sending.sender import Telemetry

__all__ = ["AnalysisClient", "Telemetry"]

_MODULES = {"AnalysisClient": "laggard.telemetry.client", "Telemetry": "laggard.telemetry.sending.sender"}


if not TYPE_CHECKING:  # otherwise a type checker would accept any name
    __getattr__ = lazily(__name__, _MODULES)

"""Metrics of the program: sent with Telemetry, read with AnalysisClient.

Both are loaded on first use, with NumPy and the state server's client, so that the errors can be imported without them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from laggard.telemetry.client import AnalysisClient
    from laggard.telemetry.sending.sender import Telemetry

__all__ = ["AnalysisClient", "Telemetry"]

_MODULES = {"AnalysisClient": "laggard.telemetry.client", "Telemetry": "laggard.telemetry.sending.sender"}


if not TYPE_CHECKING:  # otherwise a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = getattr(import_module(_MODULES[name]), name)
        return globals()[name]

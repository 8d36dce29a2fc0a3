"""Find the slow GPU in your job and relaunch without its node.

Public names are loaded when they are first used, so ``import laggard`` is quick and needs none of the extras.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from laggard.lazy import lazily

if TYPE_CHECKING:  # the table below again, for type checkers
    from laggard.collectors import CollectorGroup as CollectorGroup
    from laggard.collectors import InlineProbe as InlineProbe
    from laggard.collectors import local_device as local_device
    from laggard.collectors import node_strategy as node_strategy
    from laggard.collectors import section as section
    from laggard.detectors import CollectorDetectorGroup as CollectorDetectorGroup
    from laggard.detectors import Detector as Detector
    from laggard.detectors import RestartCost as RestartCost
    from laggard.detectors import SectionDetector as SectionDetector
    from laggard.detectors import SlowGPUAnalysis as SlowGPUAnalysis
    from laggard.detectors import SlowGPUDetector as SlowGPUDetector
    from laggard.detectors import SlowLinkDetector as SlowLinkDetector
    from laggard.detectors import Verdict as Verdict
    from laggard.errors import LaggardError as LaggardError
    from laggard.kvstore import Checkpointer as Checkpointer
    from laggard.kvstore import State as State
    from laggard.kvstore import Transaction as Transaction
    from laggard.kvstore.errors import ClosedTransactionError as ClosedTransactionError
    from laggard.kvstore.errors import ConflictError as ConflictError
    from laggard.kvstore.errors import CorruptValueError as CorruptValueError
    from laggard.kvstore.errors import DamagedCheckpointError as DamagedCheckpointError
    from laggard.kvstore.errors import EndpointFileError as EndpointFileError
    from laggard.kvstore.errors import FencedError as FencedError
    from laggard.kvstore.errors import KVStoreError as KVStoreError
    from laggard.kvstore.errors import LocalStateError as LocalStateError
    from laggard.kvstore.errors import NoCheckpointError as NoCheckpointError
    from laggard.kvstore.errors import NoLaunchRecordError as NoLaunchRecordError
    from laggard.kvstore.errors import NotACounterError as NotACounterError
    from laggard.kvstore.errors import NotAListError as NotAListError
    from laggard.kvstore.errors import NotInJobError as NotInJobError
    from laggard.kvstore.errors import OpenTransactionError as OpenTransactionError
    from laggard.kvstore.errors import StateFullError as StateFullError
    from laggard.kvstore.errors import StateUnavailableError as StateUnavailableError
    from laggard.kvstore.errors import UnsupportedValueError as UnsupportedValueError
    from laggard.resilience import Job as Job
    from laggard.telemetry import AnalysisClient as AnalysisClient
    from laggard.telemetry import Telemetry as Telemetry
    from laggard.telemetry.errors import DumpError as DumpError
    from laggard.telemetry.errors import NodeError as NodeError
    from laggard.telemetry.errors import NotConnectedError as NotConnectedError
    from laggard.telemetry.errors import SettingsError as SettingsError
    from laggard.telemetry.errors import TelemetryError as TelemetryError

_NAMES_BY_MODULE = {
    "laggard.collectors": ("CollectorGroup", "InlineProbe", "local_device", "node_strategy", "section"),
    "laggard.detectors": (
        "CollectorDetectorGroup",
        "Detector",
        "RestartCost",
        "SectionDetector",
        "SlowGPUAnalysis",
        "SlowGPUDetector",
        "SlowLinkDetector",
        "Verdict",
    ),
    "laggard.errors": ("LaggardError",),
    "laggard.kvstore": ("Checkpointer", "State", "Transaction"),
    "laggard.kvstore.errors": (
        "ClosedTransactionError",
        "ConflictError",
        "CorruptValueError",
        "DamagedCheckpointError",
        "EndpointFileError",
        "FencedError",
        "KVStoreError",
        "LocalStateError",
        "NoCheckpointError",
        "NoLaunchRecordError",
        "NotACounterError",
        "NotAListError",
        "NotInJobError",
        "OpenTransactionError",
        "StateFullError",
        "StateUnavailableError",
        "UnsupportedValueError",
    ),
    "laggard.resilience": ("Job",),
    "laggard.telemetry": ("AnalysisClient", "Telemetry"),
    "laggard.telemetry.errors": ("DumpError", "NodeError", "NotConnectedError", "SettingsError", "TelemetryError"),
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}

__all__ = sorted(_MODULES)


if not TYPE_CHECKING:  # otherwise a type checker would accept any name
    __getattr__ = lazily(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""State, series and control records in a Redis-compatible server.

``State`` and ``Checkpointer`` are loaded on first use, with NumPy and the server's client: a node's agent, which needs
none of them, starts quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from kvstore.environment import NotInJobError
from kvstore.errors import (
    ConflictError,
    CorruptValueError,
    DamagedCheckpointError,
    FencedError,
    KVStoreError,
    NoCheckpointError,
    NotACounterError,
    NotAListError,
    StateFullError,
    StateUnavailableError,
    UnsupportedValueError,
)

if TYPE_CHECKING:
    from kvstore.checkpoint import Checkpointer
    from kvstore.state import State, Transaction

__all__ = [
    "Checkpointer",
    "ConflictError",
    "CorruptValueError",
    "DamagedCheckpointError",
    "FencedError",
    "KVStoreError",
    "NoCheckpointError",
    "NotACounterError",
    "NotAListError",
    "NotInJobError",
    "State",
    "StateFullError",
    "StateUnavailableError",
    "Transaction",
    "UnsupportedValueError",
]

_HOMES = {"Checkpointer": "kvstore.checkpoint", "State": "kvstore.state", "Transaction": "kvstore.state"}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        globals().update({each: getattr(import_module(home), each) for each, home in _HOMES.items()})
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

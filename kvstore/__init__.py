"""State, series and control records in a Redis-compatible server."""

from kvstore.checkpoint import Checkpointer
from kvstore.environment import NotInJobError
from kvstore.errors import (
    ConflictError,
    CorruptValueError,
    DamagedCheckpointError,
    FencedError,
    KVStoreError,
    NoCheckpointError,
    NotAListError,
    StateFullError,
    StateUnavailableError,
    UnsupportedValueError,
)
from kvstore.state import State, Transaction

__all__ = [
    "Checkpointer",
    "ConflictError",
    "CorruptValueError",
    "DamagedCheckpointError",
    "FencedError",
    "KVStoreError",
    "NoCheckpointError",
    "NotAListError",
    "NotInJobError",
    "State",
    "StateFullError",
    "StateUnavailableError",
    "Transaction",
    "UnsupportedValueError",
]

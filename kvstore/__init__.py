"""State, series and control records in a Redis-compatible server.

``State``, ``Checkpointer`` and what belongs to them are loaded on first use, with NumPy and the server's client: a
node's agent, which needs none of these, starts quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from laggard.kvstore.errors import (
    ClosedTransactionError,
    ConflictError,
    CorruptValueError,
    DamagedCheckpointError,
    EndpointFileError,
    FencedError,
    KVStoreError,
    LargeTransactionError,
    LocalStateError,
    MissingElementsError,
    NoCheckpointError,
    NoLaunchRecordError,
    NotACounterError,
    NotAListError,
    NotInJobError,
    OpenTransactionError,
    ReshardingError,
    StateFullError,
    StateUnavailableError,
    UnsupportedValueError,
)
from laggard.lazy import lazily

if TYPE_CHECKING:
    from laggard.kvstore.checkpoints.checkpointer import Checkpointer
    from laggard.kvstore.state.mapping import State, Transaction
    from laggard.kvstore.values.blocks import Block, Region

__all__ = [
    "Block",
    "Checkpointer",
    "ClosedTransactionError",
    "ConflictError",
    "CorruptValueError",
    "DamagedCheckpointError",
    "EndpointFileError",
    "FencedError",
    "KVStoreError",
    "LargeTransactionError",
    "LocalStateError",
    "MissingElementsError",
    "NoCheckpointError",
    "NoLaunchRecordError",
    "NotACounterError",
    "NotAListError",
    "NotInJobError",
    "OpenTransactionError",
    "Region",
    "ReshardingError",
    "State",
    "StateFullError",
    "StateUnavailableError",
    "Transaction",
    "UnsupportedValueError",
]

_MODULES = {
    "Block": "laggard.kvstore.values.blocks",
    "Checkpointer": "laggard.kvstore.checkpoints.checkpointer",
    "Region": "laggard.kvstore.values.blocks",
    "State": "laggard.kvstore.state.mapping",
    "Transaction": "laggard.kvstore.state.mapping",
}


if not TYPE_CHECKING:  # otherwise a type checker would accept any name
    __getattr__ = lazily(__name__, _MODULES)

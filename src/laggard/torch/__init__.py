"""Training with PyTorch that goes on where its last launch stopped.

``laggard.torch.resume`` for a loop of one's own; ``CheckpointWriter`` and ``CheckpointReader`` for a program that saves
with ``torch.distributed.checkpoint``; ``laggard.torch.lightning`` and ``laggard.torch.transformers`` have a callback
for Lightning and for Hugging Face's Trainer.  PyTorch is loaded with the first name that is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from laggard.lazy import lazily

if TYPE_CHECKING:
    from laggard.torch.resuming import Resumed, resume
    from laggard.torch.storage import CheckpointReader, CheckpointWriter

__all__ = ["CheckpointReader", "CheckpointWriter", "Resumed", "resume"]

_MODULES = {
    "CheckpointReader": "laggard.torch.storage",
    "CheckpointWriter": "laggard.torch.storage",
    "Resumed": "laggard.torch.resuming",
    "resume": "laggard.torch.resuming",
}


if not TYPE_CHECKING:  # otherwise a type checker would accept any name
    __getattr__ = lazily(__name__, _MODULES)

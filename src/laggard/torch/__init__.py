"""Training with PyTorch that goes on where its last launch stopped.

``laggard.torch.resume`` for a loop of one's own; ``laggard.torch.lightning`` and ``laggard.torch.transformers`` have a
callback for Lightning and for Hugging Face's Trainer.  PyTorch is loaded with the first name that is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from laggard.torch.resuming import Resumed, resume

__all__ = ["Resumed", "resume"]


if not TYPE_CHECKING:  # otherwise a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = getattr(import_module("laggard.torch.resuming"), name)
        return globals()[name]

"""Training with PyTorch that goes on where its last launch stopped.

``laggard.torch.resume`` for a loop of one's own; ``CheckpointWriter`` and ``CheckpointReader`` for a program that saves
with ``torch.distributed.checkpoint``; ``laggard.torch.lightning`` and ``laggard.torch.transformers`` have a callback
for Lightning and for Hugging Face's Trainer.  PyTorch is loaded with the first name that is used.
"""

from laggard.lazy import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)

"""A callback for Lightning that saves checkpoints in State, and a path to resume from.

::

    checkpoints = Checkpoints(every=100)
    trainer = Trainer(callbacks=[checkpoints], ...)
    trainer.fit(model, loader, ckpt_path=checkpoints.newest())
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

from laggard.kvstore.checkpoints.checkpointer import Checkpointer
from laggard.kvstore.state.mapping import State
from laggard.torch.reporting import StepReporter

_PREFIX = "laggard-state-"


class Checkpoints(Callback):  # type: ignore[misc]  # mypy does not read Lightning
    """Saves what Lightning would write to a file in State, and reports steps, their time and their loss.

    Everything that Lightning puts into a checkpoint is in it: model, optimizers, schedulers, precision, loops,
    callbacks, hyperparameters.  Whatever of it State cannot hold is refused by name.  Rank 0 saves it for all ranks, so
    strategies that split the model are refused.
    """

    def __init__(self, *, every: int = 100, keep: int = 2, name: str = "lightning") -> None:
        if every < 1:
            raise ValueError(f"every is {every}; it must be at least 1")
        self._every = every  # each how many optimizer steps a checkpoint is saved
        self._checkpoints = Checkpointer(State.current(), name=name, keep=keep)
        self._newest_step = self._checkpoints.latest()
        self._reporter: StepReporter | None = None
        self._n_steps = 0

    def newest(self) -> str | None:
        """Return what to pass to ``trainer.fit(ckpt_path=...)``: None in the first launch."""
        return None if self._newest_step is None else f"{_PREFIX}{self._newest_step}"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Have the trainer read and write checkpoints of State."""
        if type(trainer.strategy) not in (SingleDeviceStrategy, DDPStrategy):
            kind = type(trainer.strategy).__name__
            raise TypeError(f"checkpoints of {kind} cannot be kept in State; use one device, or the strategy ddp")
        trainer.strategy.checkpoint_io = _StateIO(self._checkpoints)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to report."""
        self._reporter = StepReporter(trainer.global_rank)
        self._reporter.begin()
        self._n_steps = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Report the step, and save a checkpoint when it is time."""
        if self._reporter is None or trainer.global_step == self._n_steps:  # gradients are still accumulated
            return
        self._n_steps = trainer.global_step
        self._reporter.end(self._n_steps, outputs.get("loss") if isinstance(outputs, Mapping) else outputs)
        if self._n_steps % self._every == 0:
            with self._reporter.saving(self._n_steps):
                # Said, since Lightning would log at each checkpoint that it was not.
                trainer.save_checkpoint(f"{_PREFIX}{self._n_steps}", weights_only=False)


class _StateIO(TorchCheckpointIO):  # type: ignore[misc]  # mypy does not read Lightning
    """Checkpoints in State by their names, and any others in files, as before."""

    def __init__(self, checkpoints: Checkpointer) -> None:
        self._checkpoints = checkpoints

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        if not str(path).startswith(_PREFIX):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        self._checkpoints.save(_step_of(path), _plain(checkpoint))

    def load_checkpoint(self, path: str | Path, *arguments: Any, **options: Any) -> Any:
        if not str(path).startswith(_PREFIX):
            return super().load_checkpoint(path, *arguments, **options)
        return self._checkpoints.restore(_step_of(path))


def _step_of(path: str | Path) -> int:
    return int(str(path).removeprefix(_PREFIX))


def _plain(tree: Any) -> Any:
    """Return a checkpoint with Lightning's own kinds of dict, such as that of hyperparameters, as plain dicts."""
    if isinstance(tree, dict):
        pairs = {name: _plain(item) for name, item in tree.items()}
        return tree if type(tree) in (OrderedDict, Counter) else pairs
    if type(tree) in (list, tuple):
        return type(tree)(map(_plain, tree))
    return tree

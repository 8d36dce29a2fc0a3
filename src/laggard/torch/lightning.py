"""A callback for Lightning that saves checkpoints in State, and a path to resume from.

::

    checkpoints = Checkpoints(every=100)
    trainer = Trainer(callbacks=[checkpoints], ...)
    trainer.fit(model, loader, ckpt_path=checkpoints.newest())
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch.nn.parallel import DistributedDataParallel

from laggard.kvstore.checkpoints.checkpointer import Checkpointer
from laggard.kvstore.errors import NoCheckpointError, ReshardingError
from laggard.kvstore.state.mapping import State
from laggard.torch.buckets import Buckets, Layout
from laggard.torch.choosing import Wish, first_intact, said
from laggard.torch.differences import read_by_all
from laggard.torch.position import Position
from laggard.torch.reporting import StepReporter
from laggard.torch.training_state import random_states, restore_random_states

_PREFIX = "laggard-state-"
_log = logging.getLogger("laggard.torch")


class Checkpoints(Callback):  # type: ignore[misc]  # mypy does not read Lightning
    """Saves what Lightning would write to a file in State, and reports steps, their time and their loss.

    Everything that Lightning puts into a checkpoint is in it: model, optimizers, schedulers, precision, loops,
    callbacks, hyperparameters.  Whatever of it State cannot hold is refused by name.  Rank 0 saves it for all ranks, so
    strategies that split the model are refused.  Each rank adds what Lightning leaves out: its random generators, and
    its place in the training data.
    """

    def __init__(self, *, every: int = 100, keep: int = 2, name: str = "lightning") -> None:
        if every < 1:
            raise ValueError(f"every is {every}; it must be at least 1")
        self._every = every  # each how many optimizer steps a checkpoint is saved
        self._keep = keep
        self._name = name
        self._io = _StateIO()
        self._newest_step = Checkpointer(State.current(), name=name).agreed_latest()
        self._loaders: list[_Loader] = []
        self._reporter: StepReporter | None = None
        self._n_steps = 0
        self._layouts: list[Layout] = []  # at the newest checkpoint

    def newest(self) -> str | None:
        """Return what to pass to ``trainer.fit(ckpt_path=...)``: None in the first launch."""
        return None if self._newest_step is None else f"{_PREFIX}{self._newest_step}"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Have the trainer read and write checkpoints of State."""
        if type(trainer.strategy) not in (SingleDeviceStrategy, DDPStrategy):
            kind = type(trainer.strategy).__name__
            raise TypeError(f"checkpoints of {kind} cannot be kept in State; use one device, or the strategy ddp")
        rank, ranks = trainer.global_rank, trainer.world_size
        self._io.checkpoints = Checkpointer(State.current(), name=self._name, rank=rank, ranks=ranks, keep=self._keep)
        self._io.loaded, self._io.rank, self._io.ranks = None, rank, ranks
        trainer.strategy.checkpoint_io = self._io

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on in the data, and begin to report."""
        fetcher, combined = trainer.fit_loop._data_fetcher, trainer.fit_loop._combined_loader
        if hasattr(fetcher, "iterator_wrapper") or trainer.reload_dataloaders_every_n_epochs:
            raise TypeError("a dataloader_iter, or reload_dataloaders_every_n_epochs, hides which batches were used")
        combined.flattened = self._loaders = [_loader_of(each, trainer.global_step) for each in combined.flattened]
        self._io.own = lambda: self._own(trainer)
        if self._io.loaded is not None:
            self._go_on(self._io.loaded, trainer)
        iter(fetcher)  # anew: of these loaders
        # Lightning says that a loader without a state begins its epoch anew.
        warnings.filterwarnings("ignore", "You're resuming from a checkpoint that ended before the epoch ended")
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
            n_ahead = len(getattr(trainer.fit_loop._data_fetcher, "batches", ()))
            for loader in self._loaders:
                loader.position.count_ahead(self._n_steps, n_ahead)
            self._layouts = Buckets([trainer.strategy.model]).state_dict()  # here, since all ranks take part
            with self._reporter.saving(self._n_steps):
                # Said, since Lightning would log at each checkpoint that it was not.
                trainer.save_checkpoint(f"{_PREFIX}{self._n_steps}", weights_only=False)
                if trainer.global_rank > 0:
                    self._io.checkpoints.save(self._n_steps, {"own": self._own(trainer)})

    def _own(self, trainer: Trainer) -> dict[str, Any]:
        """Return what each rank saves for itself."""
        positions = [loader.position.state_dict(is_last=trainer.is_last_batch) for loader in self._loaders]
        buffers = _own_buffers(trainer.strategy.model)
        return {"random": random_states(), "positions": positions, "buckets": self._layouts, "buffers": buffers}

    def _go_on(self, step: int, trainer: Trainer) -> None:
        model = trainer.strategy.model
        if (own := self._io.loaded_own) is None:
            if buffers := _own_buffers(model):
                raise ReshardingError(", ".join(buffers), f"each rank that saved step {step} has its own")
            if trainer.global_rank == 0:
                _log.warning(
                    "step %d was saved by %d ranks, and there are %d: random generators begin anew, and so does the "
                    "data of the epoch",
                    step,
                    self._io.checkpoints.ranks_of(step),
                    trainer.world_size,
                )
            return
        for loader, position in zip(self._loaders, own["positions"], strict=True):
            loader.position.load_state_dict(position, step)
            loader.goes_on = True
        Buckets([model]).load_state_dict(own["buckets"])
        for name, buffer in _own_buffers(model).items():
            buffer.copy_(own["buffers"][name])
        restore_random_states(own["random"])


class _StateIO(TorchCheckpointIO):  # type: ignore[misc]  # mypy does not read Lightning
    """Checkpoints in State by their names, and any others in files, as before."""

    checkpoints: Checkpointer
    own: Callable[[], dict[str, Any]]  # returns what rank 0 saves for itself
    rank: int
    ranks: int
    loaded: int | None = None  # step of the checkpoint that was read
    loaded_own: Any = None  # what it has of this rank; None if there were more or fewer

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        if not str(path).startswith(_PREFIX):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        self.checkpoints.save(_step_of(path), {"all": _plain(checkpoint), "own": self.own()})

    def load_checkpoint(self, path: str | Path, *arguments: Any, **options: Any) -> Any:
        """Read a checkpoint, or if that cannot be read on any rank, the one before; all ranks do."""
        if not str(path).startswith(_PREFIX):
            return super().load_checkpoint(path, *arguments, **options)
        steps = [step for step in self.checkpoints.steps() if step <= _step_of(path)]
        chosen, wrong = first_intact(steps, self._read)
        if chosen is None:
            raise NoCheckpointError(_step_of(path), "there is none in State")
        self.loaded, (everything, self.loaded_own) = chosen
        if self.rank == 0 and wrong:
            _log.warning(said(Wish(), steps, self.loaded, wrong))
            self.checkpoints.set_aside_after(self.loaded)
        return everything

    def _read(self, step: int) -> tuple[Any, str]:
        return read_by_all(self.rank, lambda: self._content(step))

    def _content(self, step: int) -> tuple[Any, Any]:
        """Return what Lightning has saved, and what this rank has; None if other ranks have saved it."""
        own = self.checkpoints.restore(step)["own"] if self.checkpoints.ranks_of(step) == self.ranks else None
        return self.checkpoints.restore(step, rank=0)["all"], own


class _Loader:
    """A loader whose place in its data is known; each `iter` begins an epoch, but for the first one of a launch."""

    def __init__(self, loader: Any, step: int) -> None:
        self.loader = loader
        self.position = Position(step)
        self.goes_on = False  # whether the next epoch is one that an earlier launch has begun

    def __iter__(self) -> Iterator[Any]:
        if not self.goes_on:
            self.position.end_epoch()
        self.goes_on = False
        yield from self.position.rest_of_epoch(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


class _StatefulLoader(_Loader):
    """One that Lightning too takes for a loader with a state."""

    def state_dict(self) -> Any:
        return self.loader.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.loader.load_state_dict(state)


def _own_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers of which each rank has its own."""
    if not isinstance(model, DistributedDataParallel) or model.broadcast_buffers:
        return {}
    return dict(model.module.named_buffers())


def _loader_of(loader: Any, step: int) -> _Loader:
    return _StatefulLoader(loader, step) if hasattr(loader, "load_state_dict") else _Loader(loader, step)


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

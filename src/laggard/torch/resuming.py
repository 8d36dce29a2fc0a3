"""``resume``: a training loop of one's own that goes on where the last launch stopped."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from laggard.errors import LaggardError
from laggard.kvstore.checkpoint import Checkpointer
from laggard.kvstore.state import State
from laggard.torch.position import Position
from laggard.torch.reporting import StepReporter
from laggard.torch.snapshot import has_shards, join_shards, random_states, restore_random_states, split_shards

__all__ = ["RanksChangedError", "Resumed", "Stateful", "resume"]

_log = logging.getLogger("laggard.torch")


class RanksChangedError(LaggardError):
    """A checkpoint whose tensors are split over another number of ranks than this launch has.

    Attributes
    ----------
    step : int
        Step of the checkpoint.
    saved, ranks : int
        Number of ranks then and now.
    """

    def __init__(self, step: int, saved: int, ranks: int) -> None:
        super().__init__(step, saved, ranks)
        self.step = step
        self.saved = saved
        self.ranks = ranks

    def __str__(self) -> str:
        return (
            f"the checkpoint of step {self.step} is split over {self.saved} ranks, and this launch has {self.ranks}: "
            "keep nodes in reserve (--idle) and leave --exhaust-resources out, or use DistributedDataParallel"
        )


class Stateful(Protocol):
    """What can be saved and restored: an optimizer, a scheduler, a scaler, an average of the weights."""

    def state_dict(self) -> Any:
        """Return its state."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Take over a state."""


class Resumed:
    """A training, at the step where it goes on; created by `resume`.

    Attributes
    ----------
    step
        The step to run next; 0 in the first launch.
    job
        The job that this process belongs to.
    """

    def __init__(
        self, module: torch.nn.Module, others: Mapping[str, Stateful], checkpoints: Checkpointer, every: int
    ) -> None:
        self.step = 0
        self._module = module
        self._others = others
        self._checkpoints = checkpoints
        self._every = every
        self._rank, self._ranks = _rank_and_ranks()
        self._is_sharded = has_shards(module)
        self._position = Position()
        self._reporter = StepReporter(self._rank)
        self.job = self._reporter.job

    def __repr__(self) -> str:
        return f"<Resumed at step {self.step}: rank {self._rank} of {self._ranks}, launch {self.job.launch}>"

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the loader's batches, epoch after epoch without end, from the first that no checkpoint has seen.

        A sampler with ``set_epoch`` is told the epoch.  The first epoch after a relaunch is shuffled as before, and its
        batches up to the position are read again, and dropped.
        """
        yield from self._position.batches(loader)

    def save(self, step: int, *, loss: Any = None) -> None:
        """Call this at the end of each step, on every rank.

        It reports the step, its time and its loss, and saves a checkpoint at every ``every``-th step.  Only the last
        checkpoint that all ranks have saved is resumed from.

        Parameters
        ----------
        step
            The step that has just ended; the next launch goes on with the one after it.
        loss
            Its loss, for the metric ``loss``; a tensor on a GPU is not waited for.

        Raises
        ------
        UnsupportedValueError, FencedError, StateUnavailableError, StateFullError
            As from any write to State; earlier checkpoints are untouched.
        """
        self._reporter.end(step + 1, loss)
        if (step + 1) % self._every == 0:
            with self.job.phase("checkpoint"):
                self._checkpoints.save(step + 1, self._snapshot())
            self._reporter.begin()

    def _snapshot(self) -> dict[str, Any]:
        snapshot = {"ranks": self._ranks, "random": random_states(), "position": self._position.state_dict()}
        if self._is_sharded or self._rank == 0:
            snapshot["model"] = split_shards(self._module.state_dict())
            snapshot["others"] = {name: split_shards(other.state_dict()) for name, other in self._others.items()}
        return snapshot

    def _restore(self) -> None:
        step = self._checkpoints.latest()
        if step is None:
            return
        whole = self._checkpoints.restore(step, rank=0)
        saved = whole["ranks"]
        if self._is_sharded and saved != self._ranks:
            raise RanksChangedError(step, saved, self._ranks)
        own = self._checkpoints.restore(step) if saved == self._ranks and self._rank > 0 else whole
        source = own if self._is_sharded else whole
        self._module.load_state_dict(join_shards(source["model"], dict(self._module.state_dict())))
        for name, other in self._others.items():
            if name in source["others"]:
                other.load_state_dict(join_shards(source["others"][name], _tensors_of(other)))
        if saved == self._ranks:
            self._position.load_state_dict(own["position"])
            restore_random_states(own["random"])
        else:
            _log.warning(
                "step %d was saved by %d ranks, and there are %d: random generators and the position in the data "
                "begin anew",
                step,
                saved,
                self._ranks,
            )
        self.step = step


def resume(
    model: torch.nn.Module,
    optimizer: Stateful | None = None,
    scheduler: Stateful | None = None,
    *,
    scaler: Stateful | None = None,
    also: Mapping[str, Stateful] | None = None,
    every: int = 1,
    keep: int = 2,
    name: str = "torch",
) -> Resumed:
    """Restore a training from the newest checkpoint in State, if there is one, and return where it goes on.

    Call it on every rank, after the process group and all its arguments are made, and before anything that uses random
    numbers: the random generators continue as well.

    Parameters
    ----------
    model
        The module; one in ``DistributedDataParallel`` is saved by rank 0, one split by ``fully_shard`` by every rank,
        each its own part.
    optimizer, scheduler, scaler
        What else has a state.
    also
        Further objects with ``state_dict()`` and ``load_state_dict()``, by name.
    every
        Each how many steps `Resumed.save` saves a checkpoint.
    keep
        How many checkpoints to keep.
    name
        Prefix of their keys in State; a program with several trainings gives each its own.

    Raises
    ------
    RanksChangedError
        If a model is split, and was split over another number of ranks.
    DamagedCheckpointError
        If the newest checkpoint is damaged.

    Examples
    --------
    >>> run = laggard.torch.resume(model, optimizer, scheduler, every=100)  # doctest: +SKIP
    >>> for step, batch in zip(range(run.step, 10_000), run.batches(loader)):  # doctest: +SKIP
    ...     loss = train(batch)
    ...     run.save(step, loss=loss)
    """
    if every < 1:
        raise ValueError(f"every is {every}; it must be at least 1")
    given = {"optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    others = {name: other for name, other in given.items() if other is not None} | dict(also or {})
    rank, ranks = _rank_and_ranks()
    checkpoints = Checkpointer(State.current(), name=name, rank=rank, ranks=ranks, keep=keep)
    resumed = Resumed(_unwrapped(model), others, checkpoints, every)
    resumed._restore()
    resumed._reporter.begin()
    return resumed


def _rank_and_ranks() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside of wrappers that only change the names in its state_dict."""
    if isinstance(model, FullyShardedDataParallel):
        raise TypeError("FullyShardedDataParallel is not supported; split the model with fully_shard")
    if isinstance(model, DistributedDataParallel):
        return _unwrapped(model.module)
    inner = getattr(model, "_orig_mod", None)  # of torch.compile
    return model if inner is None else _unwrapped(inner)


def _tensors_of(other: Stateful) -> dict[str, Any]:
    """Return, for each tensor in an optimizer's state_dict, a parameter that is split in the same way."""
    if not isinstance(other, torch.optim.Optimizer):
        return {}
    parameters = [parameter for group in other.param_groups for parameter in group["params"]]
    return {"state": dict(enumerate(parameters))}

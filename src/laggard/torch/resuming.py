"""``resume``: a training loop of one's own that goes on where the last launch stopped."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from laggard.kvstore.checkpoints.checkpointer import Checkpointer
from laggard.kvstore.checkpoints.resharding import Path
from laggard.kvstore.errors import ReshardingError
from laggard.kvstore.state.mapping import State
from laggard.kvstore.values.blocks import Region
from laggard.torch.gradients import mark_used_gradients, unused_gradients
from laggard.torch.position import Position
from laggard.torch.reporting import StepReporter
from laggard.torch.training_state import (
    blocks_in,
    bytes_in,
    from_blocks,
    has_blocks,
    like_at,
    random_states,
    region_of,
    restore_random_states,
    to_blocks,
)

_log = logging.getLogger("laggard.torch")


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
        self._is_sharded = has_blocks(module)
        self._uses_gradients = any(isinstance(other, torch.optim.Optimizer) for other in others.values())
        self._position = Position()
        self._knows_size = False
        self._reporter = StepReporter(self._rank)
        self.job = self._reporter.job

    def __repr__(self) -> str:
        return f"<Resumed at step {self.step}: rank {self._rank} of {self._ranks}, launch {self.job.launch}>"

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the loader's batches, epoch after epoch without end, from the first that no step has used.

        A sampler with ``set_epoch`` is told the epoch.  The first epoch after a relaunch is shuffled as before, and its
        batches up to the position are read again, and dropped; a loader with ``state_dict`` and ``load_state_dict``,
        such as torchdata's ``StatefulDataLoader``, goes on from its own state instead.

        Each step uses the same number of batches: one, or as many as are drawn between two saves.  What was drawn
        beyond that before the first `save` is drawn ahead, and comes again after a relaunch.
        """
        yield from self._position.batches(loader)

    def save(self, step: int, *, loss: Any = None, batches: int | None = None) -> None:
        """Call this at the end of each step, on every rank.

        It reports the step, its time and its loss, and saves a checkpoint at every ``every``-th step.  Only the last
        checkpoint that all ranks have saved is resumed from.

        Parameters
        ----------
        step
            The step that has just ended; the next launch goes on with the one after it.
        loss
            Its loss, for the metric ``loss``; a tensor on a GPU is not waited for.
        batches
            How many batches were used since the last call, for a loop whose steps use different numbers of them, draws
            ahead by different numbers (in a thread), or draws ahead and saves a checkpoint at its first step.

        Raises
        ------
        ValueError
            If it is not known which batch the step has used, as the loop does not draw as many at each step.
        ShardMemoryError, ShardServerError, UnsupportedValueError, FencedError, StateUnavailableError, StateFullError
            As from `laggard.Checkpointer.save`; earlier checkpoints are untouched.
        """
        self._position.count(step + 1, batches)
        self._reporter.end(step + 1, loss)
        if (step + 1) % self._every == 0:
            with self._reporter.saving(step + 1):
                self._checkpoints.save(step + 1, self._training_state())
        elif not self._knows_size:  # an optimizer has most of its state after its first step only
            self._prepare()
        self._knows_size = True

    def _prepare(self) -> None:
        """Have memory ready for what a checkpoint would have now."""
        if self._is_sharded or self._rank == 0:
            optimizers = [each for each in self._others.values() if isinstance(each, torch.optim.Optimizer)]
            self._checkpoints.prepare(sum(bytes_in(each.state_dict()) for each in (self._module, *optimizers)))

    def _training_state(self) -> dict[str, Any]:
        state = {"ranks": self._ranks, "random": random_states(), "position": self._position.state_dict()}
        if self._is_sharded or self._rank == 0:
            state["model"] = to_blocks(self._module.state_dict())
            state["others"] = {name: to_blocks(other.state_dict()) for name, other in self._others.items()}
        if self._uses_gradients and (gradients := unused_gradients(self._module)):
            state["gradients"] = to_blocks(gradients)
        return state

    def _restore(self) -> None:
        step = _agreed(self._checkpoints.latest())
        if step is None:
            return
        saved = self._checkpoints.ranks_of(step)
        like = {"model": dict(self._module.state_dict()), "others": {n: _like(o) for n, o in self._others.items()}}
        like["gradients"] = dict(self._module.named_parameters())
        own = self._own(step, saved, like)
        if "gradients" in own and saved != self._ranks:
            raise ReshardingError("gradients", f"step {step} was saved by {saved} ranks while they were accumulated")
        whole = own if "model" in own else self._checkpoints.restore(step, rank=0)
        self._module.load_state_dict(from_blocks(whole["model"], like["model"]))
        for name, other in self._others.items():
            if name in whole["others"]:
                other.load_state_dict(from_blocks(whole["others"][name], like["others"][name]))
        for name, gradient in from_blocks(own.get("gradients", {}), like["gradients"]).items():
            like["gradients"][name].grad = gradient.to(like["gradients"][name].device)
        self._position.load_state_dict(own["position"], step)
        if saved == self._ranks:
            restore_random_states(own["random"])
        else:
            self._position = self._position.rescaled(saved, self._ranks)
            if self._rank == 0:
                _log.warning(
                    "step %d was saved by %d ranks, and there are %d: random generators begin anew, and the data goes "
                    "on at batch %d of epoch %d",
                    step,
                    saved,
                    self._ranks,
                    self._position.used.batch,
                    self._position.used.epoch,
                )
        self.step = step

    def _own(self, step: int, saved: int, like: Any) -> Any:
        """Return what this rank would have saved: its own shard, or its parts of those of all ranks."""

        def region(path: Path, shape: tuple[int, ...], *_: object) -> Region:
            alike = like_at(like, path)
            if not isinstance(alike, torch.Tensor):
                raise ReshardingError("/".join(map(str, path)), "it was split over ranks, and is not in this launch")
            return region_of(alike) if isinstance(alike, DTensor) else Region.whole(shape)

        if saved == self._ranks:
            own = self._checkpoints.restore(step)
            if all(region(path, block.shape) == block.region for path, block in blocks_in(own)):
                return own
        return self._checkpoints.restore_part(step, region)


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
        each its own part.  Another number of ranks takes its parts from those that were saved.
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
    DamagedCheckpointError
        If the newest checkpoint is damaged.
    MissingElementsError, ReshardingError
        If the newest checkpoint is that of another model.

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
    mark_used_gradients()
    resumed._restore()
    resumed._prepare()
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


def _like(other: Stateful) -> Any:
    """Return, for each tensor in a state_dict, one that is split in the same way."""
    if not isinstance(other, torch.optim.Optimizer):
        return other.state_dict()
    parameters = [parameter for group in other.param_groups for parameter in group["params"]]
    return {"state": dict(enumerate(parameters))}


def _agreed(step: int | None) -> int | None:
    """Return rank 0's step: a rank that looks a moment later may see another checkpoint, and all restore the same."""
    if not (dist.is_available() and dist.is_initialized()):
        return step
    steps = [step]
    dist.broadcast_object_list(steps)
    return steps[0]

"""``resume``: a training loop of one's own that goes on where the last launch stopped."""

from __future__ import annotations

import logging
import os
import shlex
import socket
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import psutil
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from laggard.kvstore.checkpoints.checkpointer import Checkpointer
from laggard.kvstore.checkpoints.layout import LeafDigests
from laggard.kvstore.checkpoints.resharding import Path, read_whole, reshard
from laggard.kvstore.checkpoints.settings import NodeShards
from laggard.kvstore.errors import (
    ReshardingError,
    UnsupportedValueError,
)
from laggard.kvstore.state.mapping import State
from laggard.kvstore.values.blocks import Region
from laggard.kvstore.values.codec import path_text
from laggard.resilience.job import Job
from laggard.torch.buckets import Buckets
from laggard.torch.choosing import Wish, candidates, first_intact, said, said_of_earlier_run
from laggard.torch.differences import exchange, filled, read_by_all, store
from laggard.torch.draws import Draws
from laggard.torch.gradients import UnusedGradients
from laggard.torch.kept_group import kept_group
from laggard.torch.kept_steps import Steps, steps_from
from laggard.torch.model_state import ModelState
from laggard.torch.position import Position
from laggard.torch.reporting import StepReporter
from laggard.torch.split_optimizer import SplitOptimizer
from laggard.torch.training_state import (
    blocks_in,
    bytes_in,
    from_blocks,
    has_blocks,
    like_at,
    like_of,
    random_states,
    region_of,
    restore_random_states,
)

_log = logging.getLogger("laggard.torch")
T = TypeVar("T")


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
        self,
        parts: Mapping[str, Stateful],
        of_first: Collection[Path],
        buckets: Buckets,
        state: State,
        checkpoints: Checkpointer,
        every: int,
    ) -> None:
        self.step = 0
        self._begin_steps: Callable[[], Steps] = lambda: Steps(self.step)
        self._steps: Steps | None = None  # once they have begun
        self._draws = Draws()
        self._random: dict[str, Any] | None = None  # those to begin with, until a step has ended
        self._parts = parts  # what has a state, by its name; `model` among them
        self._of_first = of_first  # buffers whose value is rank 0's, once a forward has taken it
        self._buckets = buckets
        self._state = state
        self._run = _job_and_arguments(state)
        self._checkpoints = checkpoints
        self._every = every
        self._rank, self._ranks = _rank_and_ranks()
        self._is_sharded = any(isinstance(part, ModelState) and has_blocks(part.module) for part in parts.values())
        self._position = Position()
        self._knows_size = False
        self._reporter = StepReporter(self._rank)
        self.job = self._reporter.job

    def __repr__(self) -> str:
        return f"<Resumed at step {self.step}: rank {self._rank} of {self._ranks}, launch {self.job.launch}>"

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Return the loader's batches, epoch after epoch without end, from the first that no step has used.

        Call it before the first step: what was drawn from random generators since `resume`, as some loaders do when
        they are made, does not count.

        A sampler or data set with ``set_epoch`` is told the epoch.  The first epoch after a relaunch is shuffled as
        before, and its batches up to the position are read again, and dropped; a loader with ``state_dict`` and
        ``load_state_dict``, such as torchdata's ``StatefulDataLoader``, goes on from its own state instead.

        Each step uses the same number of batches: one, or as many as are drawn between two saves.  What was drawn
        beyond that before the first `save` is drawn ahead, and comes again after a relaunch.
        """
        if self._position.has_other_workers(loader):
            self._say("the loader's workers start anew: the random numbers that they draw differ from those before")
        self._set_random()
        return self._draws.through(self._position.batches(loader))

    def steps(self, n_steps: int) -> Iterator[Steps]:
        """Yield what to run each step with, until the training has had so many.

        Where the process group was made by `laggard.torch.init_process_group`, a step that fails because a rank is lost
        is run again once that rank is replaced, and no other rank is started anew.

        Examples
        --------
        >>> for attempt in run.steps(10_000):  # doctest: +SKIP
        ...     with attempt as step:
        ...         run.save(step, loss=train(step))
        """
        self._set_random()
        self._steps = self._steps or self._begin_steps()
        yield from self._steps.until(n_steps)

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
        self._random = None
        if not self._knows_size and (hooks := self._buckets.hooks_with_state()):
            self._say(
                f"the state of {', '.join(hooks)} is not saved: after a relaunch it begins anew, and losses differ"
            )
        if not self._draws.has_ended(step):
            self._position.count(step + 1, batches)
        self._reporter.end(step + 1, loss)
        if (step + 1) % self._every == 0:
            with self._reporter.saving(step + 1):
                self._save(step + 1)
        elif not self._knows_size:  # an optimizer has most of its state after its first step only
            self._prepare()
        self._knows_size = True

    def _prepare(self) -> None:
        """Have memory ready for what a checkpoint would have now."""
        if self._is_sharded or self._rank == 0:
            known = [part for name, part in self._parts.items() if name != "gradients"]
            self._checkpoints.prepare(sum(bytes_in(part.state_dict()) for part in known))

    def _save(self, step: int) -> None:
        if (group := kept_group()) is not None:
            group.settle()
        own: dict[str, Any] = {"run": self._run, "random": random_states(), "buckets": self._buckets.state_dict()}
        own["position"] = self._position.state_dict()
        own["takes_buffers"] = takes_buffers = self._buckets.takes_buffers
        tree = {name: part.state_dict() for name, part in self._parts.items()}
        among = exchange if self._ranks > 1 else None

        def save(parts: dict[str, Any], digests: LeafDigests | None) -> None:
            if "differing" in parts:  # for another number of ranks, rank 0's are right
                parts["differing"] = [path for path in parts["differing"] if tuple(path) not in self._of_first]
            try:
                self._checkpoints.save(step, own | parts, digests)
            except UnsupportedValueError as error:
                raise UnsupportedValueError(error.key.removeprefix("state."), error.reason) from None

        store(tree, self._rank, among, self._of_first if all(takes_buffers) else (), save)

    def _restore(self, wish: Wish, key: str) -> None:
        """Go on from the checkpoint that the program wishes; ``key`` of State names the job that has done so."""
        job = self._run[0]
        steps, is_relaunch = _agreed((self._checkpoints.steps(), self._state.get(key) == job))
        chosen, wrong = first_intact(candidates(wish, steps, is_relaunch=is_relaunch), self._read)
        step = None if chosen is None else chosen[0]
        if self._rank == 0:
            if notice := said(wish, steps, step, wrong):
                self._say(notice)
                self._checkpoints.set_aside_after(step)
            if wish != Wish():
                self._state.update_with(lambda transaction: transaction.update({key: job}), is_upkeep=True)
        if chosen is not None:
            self._take_over(*chosen)

    def _read(self, step: int) -> tuple[Any, str]:
        def content() -> tuple[Any, ...]:
            saved = self._checkpoints.ranks_of(step)
            like = {name: like_of(part) for name, part in self._parts.items()}
            return (saved, like, *self._own(step, saved, like))

        return read_by_all(self._rank, content)

    def _take_over(self, step: int, content: Any) -> None:
        saved, like, state, own = content
        for name, part in self._parts.items():
            if name in state:
                part.load_state_dict(from_blocks(state[name], like[name]))
        self._position.load_state_dict(own["position"], step)
        if saved == self._ranks:
            self._random = own["random"]
            self._set_random()
            self._buckets.load_state_dict(own["buckets"])
            self._buckets.takes_buffers = own.get("takes_buffers", [])
        else:
            self._position = self._position.rescaled(saved, self._ranks)
            self._say(
                f"step {step} was saved by {saved} ranks, and there are {self._ranks}: random generators begin anew, "
                f"and the data goes on at batch {self._position.used.batch} of epoch {self._position.used.epoch}"
            )
        job, arguments = own["run"]
        if job != self._run[0]:
            self._say(said_of_earlier_run(step, arguments, self._run[1], self._state.file))
        self.step = step

    def _set_random(self) -> None:
        """Have the random generators as the last step left them, whatever the program has drawn before its first."""
        if self._random is not None:
            restore_random_states(self._random)

    def _say(self, notice: str) -> None:
        if self._rank == 0:
            _log.warning(notice)

    def _own(self, step: int, saved: int, like: Any) -> tuple[Any, Any]:
        """Return the state_dicts that this rank would have saved, and what else a rank saves for itself alone."""

        def region(path: Path, shape: tuple[int, ...], *_: object) -> Region:
            alike = like_at(like, path)
            if not isinstance(alike, torch.Tensor):
                raise ReshardingError(path_text(path), "it was split over ranks, and is not in this launch")
            return region_of(alike) if isinstance(alike, DTensor) else Region.whole(shape)

        if saved == self._ranks:
            own = self._checkpoints.restore(step)
            shard = own if "state" in own else self._checkpoints.restore(step, rank=0)
            state = read_whole(filled(shard, lambda rank: self._checkpoints.open_tree(step, rank)))
            if all(region(path, block.shape) == block.region for path, block in blocks_in(state)):
                return state, own
        shards = self._checkpoints.open_trees(step)
        by_rank = [shards[(number - self._rank) % saved] for number in range(saved)]
        self._refuse_differing(step, by_rank)
        state = reshard([filled(shard, by_rank.__getitem__) for shard in shards if "state" in shard], region)
        return state, {name: read_whole(shards[0][name]) for name in ("run", "position", "random")}

    def _refuse_differing(self, step: int, shards: Sequence[Mapping[str, Any]]) -> None:
        """Refuse to take one of several values for a layout of which none of them is right."""
        found = {tuple(path): None for shard in shards for path in shard.get("differing", ())}
        if names := [path_text(path) for path in found if path[0] in self._parts]:
            raise ReshardingError(
                ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else ""),
                f"the {len(shards)} ranks that saved step {step} hold different values, and none of them is right for "
                f"another layout; go on with {len(shards)} ranks, or give them all one value before a save "
                "(torch.distributed.broadcast; SyncBatchNorm for a BatchNorm)",
            )


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
    step: int | None = None,
    fresh: bool = False,
    weights: Callable[[str], bool] | None = None,
    strict: bool = True,
) -> Resumed:
    """Restore a training from the newest checkpoint in State, if there is one, and return where it goes on.

    One that cannot be read on any rank is set aside, and the one before it is restored.

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
    step
        Step of the checkpoint to go on from; newer ones are set aside.  The relaunches of a job go on from what it has
        saved since.
    fresh
        Whether to begin anew, and to set all checkpoints aside; but for relaunches of the job.
    weights
        Which entries of the model's ``state_dict()`` are saved, by their names, such as those of LoRA; the others stay
        as the program has made them.
    strict
        Whether the checkpoint must have exactly the entries of the model.

    Raises
    ------
    RuntimeError
        If the process is one of several ranks, by RANK and WORLD_SIZE, or one of several processes that have called
        this, and has no process group yet.
    NoCheckpointError, DamagedCheckpointError
        If there is no checkpoint of this step, or none that can be read.
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
    _refuse_ranks_without_group(traceback.extract_stack(limit=2)[0])
    module = _unwrapped(model)
    given = {"optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    parts = _parts(module, ModelState(module, weights, strict=strict), given, also or {})
    rank, ranks = _rank_and_ranks()
    state = State.current()
    if not _has_group():
        _refuse_other_process(state, name)
    checkpoints = Checkpointer(state, name=name, rank=rank, ranks=ranks, keep=keep)
    buckets = Buckets([model, *(also or {}).values()])
    resumed = Resumed(parts, _of_first(model, module), buckets, state, checkpoints, every)
    resumed._begin_steps = lambda: steps_from(
        resumed.step, model, parts, resumed._position, resumed._draws, has_others=bool(also)
    )
    if not ((group := kept_group()) and group.membership.joins):  # else another rank gives it all of this
        resumed._restore(Wish(step, fresh), f"{name}/wish-of")
    resumed._prepare()
    resumed._reporter.begin()
    return resumed


def _parts(
    module: torch.nn.Module, model: ModelState, given: Mapping[str, Stateful | None], also: Mapping[str, Stateful]
) -> dict[str, Stateful]:
    """Return what has a state, by its name."""
    # Without an optimizer of PyTorch's nothing marks those that were used.
    has_optimizer = any(isinstance(part, torch.optim.Optimizer) for part in (*given.values(), *also.values()))
    own = {"model": model, **given, "gradients": UnusedGradients(module, also) if has_optimizer else None}
    if taken := own.keys() & also:
        raise ValueError(f"also has {', '.join(map(repr, sorted(taken)))}; choose other names than {', '.join(own)}")
    found = {name: part for name, part in own.items() if part is not None} | dict(also)
    return {name: SplitOptimizer(part) if SplitOptimizer.is_one(part) else part for name, part in found.items()}


def _has_group() -> bool:
    return bool(dist.is_available() and dist.is_initialized())


def _rank_and_ranks() -> tuple[int, int]:
    return (dist.get_rank(), dist.get_world_size()) if _has_group() else (0, 1)


def _refuse_ranks_without_group(call: traceback.FrameSummary) -> None:
    """Refuse a call that comes too early: each rank would be rank 0 of 1, and write over what the others save."""
    rank, ranks = os.environ.get("RANK"), os.environ.get("WORLD_SIZE", "1")
    if rank is None or int(ranks) == 1 or _has_group():
        return
    raise RuntimeError(
        f"line {call.lineno} of {call.filename} calls resume before init_process_group, in rank {rank} of {ranks} "
        "(RANK and WORLD_SIZE); move that line below torch.distributed.init_process_group(...)"
    )


def _refuse_other_process(state: State, name: str) -> None:
    """Refuse a second process of this launch, as of ``torch.multiprocessing.spawn``: each would be rank 0 of 1."""
    own = [Job.current().launch, socket.gethostname(), os.getpid(), psutil.Process().create_time()]
    earlier = state.update_with(lambda t: t.setdefault(f"{name}/process", own), is_upkeep=True)
    if earlier != own and earlier[0] == own[0] and _may_live(*earlier[1:]):
        raise RuntimeError(
            f"process {earlier[2]} on {earlier[1]} has called resume, too, and neither has a process group, so each is "
            "rank 0 of 1; call resume after torch.distributed.init_process_group(...), or with a name= for each process"
        )
    state.update_with(lambda t: t.update({f"{name}/process": own}), is_upkeep=True)


def _may_live(host: str, pid: int, began_s: float) -> bool:
    if host != socket.gethostname():
        return True
    try:
        return bool(psutil.Process(pid).create_time() == began_s)
    except psutil.NoSuchProcess:
        return False


def _unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside of wrappers that only change the names in its state_dict."""
    if isinstance(model, FullyShardedDataParallel):
        raise TypeError("FullyShardedDataParallel is not supported; split the model with fully_shard")
    if isinstance(model, DistributedDataParallel):
        return _unwrapped(model.module)
    inner = getattr(model, "_orig_mod", None)  # of torch.compile
    return model if inner is None else _unwrapped(inner)


def _of_first(model: torch.nn.Module, module: torch.nn.Module) -> set[Path]:
    """Return the buffers that `DistributedDataParallel` replaces by those of rank 0 before each step."""
    while not isinstance(model, DistributedDataParallel):
        model = getattr(model, "_orig_mod", None)
        if model is None:
            return set()
    if not model.broadcast_buffers or model.process_group.size() < dist.get_world_size():
        return set()
    return {("model", name) for name, _ in module.named_buffers(remove_duplicate=False)}


def _job_and_arguments(state: State) -> list[str]:
    """Return what names the job, or the run of a program without one, and the program's arguments."""
    job = state.command
    if job is None and (settings := NodeShards.current()) is not None:
        job = settings[0].run
    return [job or "", shlex.join(sys.argv[1:])]


def _agreed(value: T) -> T:
    """Return rank 0's value: a rank that looks a moment later may see other checkpoints, and all restore the same."""
    if not _has_group():
        return value
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]

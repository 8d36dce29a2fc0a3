"""Storage for ``torch.distributed.checkpoint``: what it saves is a checkpoint of laggard's, one shard per rank.

::

    checkpoints = Checkpointer(State.current(), rank=dist.get_rank(), ranks=dist.get_world_size())
    dcp.async_save(state, storage_writer=CheckpointWriter(checkpoints, step))
    ...
    dcp.load(state, storage_reader=CheckpointReader(checkpoints, checkpoints.latest()))

A rank's shard holds the parts of tensors that the planner gave it, each as a `Block`, and its other values as values of
State.  Nothing describes the checkpoint as a whole: a reader puts its metadata together from the shards' headers.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch.distributed.checkpoint import LoadPlanner, SavePlanner, StorageReader, StorageWriter
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, SavePlan, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from laggard.kvstore.checkpoints.checkpointer import Checkpointer
from laggard.kvstore.checkpoints.resharding import StoredBlock, read_whole
from laggard.kvstore.errors import NoCheckpointError
from laggard.kvstore.values.blocks import Block, Region
from laggard.kvstore.values.codec import encode


class _OfStep:
    """One end of a checkpoint that is named by its step, not by a path."""

    def __init__(self, checkpoints: Checkpointer, step: int) -> None:
        self._checkpoints = checkpoints
        self._step = step

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return that no path means anything here."""
        return False

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a save or a load."""
        if checkpoint_id is not None:
            name = type(self).__name__
            raise ValueError(f"checkpoint_id is {checkpoint_id!r}; leave it out, and give the step to {name}")


class CheckpointWriter(_OfStep, StorageWriter):  # type: ignore[misc]  # mypy does not read PyTorch
    """Saves what ``dcp.save`` or ``dcp.async_save`` is given as a checkpoint of laggard's.

    Parameters
    ----------
    checkpoints
        Where to; its ranks are those that take part in the save.
    step
        The checkpoint's step.

    Raises
    ------
    UnsupportedValueError
        From the save, if a value that is not a tensor is none of State's either; it names the value.
    """

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Do nothing: there is nothing to prepare."""

    def storage_meta(self) -> StorageMeta | None:
        """Return the step, for a planner that wants to know."""
        return StorageMeta(checkpoint_id=str(self._step))

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Tell each rank the number of its shard."""
        ranks = self._checkpoints.ranks
        if len(plans) != ranks:
            raise ValueError(
                f"{len(plans)} ranks save a checkpoint of a Checkpointer with ranks={ranks}; make them equal"
            )
        return [replace(plan, storage_data=rank) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Save this rank's shard."""
        if plan.storage_data != self._checkpoints.rank:
            raise ValueError(
                f"rank {plan.storage_data} saves with a Checkpointer of rank={self._checkpoints.rank}; make them equal"
            )
        tensors: dict[str, list[Block]] = {}
        objects: dict[str, Any] = {}
        results = []
        for item in plan.items:
            if item.type is WriteItemType.BYTE_IO:
                objects[item.index.fqn] = _object(item, planner)
            else:
                tensors.setdefault(item.index.fqn, []).append(_block(item, planner))
            results.append(WriteResult(item.index, item.tensor_storage_size() or 0, plan.storage_data))
        self._checkpoints.save(self._step, {"tensors": tensors, "objects": objects, "paths": plan.planner_data})
        return _done(results)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Complete the metadata that ``dcp.save`` returns; the checkpoint itself does not need it."""
        metadata.storage_data = {result.index: result.storage_data for results_of in results for result in results_of}
        metadata.storage_meta = self.storage_meta()


class CheckpointReader(_OfStep, StorageReader):  # type: ignore[misc]  # mypy does not read PyTorch
    """Reads a checkpoint that a `CheckpointWriter` saved, on any number of ranks.

    Parameters
    ----------
    checkpoints
        Where from; its ranks may be others than those that saved.
    step
        The checkpoint's step, as `Checkpointer.latest` returns it, the same on every rank.

    Raises
    ------
    NoCheckpointError
        If there is no complete checkpoint of this step.
    """

    def __init__(self, checkpoints: Checkpointer, step: int) -> None:
        super().__init__(checkpoints, step)
        self._blocks: dict[MetadataIndex, StoredBlock] = {}
        self._objects: dict[str, Any] = {}
        checkpoints.ranks_of(step)

    def read_metadata(self) -> Metadata:
        """Return the metadata of the whole checkpoint, from the shards' headers."""
        described: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
        paths: dict[str, Any] = {}
        for tree in self._checkpoints.open_trees(self._step):
            if not isinstance(tree, dict) or tree.keys() != {"tensors", "objects", "paths"}:
                raise NoCheckpointError(self._step, "it was not saved by a CheckpointWriter; use Checkpointer.restore")
            paths = tree["paths"] | paths if tree["paths"] else paths
            for name, value in tree["objects"].items():
                described[name] = BytesStorageMetadata()
                self._objects.setdefault(name, value)
            for name, blocks in tree["tensors"].items():
                known = described.setdefault(name, _metadata(blocks[0]))
                self._add(name, blocks, cast("TensorStorageMetadata", known).chunks)
        return Metadata(described, planner_data=paths, storage_meta=StorageMeta(checkpoint_id=str(self._step)))

    def _add(self, name: str, blocks: Sequence[StoredBlock], chunks: list[ChunkStorageMetadata]) -> None:
        for block in blocks:
            index = MetadataIndex(name, block.region.start)
            if index not in self._blocks:  # several ranks may have saved the same part
                self._blocks[index] = block
                chunks.append(ChunkStorageMetadata(torch.Size(block.region.start), torch.Size(block.region.shape)))

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the metadata was read by this reader."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Note in the plan which step this rank reads."""
        return replace(plan, storage_data=self._step)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Make sure that all ranks read the same checkpoint."""
        steps = [plan.storage_data for plan in plans]
        if len(set(steps)) > 1:
            raise NoCheckpointError(self._step, f"the ranks are to read steps {steps}; give each the same one")
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read this rank's parts into its tensors."""
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                planner.load_bytes(item, _as_bytes(self._objects[item.storage_index.fqn]))
                continue
            block = self._blocks[item.storage_index]
            start = map(int.__add__, block.region.start, item.storage_offsets)
            target = planner.resolve_tensor(item).detach()
            target.copy_(_read(block, Region(tuple(start), tuple(item.lengths))))
            planner.commit_tensor(item, target)
        self._blocks, self._objects = {}, {}  # so that what is mapped goes
        return _done(None)


def _block(item: WriteItem, planner: SavePlanner) -> Block:
    described = item.tensor_data
    if described is None:
        raise TypeError(f"the planner does not describe the tensor {item.index.fqn!r}")
    region = Region(tuple(described.chunk.offsets), tuple(described.chunk.sizes))
    return Block(cast("torch.Tensor", planner.resolve_data(item)).detach(), region, tuple(described.size))


def _object(item: WriteItem, planner: SavePlanner) -> Any:
    """Return a value that is not a tensor, which a planner would pickle."""
    if not isinstance(planner, DefaultSavePlanner):
        raise TypeError(
            f"{item.index.fqn!r} is not a tensor, and {type(planner).__name__} would pickle it; "
            "derive the planner from DefaultSavePlanner"
        )
    value = planner.lookup_object(item.index)
    encode(item.index.fqn, value)  # refused here, by its own name
    return value


def _as_bytes(value: Any) -> io.BytesIO:
    """Return a value as planners expect it: they unpickle what this process has pickled just now, and nothing else."""
    content = io.BytesIO()
    torch.save(read_whole(value), content)
    content.seek(0)
    return content


def _metadata(block: StoredBlock) -> TensorStorageMetadata:
    _, name = block.type
    return TensorStorageMetadata(TensorProperties(dtype=getattr(torch, str(name))), torch.Size(block.shape), [])


def _read(block: StoredBlock, region: Region) -> torch.Tensor:
    """Return a region of a block; the tensor shows the bytes that were read, without a copy."""
    _, name = block.type
    dtype = getattr(torch, str(name))
    if not region.size:
        return torch.empty(region.shape, dtype=dtype)
    content, shape, part = block.read_rows(region)
    return torch.frombuffer(content, dtype=dtype).view(shape)[part]


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future

"""A rank of ``python -m benchmarks checkpoint``; rank 0 writes what the slowest rank took."""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import shutil
import time
import warnings
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from laggard import Checkpointer, State
from laggard.kvstore.checkpoints.bounds import MEMORY_FOLDER
from laggard.kvstore.client.connection import current_session
from laggard.torch import CheckpointReader, CheckpointWriter
from laggard.torch.differences import Exchange, exchange, store

TENSOR_BYTES = 32 << 20
COUNTS_WITHIN_S = 300.0
_SERVER = "laggard.kvstore.checkpoints.server"

Tree = dict[str, torch.Tensor]
Measured = dict[str, Any]


def main() -> None:
    """Measure everything in turns."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--sizes", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    folder: Path = options.folder
    own: list[Candidate] = [_Laggard(), _DcpInLaggard(), _AsyncDcpInLaggard()]
    candidates = [_Copy(), *own, _File(folder), _MemoryFile(MEMORY_FOLDER), _Dcp(folder), _AsyncDcp(folder)]
    timings: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    tree = tensors(options.mib, dist.get_rank())
    steps = itertools.count()
    own[0].save(next(steps), tree)()  # starts the shard servers
    # Saves first: what a program has restored is never written again, so the next save needs fresh memory.
    for measure in (measure_save, measure_restore):
        for repetition in range(1 + options.repeats):
            for candidate in candidates:
                measured = measure(candidate, next(steps), tree)
                if repetition:  # the first one warms up
                    for name, seconds in measured.items():
                        timings[candidate.name][name].append(seconds)
    sizes = [int(size) for size in options.sizes.split(",")]
    rows = [measure_size(steps, mib, copies, options.repeats) for copies in (0, 1, 2) for mib in sizes]
    digests = measure_digests(steps, options.mib, options.repeats)
    if dist.get_rank() == 0:
        candidate_rows = [{"name": name, **values} for name, values in timings.items()]
        found = {"candidates": candidate_rows, "copies": rows, "digests": digests}
        options.result.write_text(json.dumps(found))
    dist.destroy_process_group()


def tensors(mib: int, rank: int) -> Tree:
    """Return tensors of a rank's own, of 32 MiB or less."""
    generator = torch.Generator().manual_seed(rank)
    count, rest = divmod(mib << 20, TENSOR_BYTES)
    sizes = [TENSOR_BYTES] * count + [rest] * bool(rest)
    return {f"rank{rank}.{n}": torch.rand(size // 4096, 1024, generator=generator) for n, size in enumerate(sizes)}


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of the slowest rank, and this rank's result."""
    dist.barrier()
    began_s = time.perf_counter()
    result = work()
    took_s = torch.tensor([time.perf_counter() - began_s])
    dist.all_reduce(took_s, dist.ReduceOp.MAX)
    return float(took_s), result


class Candidate(ABC):
    """One way to save and to restore."""

    name: str

    @abstractmethod
    def save(self, step: int, tree: Tree) -> Callable[[], object]:
        """Save; what it returns waits until the save counts."""

    @abstractmethod
    def restore(self, step: int, into: Tree) -> None:
        """Read what was saved into tensors."""

    def discard(self, step: int) -> None:
        """Delete what was saved, unless the next save does."""
        del step


def measure_save(candidate: Candidate, step: int, tree: Tree) -> dict[str, float]:
    """Save once."""
    began_s = processor_s()
    blocks_s, wait = timed(lambda: candidate.save(step, tree))
    more_s, _ = timed(wait)
    spent_s = processor_s() - began_s
    candidate.discard(step)
    return {"blocks_s": blocks_s, "counts_s": blocks_s + more_s, "save_processor_s": spent_s}


def measure_restore(candidate: Candidate, step: int, tree: Tree) -> dict[str, float]:
    """Save and restore once; what comes back must be what was saved."""
    candidate.save(step, tree)()
    dist.barrier()  # rank 0 waits for all
    into = {name: torch.zeros_like(tensor) for name, tensor in tree.items()}
    began_s = processor_s()
    restore_s, _ = timed(lambda: candidate.restore(step, into))
    spent_s = processor_s() - began_s
    if not all(torch.equal(into[name], tensor) for name, tensor in tree.items()):
        raise SystemExit(f"{candidate.name} did not restore what it saved")
    candidate.discard(step)
    return {"restore_s": restore_s, "restore_processor_s": spent_s}


def processor_s() -> float:
    """Return the processor time of a rank and of its node's shard server in seconds, the mean of all ranks."""
    spent = torch.tensor([time.process_time() + sum(_shard_server().cpu_times()[:2])], dtype=torch.float64)
    dist.all_reduce(spent)
    return float(spent / dist.get_world_size())


@functools.cache
def _shard_server() -> psutil.Process:
    folder = current_session().environment.endpoint_file.parent
    found: psutil.Process
    (found,) = (each for each in psutil.process_iter(["cmdline"]) if _serves(each.info["cmdline"] or [], folder))
    return found


def _serves(command_line: list[str], folder: Path) -> bool:
    return command_line[-2:-1] == [_SERVER] and Path(command_line[-1]) == folder


def checkpointer(copies: int = 2) -> Checkpointer:
    """Return one for checkpoints that each replace the one before, whoever saved it."""
    return Checkpointer(State.current(), rank=dist.get_rank(), ranks=dist.get_world_size(), keep=1, copies=copies)


def wait_for(checkpoints: Checkpointer, step: int) -> None:
    """Have rank 0 wait: each that does asks the state server again and again."""
    if dist.get_rank() == 0 and not checkpoints.wait(step, COUNTS_WITHIN_S):
        raise SystemExit(f"step {step} does not count after {COUNTS_WITHIN_S:.0f} s")


class _Copy(Candidate):
    """What nothing that copies can be faster than, on a machine as busy as it is."""

    name = "a copy in the process's memory"

    def __init__(self) -> None:
        self._copies: Tree = {}

    def save(self, step: int, tree: Tree) -> Callable[[], object]:
        del step
        for name, tensor in tree.items():
            self._copies.setdefault(name, torch.empty_like(tensor)).copy_(tensor)
        return lambda: None

    def restore(self, step: int, into: Tree) -> None:
        del step
        for name, tensor in self._copies.items():
            into[name].copy_(tensor)


class _Laggard(Candidate):
    name = "laggard"

    def __init__(self) -> None:
        self._checkpoints = checkpointer()

    def save(self, step: int, tree: Tree) -> Callable[[], object]:
        self._checkpoints.save(step, tree)
        return lambda: wait_for(self._checkpoints, step)

    def restore(self, step: int, into: Tree) -> None:
        for name, tensor in self._checkpoints.restore(step).items():
            into[name].copy_(tensor)


class _File(Candidate):
    name = "torch.save with fsync, torch.load"

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"rank{dist.get_rank()}.pt"

    def save(self, step: int, tree: Tree) -> Callable[[], object]:
        del step
        with self._path.open("wb") as file:
            torch.save(tree, file)
            file.flush()
            os.fsync(file.fileno())
        return lambda: None

    def restore(self, step: int, into: Tree) -> None:
        del step
        for name, tensor in torch.load(self._path, weights_only=True).items():
            into[name].copy_(tensor)


class _MemoryFile(_File):
    name = "torch.save, torch.load in the node's memory"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._path = folder / f"laggard-benchmark-{os.getpid()}.pt"

    def save(self, step: int, tree: Tree) -> Callable[[], object]:
        del step
        torch.save(tree, self._path)
        return lambda: None

    def discard(self, step: int) -> None:
        del step
        self._path.unlink()


class _Dcp(Candidate):
    name = "dcp.save, dcp.load"

    def __init__(self, folder: Path) -> None:
        self._folder = folder / type(self).__name__

    def save(self, step: int, tree: Tree) -> Callable[[], object]:
        dcp.save(tree, checkpoint_id=self._folder / str(step))
        return lambda: None

    def restore(self, step: int, into: Tree) -> None:
        dcp.load(into, checkpoint_id=self._folder / str(step))

    def discard(self, step: int) -> None:
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(self._folder / str(step))


class _AsyncDcp(_Dcp):
    name = "dcp.async_save, dcp.load"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._group = dist.new_group()  # the thread that saves runs beside the program's own collectives

    def save(self, step: int, tree: Tree) -> Callable[[], object]:
        saved: Any = dcp.async_save(tree, checkpoint_id=self._folder / str(step), process_group=self._group)
        return lambda: saved.result(timeout=COUNTS_WITHIN_S)


class _DcpInLaggard(Candidate):
    name = "dcp.save, dcp.load with laggard as storage"

    def __init__(self) -> None:
        self._checkpoints = checkpointer()

    def save(self, step: int, tree: Tree) -> Callable[[], object]:
        dcp.save(tree, storage_writer=CheckpointWriter(self._checkpoints, step))
        return lambda: wait_for(self._checkpoints, step)

    def restore(self, step: int, into: Tree) -> None:
        dcp.load(into, storage_reader=CheckpointReader(self._checkpoints, step))


class _AsyncDcpInLaggard(_DcpInLaggard):
    name = "dcp.async_save, dcp.load with laggard as storage"

    def __init__(self) -> None:
        super().__init__()
        self._group = dist.new_group()

    def save(self, step: int, tree: Tree) -> Callable[[], object]:
        writer = CheckpointWriter(self._checkpoints, step)
        saved: Any = dcp.async_save(tree, storage_writer=writer, process_group=self._group)

        def wait() -> None:
            saved.result(timeout=COUNTS_WITHIN_S)
            wait_for(self._checkpoints, step)

        return wait


def measure_size(steps: Iterator[int], mib: int, copies: int, repeats: int) -> Measured:
    """Save tensors of a size, with copies on so many nodes, or in State itself; note what the state server does."""
    tree = tensors(mib, dist.get_rank())
    checkpoints = checkpointer(max(1, copies))
    state, key = State.current(), f"tensors/{dist.get_rank()}"
    blocks, counts = [], []
    before = server_work()
    for step in islice(steps, repeats):
        if copies:
            blocks_s, _ = timed(lambda step=step: checkpoints.save(step, tree))  # type: ignore[misc]
            more_s, _ = timed(lambda step=step: wait_for(checkpoints, step))  # type: ignore[misc]
        else:
            (blocks_s, _), more_s = timed(lambda: state.__setitem__(key, tree)), 0.0
        blocks.append(blocks_s)
        counts.append(blocks_s + more_s)
    after = server_work()
    state.discard(key)
    n_bytes, cpu_s = ((b - a) / repeats for a, b in zip(before, after, strict=True))
    found = {"mib": mib, "copies": copies, "blocks_s": blocks, "counts_s": counts}
    return found | {"server_bytes": n_bytes, "server_cpu_s": cpu_s}


def measure_digests(steps: Iterator[int], mib: int, repeats: int) -> Measured:
    """Save what all ranks hold alike with and without finding out that they do."""
    rank = dist.get_rank()
    tree, checkpoints = tensors(mib, 0), checkpointer()

    def save(step: int, among: Exchange | None) -> None:
        if among is None and rank > 0:
            checkpoints.save(step, {})
        else:
            store({"model": tree}, rank, among, (), lambda parts, digests: checkpoints.save(step, parts, digests))

    found: Measured = defaultdict(list)
    for step, _ in zip(steps, range(2 * repeats), strict=False):
        name, among = ("with", exchange) if step % 2 else ("without", None)
        all_began_s, began_s = processor_s(), time.process_time()
        blocks_s, _ = timed(lambda step=step, among=among: save(step, among))  # type: ignore[misc]
        found[f"{name}_s"].append(blocks_s)
        found[f"{name}_first_s"].append(time.process_time() - began_s)
        more_s, _ = timed(lambda step=step: wait_for(checkpoints, step))  # type: ignore[misc]
        found[f"{name}_counts_s"].append(blocks_s + more_s)
        found[f"{name}_all_s"].append(dist.get_world_size() * (processor_s() - all_began_s))
    return found


def server_work() -> tuple[float, float]:
    """Return the bytes that the state server has received and sent, and its processor time in seconds."""
    dist.barrier()
    info: Any = current_session().client.info()
    dist.barrier()
    return (
        info["total_net_input_bytes"] + info["total_net_output_bytes"],
        info["used_cpu_sys"] + info["used_cpu_user"],
    )


if __name__ == "__main__":
    main()

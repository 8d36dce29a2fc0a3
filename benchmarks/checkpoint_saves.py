"""A rank that saves a few times, as a program does that has just begun.

Rank 0 writes how long each save blocked it, and the processor time of its own.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.checkpoint_ranks import COUNTS_WITHIN_S, tensors, timed
from laggard import Checkpointer, State

# What the devices need between two saves.
INTERVAL_S = 2.0


def main() -> None:
    """Measure the saves, each beside a copy of the same tensors."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, required=True)
    parser.add_argument("--saves", type=int, required=True)
    parser.add_argument("--announced", action="store_true")
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    tree = tensors(options.mib, dist.get_rank())
    copied = {name: tensor.clone() for name, tensor in tree.items()}
    checkpoints = Checkpointer(State.current(), rank=dist.get_rank(), ranks=dist.get_world_size())
    if options.announced:
        checkpoints.prepare(options.mib << 20)
    saves, processor, copies = [], [], []
    for step in range(options.saves):
        time.sleep(INTERVAL_S)
        took_s, processor_s = timed(lambda step=step: processor_time(lambda: checkpoints.save(step, tree)))  # type: ignore[misc]
        saves.append(took_s)
        processor.append(processor_s)
        if dist.get_rank() == 0 and not checkpoints.wait(step, COUNTS_WITHIN_S):
            raise SystemExit(f"step {step} does not count after {COUNTS_WITHIN_S:.0f} s")
        copies.append(timed(lambda: [copied[name].copy_(tensor) for name, tensor in tree.items()])[0])
    if dist.get_rank() == 0:
        options.result.write_text(json.dumps({"saves": saves, "processor": processor, "copies": copies}))
    dist.destroy_process_group()


def processor_time(work: Callable[[], None]) -> float:
    """Return the processor time of this process in seconds: longer if memory had to be cleared, however busy it is."""
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


if __name__ == "__main__":
    main()

"""The job that is attacked: every node computes and commits, step by step, and its steps are counted in a file."""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import sys
from pathlib import Path

import numpy as np

from laggard import Checkpointer, State

__all__ = ["COUNTER", "END", "main"]

COUNTER = struct.Struct("=q")
END = "end"
"""The program ends once there is a file of this name in its folder."""
BLOCK = bytes(1 << 20)
HASHES = 4
CHECKPOINT_STEPS = 500
# Of a node, in the nodes' memory: larger than what State has itself.
SHARD_BYTES = 2 << 20


def main(folder: Path) -> None:
    """Work until the end, without a pause."""
    rank, ranks = int(os.environ["NODE_RANK"]), int(os.environ["NNODES"])
    state = State.current()
    checkpoints = Checkpointer(state, rank=rank, ranks=ranks)
    own = np.zeros(SHARD_BYTES, np.uint8)
    with (folder / f"steps{rank}").open("r+b") as file:
        counter = mmap.mmap(file.fileno(), COUNTER.size)
    step = 0
    while not (folder / END).exists():
        for _ in range(HASHES):
            hashlib.sha256(BLOCK).digest()
        state[f"step {rank}"] = step
        if step % CHECKPOINT_STEPS == 0:
            checkpoints.save(step, {"own": own})
        step += 1
        counter[:] = COUNTER.pack(step)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Data-parallel training with PyTorch that survives the loss of a node: torchrun on every node, checkpoints in State.

    laggard --local-nodes=3 --nodes=2 --resilient --per-node torchrun examples/torchrun_ddp.py --lose-node-at=55

Every node runs its own torchrun; the workers communicate over gloo. Every ten steps rank 0 saves the model, optimizer
and losses in State. At step 55 the last node is lost: laggard puts the reserve node in its place, and the next launch
resumes from the newest checkpoint. Each step's data is derived from its number, so the losses match those of an
undisturbed run to the last bit.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from laggard import Checkpointer, Job, State

SEED = 1
FEATURES = 16
BATCH = 32


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Data-parallel training that survives its nodes.")
    parser.add_argument("--steps", type=int, default=200, help="steps in all (default: %(default)s)")
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS", help="(default: %(default)s)")
    parser.add_argument(
        "--step-time", type=float, default=0.05, metavar="SECONDS", help="minimum time of a step (default: %(default)s)"
    )
    parser.add_argument("--lose-node-at", type=int, metavar="STEP", help="lose the last node there, in launch 0")
    return parser.parse_args(arguments)


def batch_of(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Return one rank's inputs and targets for a step: the same in every launch."""
    generator = torch.Generator().manual_seed(SEED + 1_000_003 * step + rank)
    inputs = torch.randn(BATCH, FEATURES, generator=generator)
    return inputs, inputs.sin().sum(dim=1, keepdim=True)


class Training:
    """Model, optimizer and the losses so far, kept in State.

    Parameters
    ----------
    checkpoints
        Where they are kept.
    """

    def __init__(self, checkpoints: Checkpointer) -> None:
        torch.manual_seed(SEED)
        self._checkpoints = checkpoints
        self._network = nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 1))
        self._optimizer = torch.optim.SGD(self._network.parameters(), lr=0.05, momentum=0.9)
        self.losses: list[float] = []
        if (step := checkpoints.latest()) is not None:
            self._load(checkpoints.restore(step, rank=0))
        self._model = DistributedDataParallel(self._network)  # every rank now has what rank 0 has

    def step(self, rank: int, ranks: int) -> None:
        """Run the next step; the loss is the mean over all ranks."""
        inputs, targets = batch_of(len(self.losses), rank)
        self._optimizer.zero_grad()
        loss = nn.functional.mse_loss(self._model(inputs), targets)
        loss.backward()
        self._optimizer.step()
        total = loss.detach()
        dist.all_reduce(total)
        self.losses.append(total.item() / ranks)

    def save(self) -> None:
        """Save everything in State, whole or not at all."""
        self._checkpoints.save(
            len(self.losses),
            {
                "network": self._network.state_dict(),
                "optimizer": self._optimizer.state_dict(),
                "losses": self.losses,
            },
        )

    def _load(self, saved: Any) -> None:
        self.losses = saved["losses"]
        self._network.load_state_dict(saved["network"])
        self._optimizer.load_state_dict(saved["optimizer"])


def lose_this_node() -> None:
    """Lose this node along with its agent, as in a crash of the whole machine."""
    agent = next(p for p in psutil.Process().parents() if "laggard.resilience.agent.agent" in p.cmdline())
    agent.kill()
    signal.pause()  # this process is done; laggard kills what the agent has left


def main() -> int:
    """Run one worker of one launch."""
    arguments = parse_arguments()
    job = Job.current()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    training = Training(Checkpointer(State.current()))
    if rank == 0:
        hosts = ", ".join(node.hostname for node in job.nodes)
        print(f"launch {job.launch}: {ranks} ranks on {hosts}, from step {len(training.losses)} of {arguments.steps}")
    while len(training.losses) < arguments.steps:
        begun_s = time.monotonic()
        if len(training.losses) == arguments.lose_node_at and not job.restarted and rank == ranks - 1:
            lose_this_node()
        training.step(rank, ranks)
        if rank == 0 and (len(training.losses) % arguments.save_every == 0 or len(training.losses) == arguments.steps):
            training.save()
            print(f"step {len(training.losses)}: loss {training.losses[-1]:.6f}")
        time.sleep(max(0.0, begun_s + arguments.step_time - time.monotonic()))
    if rank == 0:
        print(f"final loss {training.losses[-1]!r} after {len(training.losses)} steps")
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

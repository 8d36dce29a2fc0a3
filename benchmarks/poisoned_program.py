"""The program of the benchmark ``poisoned``: trains a model with PyTorch, saves, and has what its script says.

The script is the job (:class:`benchmarks.poisoned_jobs.Job`) as JSON, in the folder where the program runs.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import psutil
import torch
import torch.distributed as dist

from benchmarks.blame_program import fail
from benchmarks.poisoned_jobs import SAVE_EVERY, spoil_bytes
from laggard import Checkpointer, Job, State
from laggard.kvstore.client.connection import Endpoint, current_session
from laggard.kvstore.client.environment import ENDPOINT_FILE

STEP_S = 0.05
SHARD_SERVER = "laggard.kvstore.checkpoints.server"
AGENT = "laggard.resilience.agent"
WIDTHS = {"State": 16, "a key of State": 16, "memory": 512, "directory": 512}  # shards of 5 kB and of 2 MB
RANK, N_RANKS = int(os.environ["NODE_RANK"]), int(os.environ["NNODES"])
CHECKPOINT_DEADLINE_S = 30.0


class Training:
    """A model, its optimizer, and the steps that they have made."""

    def __init__(self, width: int) -> None:
        torch.manual_seed(1)
        self.width, self.step = width, 0
        self.last = torch.nn.Linear(width, 1)
        self.model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh(), self.last)
        self.momentum = {name: torch.zeros_like(each) for name, each in self.model.named_parameters()}

    def tree(self) -> dict[str, Any]:
        """Return all of it as values."""
        return {"step": self.step, "model": self.model.state_dict(), "momentum": self.momentum}

    def load(self, tree: dict[str, Any]) -> None:
        """Take over what was saved."""
        self.step = tree["step"]
        self.model.load_state_dict(tree["model"])
        self.momentum = tree["momentum"]

    def advance(self) -> None:
        """Make one step on all ranks."""
        inputs = torch.randn(8, self.width, generator=torch.Generator().manual_seed(self.step))
        loss = (self.model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        if not torch.isfinite(loss):
            raise FloatingPointError("the loss is not finite")
        self.model.zero_grad()
        loss.backward()
        with torch.no_grad():  # an optimizer of PyTorch's would take another second to load
            for name, each in self.model.named_parameters():
                if N_RANKS > 1:
                    dist.all_reduce(each.grad)
                self.momentum[name].mul_(0.9).add_(each.grad)
                each.sub_(self.momentum[name], alpha=0.001)
        self.step += 1

    def spoil(self, how: str) -> None:
        """Have wrong values before they are saved."""
        weights = self.last.weight.data
        if how == "NaN in the weights":
            weights[0, 0] = torch.nan
        elif how == "a bit flipped before the save":
            weights.view(torch.int32)[0, 0] ^= 1 << 30  # of the exponent
        elif how == "optimizer state of another shape":
            self.momentum["2.weight"] = self.momentum["2.weight"][:, 1:].clone()


def spoil_value(key: str, how: str, chance: random.Random) -> None:
    """Damage a value of State in the server."""
    session = current_session()
    index = session.endpoint.key("state", "index")
    stored = cast("bytes", session.client.hget(index, key))
    session.client.hset(index, key, spoil_bytes(stored, how, chance))


def spoil_memory(step: int, how: str, chance: random.Random) -> None:
    """Damage the shards of a step in the memory of all nodes, or of one."""
    copies = list(_copies(f'"step":{step}'.encode()))
    for path, size in [chance.choice(copies)] if how == "bits flipped in one copy" else copies:
        with path.open("r+b") as file:
            spoiled = spoil_bytes(file.read(size), how, chance)
            file.seek(0)
            file.write(spoiled)


def _copies(mark: bytes) -> Iterator[tuple[Path, int]]:
    own = current_session().endpoint.port
    for process in psutil.process_iter(["cmdline"]):
        if SHARD_SERVER not in (process.info["cmdline"] or ()):
            continue
        if Endpoint.load(Path(process.environ()[ENDPOINT_FILE])).port != own:
            continue
        for path in Path(f"/proc/{process.pid}/fd").iterdir():
            if path.is_file() and path.stat().st_size > 1 << 20 and mark in path.read_bytes()[: 1 << 14]:
                yield path, WIDTHS["memory"] ** 2 * 8  # weights and momentum


def lose_node() -> None:
    """Kill this node's agent, as the loss of the node does; on the primary, this rank alone."""
    agents = [each for each in psutil.Process().parents() if AGENT in " ".join(each.cmdline())]
    primary = os.environ["LAGGARD_NODE"] == "node1"
    (psutil.Process() if primary or not agents else agents[0]).kill()
    signal.pause()


class Saves:
    """Where the training is saved."""

    def __init__(self, script: dict[str, Any]) -> None:
        self.state, self._where = State.current(), script["where"]
        self._checkpoints = Checkpointer(self.state, rank=RANK, ranks=N_RANKS, keep=3)

    def newest(self) -> dict[str, Any] | None:
        """Return what was saved last."""
        if self._where == "a key of State":
            return self.state.get("training")
        step = self._checkpoints.latest()
        return None if step is None else self._checkpoints.restore(step)

    def save(self, training: Training) -> None:
        """Save."""
        if self._where != "a key of State":
            self._checkpoints.save(training.step, training.tree())
        elif RANK == 0:
            self.state["training"] = training.tree()

    def spoil(self, step: int, how: str, chance: random.Random) -> None:
        """Damage what was saved last, once it counts."""
        if self._where == "a key of State":
            spoil_value("training", how, chance)
            return
        if not self._checkpoints.wait(step, CHECKPOINT_DEADLINE_S):
            raise TimeoutError("the checkpoint does not count")
        if self._where == "State":
            spoil_value(f"checkpoint/0/{step}/{chance.randrange(N_RANKS)}-{N_RANKS}", how, chance)
        elif self._where == "memory":
            spoil_memory(step, how, chance)


def main() -> None:
    """Run one rank of one launch."""
    script = json.loads(Path("script.json").read_text())
    job, chance = Job.current(), random.Random(script["number"])
    failures = dict(script["failures"]).get(job.launch)
    if failures and failures["at"] < 0:
        meet(failures)
    if N_RANKS > 1:
        dist.init_process_group("gloo", rank=RANK, world_size=N_RANKS)
    training, saves = Training(WIDTHS[script["where"]]), Saves(script)
    if (tree := saves.newest()) is not None:
        training.load(tree)
    print(f"launch {job.launch} goes on from {training.step}", flush=True)
    for age in range(script["steps"] - training.step):
        if failures and failures["at"] == age:
            meet(failures)
        training.advance()
        time.sleep(STEP_S)
        if RANK == 0:
            job.progress(training.step)
        if training.step % SAVE_EVERY:
            continue
        is_poisoned = bool(script["how"]) and job.launch == 0 and training.step == script["step"]
        if is_poisoned and script["before"]:
            training.spoil(script["how"])
        saves.save(training)
        if is_poisoned and not script["before"] and RANK == 0:
            saves.spoil(training.step, script["how"], chance)
        if is_poisoned and script["then"] and RANK == 0:
            fail(script["then"])


def meet(failure: dict[str, Any]) -> None:
    """Fail, if it is this rank's."""
    if failure["rank"] % N_RANKS != RANK:
        return
    if failure["words"] == "node lost":
        lose_node()
    fail(failure["words"])


if __name__ == "__main__":
    main()

"""A job over ssh whose primary is lost again and again, and what must be true of its commits and checkpoints.

``python -m tests.clusters.lost_primaries 50`` loses fifty; it needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import statistics
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clusters.jobs import ClusterJob
from tests.clusters.machines import Machine, wait_for
from tests.clusters.site import DISK, NODES, Site
from tests.clusters.sshd import ssh_daemons

__all__ = ["Loss", "LostPrimaries", "Outcome", "main"]

HOSTS = NODES[:3]
KEPT = f"{DISK}/kept"  # on a disk that outlives its machine
AIM_S = 60  # from a loss until the program counts again
OPTIONS = (
    f"--hostlist={','.join(HOSTS)}",
    "--nodes=2",
    "--resilient",
    "--per-node",
    "--state-copy",
    f"--state-dir={KEPT}/state",
    "--quarantine=1",  # a node that was lost is taken back at once
)
# Rank 0 counts in State.  It notes what its launch has found there and what was acknowledged, in files that outlive
# every machine.  Every other checkpoint is small enough for State, the others are in the memory of the nodes.
PROGRAM = """
    import json, os, time
    from pathlib import Path
    import numpy as np
    from laggard import Checkpointer, Job, State

    folder, launch, state = Path(__file__).parent, Job.current().launch, State.current()
    rank, ranks = int(os.environ["NODE_RANK"]), int(os.environ["NNODES"])
    checkpoints = Checkpointer(state, rank=rank, ranks=ranks)
    step = checkpoints.latest() or 0
    if step:
        trees = [checkpoints.restore(step, rank=each) for each in range(checkpoints.ranks_of(step))]
        assert all((tree["weights"] == 10 * step + each).all() for each, tree in enumerate(trees)), "torn"
        assert len({tree["launch"] for tree in trees}) == 1, "mixed"
    if rank == 0:
        (folder / f"found{launch}").write_text(json.dumps([state.get("counts", []), step]))

    def note(file, *values):
        with (folder / file).open("a") as lines:
            lines.write(json.dumps([launch, *values]) + "\\n")

    def count():
        with state.transaction() as transaction:
            number = transaction.get("next", 0)
            transaction["next"] = number + 1
            transaction.append("counts", number)
        note("acknowledged", number)

    def goes_on():
        return not (folder / "enough").exists()

    while goes_on():
        for _ in range(25 if rank == 0 else 0):
            count()
            time.sleep(0.01)
        step += 1
        checkpoints.save(step, {"launch": launch, "weights": np.full(10 if step % 2 else 300_000, 10 * step + rank)})
        while goes_on():
            if checkpoints.wait(step, 1):
                if rank == 0:
                    note("counted", step)
                break
    if rank == 0:
        (folder / "last").write_text(json.dumps(state["counts"]))
"""


@dataclass(frozen=True)
class Loss:
    """A primary that was lost.

    Attributes
    ----------
    how
        ``cut`` or ``killed``.
    primary, taker
        The node, and the one that took over.
    gap_s
        The time from the loss to the first commit after it.
    """

    how: str
    primary: str
    taker: str
    gap_s: float

    def __str__(self) -> str:
        return f"{self.primary} {self.how}, {self.taker} takes over: commits again after {self.gap_s:.1f} s"


@dataclass(frozen=True)
class Outcome:
    """What became of the acknowledged commits.

    Attributes
    ----------
    acknowledged
        How many there were.
    missing
        How many of them State does not have.
    twice
        How many counts State has twice, or were acknowledged twice.
    late
        How many were acknowledged by a primary that another had replaced.
    """

    acknowledged: int
    missing: int
    twice: int
    late: int

    @classmethod
    def of(cls, counts: Sequence[int], acknowledged: Sequence[tuple[int, int]]) -> Outcome:
        """Compare the counts in State with the launches and numbers of the acknowledged commits, in their order."""
        numbers = [number for _, number in acknowledged]
        launches = [launch for launch, _ in acknowledged]
        twice = [len(values) - len(set(values)) for values in (counts, numbers)]
        late = sum(launch < max(launches[:at], default=0) for at, launch in enumerate(launches))
        return cls(len(numbers), len(set(numbers).difference(counts)), sum(twice), late)

    @property
    def is_well(self) -> bool:
        """Whether all are there, none twice, and none late."""
        return not (self.missing or self.twice or self.late)

    def __str__(self) -> str:
        return f"{self.acknowledged} acknowledged commits: {self.missing} missing, {self.twice} twice, {self.late} late"


def summary(losses: Sequence[Loss], outcome: Outcome) -> str:
    """Return what happened, for the documents."""
    how = Counter(loss.how for loss in losses)
    gaps_s = [loss.gap_s for loss in losses]
    return (
        f"{len(losses)} primaries lost: {how['cut']} cut, {how['killed']} killed; {outcome}; "
        f"commits again after {statistics.median(gaps_s):.1f} s (median), {max(gaps_s):.1f} s (worst), "
        f"{sum(gap_s > AIM_S for gap_s in gaps_s)} times after more than {AIM_S} s"
    )


class LostPrimaries:
    """Three nodes of a site, each of which loses power or network while it is the primary; use it in a ``with``.

    Power or network comes back once another node has taken over.  A disk outlives its machine.

    Parameters
    ----------
    folder
        For everything.
    seed
        Of what is lost when, and of who takes over.

    Attributes
    ----------
    losses : list of Loss
        What was done.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.losses: list[Loss] = []
        self._folder = folder
        self._chance = random.Random(seed)
        self._jobs: list[ClusterJob] = []
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> LostPrimaries:
        with self._cleanup as cleanup:
            self._folder.chmod(0o755)
            self._site = Site(self._folder)
            self._network = self._site.network
            cleanup.callback(self._site.shut_down)
            self._work = self._site.folder_of_user()
            (self._work / "train.py").write_text(textwrap.dedent(PROGRAM))
            self._start_sshd = cleanup.enter_context(ssh_daemons(self._site))
            cleanup.callback(self._end_jobs)
            for name in HOSTS:
                self._mount_disk(self._network.nodes[name])
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def lose(self, count: int, longest_s: float = math.inf) -> Outcome:
        """Lose this many primaries, or as many as begin within so many seconds; return what became of the commits.

        Raises
        ------
        AssertionError
            If an acknowledged commit was lost, doubled or out of order, or a primary that was lost acknowledged
            anything after another had taken over; if a checkpoint was torn, or one in State was lost; or if the job
            does not go on.
        """
        until_s = time.monotonic() + longest_s
        primary = HOSTS[0]
        self._start_on(primary)
        while len(self.losses) < count and time.monotonic() < until_s:
            primary = self._lose(primary)
        (self._work / "enough").touch()
        assert self._jobs[-1].finish() == 0, self._said()
        return self._expect_all_there(self._read("last"), self._acknowledged())

    def _lose(self, primary: str) -> str:
        """Lose the primary; return which node has taken over."""
        job = self._jobs[-1]
        job.wait_for("has a copy")
        enough = len(self._acknowledged()) + 20
        self._wait_for(lambda: len(self._acknowledged()) >= enough, "20 more commits")
        time.sleep(self._chance.uniform(0, 1))  # the moment of the fault, not a wait for an event
        assert "state-copy ended" not in job.output, self._said()
        how = self._chance.choice(["killed", "cut"])
        taker = self._chance.choice([name for name in HOSTS if name != primary])
        if how == "killed":
            self._network.nodes[primary].crash()
        else:
            self._network.cut(primary)
        began_s = time.monotonic()
        acknowledged, counted = self._acknowledged(), self._noted("counted")
        self._start_on(taker)
        self._wait_for(lambda: self._acknowledged()[-1][0] > acknowledged[-1][0], "a commit of a new launch")
        self.losses.append(Loss(how, primary, taker, time.monotonic() - began_s))
        sys.stdout.write(f"{len(self.losses)}: {self.losses[-1]}\n")
        sys.stdout.flush()
        self._jobs[-1].wait_for(f"{primary} has it no more: taken over from the copy on")
        counts, step = self._read(f"found{self._acknowledged()[-1][0]}")
        self._expect_all_there(counts, acknowledged)
        small = max((step for _, step in counted if step % 2), default=0)
        assert step >= small, f"the program went on from step {step}, not {small}\n{self._said()}"
        self._restore(primary)
        assert job.finish() != 0, self._said()
        return taker

    def _restore(self, name: str) -> None:
        if self._network.nodes[name].has_crashed():
            self._network.replace(name)
            self._mount_disk(self._network.nodes[name])
            self._start_sshd(self._network.nodes[name])
        self._network.mend(name)

    def _mount_disk(self, node: Machine) -> None:
        disk = self._folder / f"disk-{node.name}"
        disk.mkdir(exist_ok=True)
        self._site.give(disk)
        node.run("mkdir", KEPT)
        node.run("mount", "--bind", str(disk), KEPT)

    def _start_on(self, name: str) -> None:
        command, output = ("laggard", *OPTIONS, "train.py"), f"job{len(self._jobs)}"
        self._jobs.append(ClusterJob(self._site, self._network.nodes[name], {}, *command, output=output))

    def _end_jobs(self) -> None:
        for job in self._jobs:
            job.end()

    def _wait_for(self, done: Callable[[], bool], what: str) -> None:
        def look() -> bool:
            assert self._jobs[-1].process.poll() is None, self._said()
            return done()

        wait_for(look, what, 120)

    def _acknowledged(self) -> list[tuple[int, int]]:
        """Return the launch and the number of each acknowledged commit, in the order in which they were noted."""
        return self._noted("acknowledged")

    def _noted(self, name: str) -> list[tuple[int, int]]:
        file = self._work / name
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [tuple(json.loads(line)) for line in lines if line.endswith("\n")]

    def _read(self, name: str) -> Any:
        return json.loads((self._work / name).read_text())

    def _expect_all_there(self, counts: list[int], acknowledged: list[tuple[int, int]]) -> Outcome:
        outcome = Outcome.of(counts, acknowledged)
        assert outcome.is_well, f"{outcome}\n{counts}\n{acknowledged}\n{self._said()}"
        assert counts == list(range(len(counts))), f"out of order: {counts}\n{self._said()}"
        assert acknowledged == sorted(acknowledged), f"out of order: {acknowledged}\n{self._said()}"
        return outcome

    def _said(self) -> str:
        return "\n\n".join([*map(str, self.losses[-3:]), *(job.output for job in self._jobs[-2:])])


def main(arguments: Sequence[str] | None = None) -> None:
    """Lose primaries, and say what became of the commits."""
    parser = argparse.ArgumentParser(prog="python -m tests.clusters.lost_primaries", description=__doc__)
    parser.add_argument("count", type=int, help="how many primaries are lost")
    parser.add_argument("--seed", type=int, default=1, help="of what is lost when (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="lose none after this time")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="lp-", dir="/tmp") as name,
        LostPrimaries(Path(name), options.seed) as primaries,
    ):
        outcome = primaries.lose(options.count, options.seconds)
    print(summary(primaries.losses, outcome))


if __name__ == "__main__":
    main()

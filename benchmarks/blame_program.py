"""The program of the benchmark ``blame``: steps in lock-step over plain sockets, saves, and fails as its script says.

The script is the job (:class:`benchmarks.blame_jobs.Job`) as JSON, in the folder where the program runs.
"""

from __future__ import annotations

import builtins
import contextlib
import faulthandler
import json
import math
import os
import random
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from laggard import Checkpointer, Job, State

STEP_S = 0.1
SAVE_EVERY = 4
JOIN_DEADLINE_S = 60.0
RANK = int(os.environ.get("RANK") or os.environ["NODE_RANK"])
N_RANKS = int(os.environ.get("WORLD_SIZE") or os.environ["NNODES"])
NODE = os.environ["LAGGARD_NODE"]


def fail(words: str) -> None:
    """End as these words say: by an error with a message, an exit code or a signal."""
    name, _, text = words.partition(": ")
    if name == "exit":
        os._exit(int(text))
    if name == "signal":
        faulthandler.disable()
        signal.raise_signal(signal.Signals[text])
    raise getattr(builtins, name)(text)


class Peers:
    """All ranks meet at rank 0 after each step."""

    def __init__(self, when_lost: str) -> None:
        self._when_lost = when_lost
        where = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        if RANK == 0:
            with socket.create_server(where) as server:
                server.settimeout(JOIN_DEADLINE_S)
                self._others = [server.accept()[0] for _ in range(N_RANKS - 1)]
        else:
            self._others = [self._join(where)]

    def _join(self, where: tuple[str, int]) -> socket.socket:
        until_s = time.monotonic() + JOIN_DEADLINE_S
        while True:
            try:
                return socket.create_connection(where)
            except ConnectionRefusedError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.02)

    def meet(self) -> None:
        """Wait until all ranks are here."""
        try:
            for hears_first in (RANK == 0, RANK != 0):
                for other in self._others:
                    if not hears_first:
                        other.sendall(b"-")
                    elif not other.recv(1):
                        raise ConnectionError("a peer has hung up")
        except OSError:
            if self._when_lost == "quiet":
                sys.exit(1)
            if self._when_lost == "wait":
                signal.pause()
            raise


class Script:
    """What is to go wrong."""

    def __init__(self, job: Job, wanted: dict[str, Any]) -> None:
        self._job, self._wanted = job, wanted
        rank = wanted["rank"]
        self._is_mine = rank is None or rank % N_RANKS == RANK
        self._is_bad = NODE in wanted["bad"]
        self._service: socket.socket | None = None

    def before_first_step(self, *, resumed: bool) -> None:
        """Fail if it is due as the program starts."""
        cause, age = self._wanted["cause"], self._wanted["age"]
        if (cause == "program at start" and self._is_mine) or (cause == "program at each restore" and resumed):
            fail(self._wanted["words"])
        if cause == "node always" and self._is_bad and age == 0:
            fail(self._wanted["words"])

    def at(self, step: int, age: int) -> None:
        """Fail if it is due at this step; ``age`` counts those of this launch."""
        cause = self._wanted["cause"]
        is_due = {
            "program at a step": self._is_mine and step == self._wanted["step"],
            "out of memory": self._is_mine and step == self._wanted["step"],
            "program at random": self._draw(step) and self._drawn_rank(step) == RANK,
            "program tied to a rank": self._is_mine and self._draw(step),
            "memory grows": self._is_mine and age == self._wanted["age"],
            "node always": self._is_bad and age == self._wanted["age"],
            "node at times": self._is_bad and self._draw(step),
            "link": self._is_bad and self._is_the_links_end(step) and self._draw(step),
        }
        if is_due.get(cause, False) or (self._is_once() and self._is_mine and step == self._wanted["step"]):
            fail(self._wanted["words"])

    def use_service(self) -> None:
        """Need a service; the error names it, or a library hides it behind words of its own."""
        if not (port := self._wanted["port"]):
            return
        if not (lost := self._lost_service(port)):
            return
        if self._wanted["words"]:
            fail(self._wanted["words"])
        raise ConnectionError(f"cannot connect to 127.0.0.1:{port}: {lost}")

    def _lost_service(self, port: int) -> str:
        """Return why the service is not there; empty if it is."""
        try:
            if self._service is None:
                self._service = socket.create_connection(("127.0.0.1", port))
                self._service.settimeout(0.0)
            with contextlib.suppress(BlockingIOError):
                if not self._service.recv(1):
                    return "it has hung up"
            if not self._wanted["stays_connected"]:
                self._service.close()
                self._service = None
        except OSError as error:
            return str(error)
        return ""

    def _is_once(self) -> bool:
        """Return whether there is one failure in the whole job, and it has not been."""
        return self._wanted["cause"] in ("one-off", "program at each restore", "poisoned save") and not self._job.launch

    def _chance(self, *key: object) -> random.Random:
        return random.Random(repr((self._wanted["number"], self._job.launch, *key)))

    def _draw(self, step: int) -> bool:
        return self._chance(step).random() < float(self._wanted["chance"])

    def _drawn_rank(self, step: int) -> int:
        return self._chance(step, "rank").randrange(N_RANKS)

    def _is_the_links_end(self, step: int) -> bool:
        """Return whether the link between the two bad nodes is in use, and this is the end that notices first."""
        ends = sorted(self._wanted["bad"])
        used = {node.hostname for node in self._job.nodes}
        return used.issuperset(ends) and self._chance(step, "end").choice(ends) == NODE


def main() -> None:
    """Run one rank of one launch."""
    wanted = json.loads(Path("script.json").read_text())
    job, state = Job.current(), State.current()
    script = Script(job, wanted)
    checkpoints = Checkpointer(state, keep=4)
    weights, step = np.zeros(8), 0
    if wanted["checkpointer"]:
        if (saved := checkpoints.latest()) is not None:
            weights, step = checkpoints.restore(saved), saved
    else:
        step = state.get("step", 0)
    script.before_first_step(resumed=step > 0)
    script.use_service()
    peers = Peers(wanted["peers"])
    Path(f"pid{RANK}").write_text(str(os.getpid()))
    for age in range(1, wanted["steps"] - step + 1):
        if not np.isfinite(weights).all():
            raise FloatingPointError("the loss is not finite")
        script.at(step, age)
        script.use_service()
        time.sleep(STEP_S)
        peers.meet()
        step, weights = step + 1, weights + 1
        if RANK == 0:
            job.progress(step)
            if step % SAVE_EVERY == 0 and wanted["checkpointer"]:
                poison = wanted["cause"] == "poisoned save" and not job.launch and step > wanted["step"] - SAVE_EVERY
                checkpoints.save(step, weights * math.nan if poison else weights)
            elif step % SAVE_EVERY == 0:
                state["step"] = step


if __name__ == "__main__":
    main()

"""What runs on the simulated nodes beside the product: the user's program, and what the agents start."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from laggard.kvstore.client.environment import LAUNCH, NODE
from laggard.kvstore.control import Control
from laggard.kvstore.errors import FencedError, KVStoreError
from laggard.kvstore.state.mapping import State
from laggard.records import plain
from laggard.resilience.decision.evidence import NodeCheck
from laggard.resilience.decision.hang import RankLife
from laggard.resilience.wire import encode
from laggard.resilience.wire.checks import NodeChecked, Stacks
from tests.simulation.processes import Process
from tests.simulation.state_server import ENDPOINT, Client, Disk

__all__ = ["BUG", "ECC", "Habits", "UserProgram", "answer", "watch_ranks"]

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
BUG = (
    "Traceback (most recent call last):",
    '  File "train.py", line 7, in <module>',
    "    step(batch)",
    "KeyError: 'labels'",
)


@dataclass(frozen=True)
class Habits:
    """How the user's program behaves.

    Attributes
    ----------
    steps
        How many commits each rank makes in all.
    step_s
        How long each takes.
    sick_host
        Where it fails after a few steps, each time; empty: nowhere.
    sick_exit
        How it fails there: its exit code, or minus a signal number.
    in_vain
        Whether it fails at its start, each time, on one node or on all.
    usage_error
        Whether it ends with 2 at once.
    chance_of_bug
        Of a failure at any step.
    chance_of_hang
        Of hanging for ever at any step.
    saving_s
        How long it takes to save when it is asked to stop; None: it does not listen.
    leaves
        Whether it leaves a process behind that writes on.
    asks
        Chance at any step of asking for a relaunch without a random host (or on the same ones).
    """

    steps: int = 6
    step_s: float = 0.5
    sick_host: str = ""
    sick_exit: int = -6
    in_vain: bool = False
    usage_error: bool = False
    chance_of_bug: float = 0.0
    chance_of_hang: float = 0.0
    saving_s: float | None = 0.1
    leaves: bool = False
    asks: float = 0.0


class UserProgram:
    """Starts the ranks of the user's program; each counts in State.

    Parameters
    ----------
    disk
        The state server.
    habits
        How it behaves.
    hosts
        All nodes.
    acknowledged
        Told of each commit that is answered.
    """

    def __init__(
        self,
        disk: Disk,
        habits: Habits,
        hosts: tuple[str, ...],
        acknowledged: Callable[[str], None],
    ) -> None:
        self._disk = disk
        self._habits = habits
        self._hosts = hosts
        self._acknowledged = acknowledged

    def start(self, process: Process) -> None:
        """Run one rank."""
        process.run(lambda: self._run(process))

    def _state(self, process: Process) -> State:
        client: Any = Client(self._disk, 5.0)
        return State(client, ENDPOINT, int(process.environment[LAUNCH]), retry_for_s=30.0)

    def _run(self, process: Process) -> int:
        habits, chance = self._habits, process.scheduler.chance
        rank = int(process.environment.get("NODE_RANK", "0"))
        asked: list[float] = []
        for each in (signal.SIGINT, signal.SIGTERM):
            if habits.saving_s is not None:
                process.handlers[each] = lambda *_: asked.append(process.scheduler.now_s)
            else:
                process.handlers[each] = lambda *_: None
        if habits.usage_error:
            return _fail(process, 2, "train.py: error: unrecognized arguments: --lr0")
        if habits.in_vain:
            _sleep(process, habits.step_s)
            return _fail(process, 1, "RuntimeError: cannot reach the license server", "OSError: nobody answers")
        if habits.leaves:
            self._leave(process, rank)
        state = self._state(process)
        try:
            for step in range(self._done(rank), habits.steps):
                _sleep(process, habits.step_s * chance.uniform(0.5, 1.0), asked)
                if asked:
                    _sleep(process, habits.saving_s or 0.0)
                    self._commit(process, state, f"saved:{rank}:{process.pid}")
                    return 0 if chance.random() < 0.5 else 143
                if process.host.name == habits.sick_host and step % 2:
                    return _fail(process, habits.sick_exit, *([ECC] if habits.sick_exit > 0 else []))
                if chance.random() < habits.chance_of_bug:
                    return _fail(process, 1, *BUG)
                if chance.random() < habits.chance_of_hang:
                    _sleep(process, 1e9)
                if chance.random() < habits.asks:
                    self._ask(process)
                self._commit(process, state, f"step:{rank}:{step}")
        except (FencedError, KVStoreError) as error:
            return _fail(process, 1, f"{type(error).__name__}: {error}")
        return 0

    def _done(self, rank: int) -> int:
        return sum(key.startswith(f"step:{rank}:") for key in self._disk.counters())

    def _commit(self, process: Process, state: State, key: str) -> None:
        state.increment(key)
        process.active_s = process.scheduler.now_s
        self._acknowledged(key)

    def _ask(self, process: Process) -> None:
        chance = process.scheduler.chance
        client: Any = Client(self._disk, 5.0)
        control = Control(client, ENDPOINT, int(process.environment[LAUNCH]))
        control.ask("reboot", chance.choice([[], [chance.choice(self._hosts)], [self._hosts[0]]]))

    def _leave(self, process: Process, rank: int) -> None:
        """Leave a process behind, which does not end with us and goes on writing."""
        left = Process(process.host, process, "left", process.environment)
        left.tag, left.command = "left", process.command

        def write() -> int:
            state = self._state(left)
            number = 0
            while True:
                _sleep(left, 0.7)
                number += 1
                try:
                    self._commit(left, state, f"left:{rank}:{left.pid}:{number}")
                except KVStoreError:
                    _sleep(left, 1e9)  # a process that does not even end when it may not write

        left.run(write)


def _sleep(process: Process, seconds: float, asked: list[float] | None = None) -> None:
    until_s = process.scheduler.now_s + seconds
    while process.scheduler.now_s < until_s and not asked:
        process.scheduler.block(until_s - process.scheduler.now_s)


def _fail(process: Process, code: int, *lines: str) -> int:
    if process.stderr is not None:
        for line in lines:
            process.stderr.write(f"{line}\n")
    return code


def watch_ranks(process: Process, disk: Disk) -> None:
    """Be the watch over a node's ranks: says every two seconds how long each has been silent."""
    launch, node = process.environment[LAUNCH], process.environment[NODE]
    client: Any = Client(disk, 5.0)
    control = Control(client, ENDPOINT, int(launch))

    def ranks() -> list[RankLife]:
        own = [p for p in process.host.living if p.tag == "program" and p.environment.get(LAUNCH) == launch]
        return [
            RankLife(
                node,
                int(p.environment.get("NODE_RANK", "0")),
                "T" if p.frozen else "D" if p.stuck else "S",
                process.scheduler.now_s - p.active_s,
                longest_s=1.0,
            )
            for p in own
            if p.environment.get(NODE) == node
        ]

    def watch() -> int:
        number = 0
        while True:
            try:
                control.tell_ranks(node, {"number": number, "ranks": plain(ranks())})
            except FencedError:
                return 0
            except KVStoreError:
                pass
            number += 1
            _sleep(process, 2.0)

    process.run(watch)


def answer(process: Process) -> None:
    """Be one of the agent's questions about its node: one line, a moment after it is asked."""

    def main() -> int:
        if process.stdin is not None and not next(iter(process.stdin), b""):
            return 0
        process.scheduler.block(process.scheduler.chance.uniform(0.05, 0.4))
        check = NodeCheck(process.scheduler.unix_s, kernel_lines=tuple(process.host.kernel_lines))
        if process.stdout is not None:
            process.stdout.pipe.arrive(encode(Stacks() if process.stdin is None else NodeChecked(check)))
        return 0

    process.run(main)

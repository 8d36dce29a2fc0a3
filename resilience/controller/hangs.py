"""``--hang-timeout``: watches the program of each launch for a hang, and finds out where its ranks stand."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from laggard.kvstore.client.connection import write_private
from laggard.kvstore.client.environment import LAUNCH
from laggard.records import record_of
from laggard.resilience.controller.records import Records
from laggard.resilience.decision import wording
from laggard.resilience.decision.events import ProgramHung
from laggard.resilience.decision.failure import raised_and_stays
from laggard.resilience.decision.hang import HangTimeout, HangWatch, RankLife, Suspicion
from laggard.resilience.decision.origin import ProcessEnd
from laggard.resilience.decision.stacks import RankStack, is_hang, odd_ones, standstill_of, with_unread
from laggard.resilience.nodes.cluster import Cluster
from laggard.resilience.nodes.program import Program
from laggard.resilience.nodes.ranks import Ranks
from laggard.resilience.record.account import Account
from laggard.resilience.record.entries import HangFound
from laggard.resilience.wire.tasks import StartTask

COMMAND = (sys.executable, "-P", "-m", "laggard.resilience.agent.rank_watch")
# What a node has not renewed for this long is out of date.
STALE_S = 20.0


class Hangs:
    """Watches the launches of a job for hangs; does nothing without a timeout."""

    def __init__(
        self, timeout: HangTimeout | None, cluster: Cluster, records: Records, account: Account, folder: Path | None
    ) -> None:
        self._timeout = timeout  # how long the program may show no sign of life; `None`: forever
        self._cluster = cluster  # the agents of the nodes, which watch the ranks
        self._records = records  # where the program's signs of life are
        self._account = account  # notes each hang
        self._folder = folder  # folder for the stacks; `None`: they are not kept
        self._watch: HangWatch | None = None
        self._launch = -1
        self._hosts: Sequence[str] = ()
        self._renewed: dict[str, tuple[int, float]] = {}  # by host: the newest number, and when it was seen first

    @property
    def watched(self) -> bool:
        """Whether programs are watched for hangs."""
        return self._timeout is not None

    def begin(self, hosts: Sequence[str], launch: int, signs: object) -> None:
        """Watch the program of a new launch; ``signs`` are its own signs of life so far."""
        if self._timeout is None:
            return
        self._launch, self._hosts, self._renewed = launch, tuple(hosts), {}
        self._watch = HangWatch(self._timeout, signs, time.monotonic())
        for host in hosts:
            self._cluster.nodes[host].tasks.start(
                StartTask(_name(launch), COMMAND, {LAUNCH: str(launch)}, restarts=True)
            )

    def end(self) -> None:
        """End watching the program of the current launch, without waiting."""
        if self._watch is not None:
            self._watch = None
            for node in self._cluster.nodes.values():
                node.tasks.signal(_name(self._launch), signal.SIGTERM)

    def check(self, program: Program | Ranks) -> ProgramHung | Sequence[ProcessEnd] | None:
        """Return the hang of the current program, if it hangs."""
        # It takes some seconds if there is a suspicion: until all nodes have said where their ranks stand. If it hangs
        # because processes that have raised an error do not end, it has failed: return these.
        if self._watch is None:
            return None
        signs = self._records.signs(self._launch)
        lives = self._lives()
        suspicion = self._watch.check(signs, lives, time.monotonic())
        if suspicion is None:
            return None
        stacks = with_unread(self._cluster.stacks(self._hosts, self._launch), lives)
        if not is_hang(suspicion, stacks, lives):
            return None
        ending = {(stack.host, stack.rank) for stack in stacks if stack.is_ending}
        raised = [end for end in program.lingering(suspicion.silent_s) if raised_and_stays(end, ending)]
        return raised or self._note(suspicion, stacks)

    def _note(self, suspicion: Suspicion, stacks: Sequence[RankStack]) -> ProgramHung:
        """Note a hang with where its ranks stand, and return it for the policy."""
        # One process alone has nobody to be compared with: a program that runs once is always on the primary.
        hosts = {stack.host for stack in odd_ones(stacks)} if len(stacks) > 1 else set()
        suspect = next(iter(hosts)) if len(hosts) == 1 else ""
        hung = ProgramHung(suspicion.silent_s, suspicion.silent, standstill_of(stacks), suspect)
        kept = self._keep(stacks)
        self._account.take_note(HangFound(self._launch, hung, "" if kept is None else kept.name))
        return hung

    def _lives(self) -> list[RankLife]:
        now_s = time.monotonic()
        lives = []
        for host, stored in self._records.ranks(self._launch).items():
            if stored["number"] != self._renewed.get(host, (-1, 0.0))[0]:
                self._renewed[host] = stored["number"], now_s
            if now_s < self._renewed[host][1] + STALE_S:
                lives += [record_of(RankLife, each) for each in stored["ranks"]]
        return lives

    def _keep(self, stacks: Sequence[RankStack]) -> Path | None:
        """Write the stacks to a file; return it, or None if there is none."""
        if self._folder is None or not stacks:
            return None
        file = self._folder / f"stacks-{self._launch}.txt"
        try:
            write_private(file, "\n".join(map(_text, stacks)))
        except OSError as error:
            self._account.tell("notice", f"the stacks could not be kept: {error}", "bold yellow")
            return None
        return file


def _name(launch: int) -> str:
    return f"rank-watch-{launch}"


def _text(stack: RankStack) -> str:
    return "\n".join(
        [_standing(stack, wording.rank_name(stack.rank)), *(_standing(each, "its child") for each in stack.children)]
    )


def _standing(stack: RankStack, name: str) -> str:
    waits_in = f" in {stack.waits_in}" if stack.waits_in else ""
    head = f"{name} on {stack.host}, pid {stack.pid}: {stack.doing}, state {stack.state}{waits_in}"
    lines = [head, *([f"  {stack.trouble}"] if stack.trouble else [])]
    for number, frames in enumerate(stack.threads):
        lines.append("  main thread" if number == 0 else f"  thread {number}")
        lines += [f"    {frame.function} ({frame.file}:{frame.line})" for frame in frames]
    return "\n".join(lines) + "\n"

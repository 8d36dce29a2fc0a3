"""``--per-node``, ``--per-device``: the program runs on every node, or for every device, of the launch.

What they write is printed on the user's terminal.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from laggard.kvstore.control import NodeRecord
from laggard.kvstore.membership import JOINS, STANDS_BY, Placed, StandsBy
from laggard.resilience.decision.failure import only_lost_its_peer
from laggard.resilience.decision.origin import EXIT_ERROR, ProcessEnd
from laggard.resilience.nodes.node import Node
from laggard.resilience.nodes.rank_variables import (
    HOST_FILE,
    OF_RANK,
    OWN_ORDERS,
    VISIBLE_DEVICES,
    host_file,
    in_order,
    launch_variables,
)
from laggard.resilience.nodes.tasks import TakeOutput
from laggard.resilience.nodes.waiting import wait_for
from laggard.resilience.record.error_log import TakeErrors
from laggard.resilience.wire.tasks import Printed, StartTask, Stream, TaskEnded
from laggard.system.printer import Printer

LONGEST_LINE_BYTES = 1 << 16
# How long to wait for a rank that has more to say than that it lost its peer, and then for those that have as much.
ORIGIN_WAIT_S = 5.0
SETTLE_S = 1.0


@dataclass(frozen=True, slots=True)
class _Rank:
    """One process of the program, a task of its node."""

    node: Node
    task: str
    # None if it stands by, and with --per-node: what runs there may start processes with ranks of their own
    number: int | None
    place: int  # among all of them; of one that stands by, among those on its node
    device: str
    began_in: int | None = None  # the launch in which it took the place of another one

    @property
    def end(self) -> TaskEnded | None:
        return self.node.tasks.ends.get(self.task)


class Ranks:
    """The running ranks of one launch; to the controller they are one program."""

    def __init__(
        self,
        command: Sequence[str],
        launch: int,
        nodes: Sequence[Node],
        port: int,
        changed: threading.Condition,
        printer: Printer,
        *,
        run: str = "",
        per_device: bool = False,
        writes_stacks: bool = False,
        may_be_warm: bool = False,
        devices: Mapping[str, tuple[str, ...]] = OWN_ORDERS,
        take_errors: TakeErrors = lambda *_: None,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._settle_s = settle_s
        self.port = port  # where the ranks meet, on the first node
        self._run = run  # of the job, in trackers of experiments
        self._changed = changed  # notified by the nodes when a rank has ended
        self._ranks: list[_Rank] = []
        self._victims: set[_Rank] = set()  # of those that have ended badly: who only lost its peer
        self._command, self._printer, self._per_device = tuple(command), printer, per_device
        self._take_errors = take_errors
        self._records = [in_order(node.record, devices) for node in nodes]
        self._host_list = host_file(self._records)
        self._writes_stacks, self._may_be_warm = writes_stacks, may_be_warm
        self._spares: list[_Rank] = []  # those that stand by, all on one node
        self._stand_by: dict[int, StandsBy] = {}  # what they have said, by their number on the node
        self._n_spares = 0  # so many were ever started
        self._new: list[_Rank] = []  # those that are to take the places of others
        self._left: list[_Rank] = []  # those whose places were taken last, until all go on
        for node, record, of_node in zip(nodes, self._records, self._variables(launch), strict=True):
            for number, own in enumerate(of_node):
                name = f"program-{launch}-{number}" if per_device else f"program-{launch}"
                number_of_all, device = (int(own["RANK"]), record.devices[number]) if per_device else (None, "")
                rank = _Rank(node, name, number_of_all, len(self._ranks), device)
                self._ranks.append(rank)
                self._start(rank, record, own, launch)

    def _variables(self, launch: int) -> list[list[dict[str, str]]]:
        return launch_variables(
            self._records, self.port, launch, os.environ, per_device=self._per_device, run=self._run
        )

    def _start(self, rank: _Rank, record: NodeRecord, own: Mapping[str, str], launch: int) -> None:
        order = {VISIBLE_DEVICES: ",".join(record.devices)} if record != rank.node.record else {}
        hosts = f"hosts-{launch}"
        start = StartTask(
            rank.task,
            self._command,
            {**own, **order, HOST_FILE: rank.node.path_of(hosts)},
            str(Path.cwd()),
            {hosts: self._host_list},
            writes_stacks=self._writes_stacks,
            may_be_warm=self._may_be_warm,
            records_imports=self._may_be_warm and len(self._ranks) == 1,
        )
        rank.node.tasks.start(start, _relay(rank, self._printer, self._take_errors))

    def stand_by_on(self, node: Node | None, launch: int) -> None:
        """Have processes stand by for the ranks of any node with as many devices as this one, and nowhere else."""
        has_ended = any(spare.end is not None for spare in self._spares)
        if has_ended or (self._spares and node is not self._spares[0].node):
            for spare in self._spares:
                spare.node.tasks.signal(spare.task, signal.SIGKILL)
            self._spares, self._stand_by = [], {}
        alike = (
            [] if node is None else [each for each in self._records if len(each.devices) == len(node.record.devices)]
        )
        if node is None or self._spares or not alike:
            return
        own = self._variables(launch)[self._records.index(alike[0])]
        for number, device in enumerate(node.record.devices):
            spare = _Rank(node, f"stands-by-{launch}-{self._n_spares}", None, number, device, launch)
            self._spares.append(spare)
            self._n_spares += 1
            variables = {name: value for name, value in own[number].items() if name not in OF_RANK}
            self._start(spare, node.record, {**variables, STANDS_BY: "1"}, launch)

    def stands_by(self, said: StandsBy) -> None:
        """Take note of what a process says that stands by."""
        if any(each.node.record.hostname == said.host for each in self._spares):
            self._stand_by[said.local_rank] = said

    @property
    def spare_node(self) -> str:
        """The node on which a process stands by for each device; empty: there is none."""
        are_there = 0 < len(self._spares) == len(self._stand_by) and all(spare.end is None for spare in self._spares)
        return self._spares[0].node.record.hostname if are_there else ""

    def why_no_spare(self, launch: int) -> str:
        """Return why the processes cannot stand by that were started for it in a launch; empty: nothing is known."""
        said = [each.why_not for each in self._stand_by.values() if each.why_not]
        ended = [each.end.exit_code for each in self._spares if each.end is not None and each.began_in == launch]
        return next(iter(said), f"one of them ended with {ended[0]}" if ended else "")

    def begin_new(
        self, numbers: Collection[int], launch: int, joins_in: int, moves: Mapping[str, Node]
    ) -> Sequence[Placed]:
        """Start processes that take the places of these ranks in a launch, those of some nodes on other nodes.

        Returns
        -------
        list
            What to tell those that were started before, and stand by.
        """
        spare_node, told = self.spare_node, list[Placed]()
        self._records = [moves[each.hostname].record if each.hostname in moves else each for each in self._records]
        self._host_list = host_file(self._records)
        own = [each for of_node in self._variables(launch) for each in of_node]
        records = {record.hostname: record for record in self._records}
        for rank in [rank for rank in self._ranks if rank.number in numbers]:
            node = moves.get(rank.node.record.hostname, rank.node)
            record = records[node.record.hostname]
            local_rank = int(own[rank.place]["LOCAL_RANK"])
            task, device = f"program-{joins_in}-{rank.place}", record.devices[local_rank]
            new = replace(rank, node=node, task=task, device=device, began_in=joins_in)
            variables = {**own[rank.place], JOINS: str(joins_in)}
            if node is not rank.node and node.record.hostname == spare_node:
                new = replace(new, task=self._spares[local_rank].task)
                node.tasks.pass_on(new.task, _relay(new, self._printer, self._take_errors))
                told.append(Placed(launch, spare_node, self._stand_by[local_rank].pid, variables))
            else:
                self._start(new, record, variables, launch)
            self._new.append(new)
        if told:
            self._spares, self._stand_by = [], {}
        return told

    def take_over(self) -> None:
        """Let the processes that were begun last be ranks from now on."""
        self._left = [self._ranks[new.place] for new in self._new]
        for new in self._new:
            self._ranks[new.place] = new
        self._new = []

    def drop_new(self) -> None:
        """Kill the processes that were begun to take the places of others."""
        for rank in self._new:
            rank.node.tasks.signal(rank.task, signal.SIGKILL)
        self._new = []

    @property
    def has_new(self) -> bool:
        """Whether processes stand by to take the places of others."""
        return bool(self._new)

    @property
    def has_lost_new(self) -> bool:
        """Whether a process has ended that stands by to take the place of another one, or has failed since it did."""
        new = [self._ranks[left.place] for left in self._left]
        failed = [rank for rank in new if rank.end is not None and rank.end.exit_code > 0]
        return bool(failed) or any(rank.end is not None for rank in self._new)

    def wait_for_left(self, deadline_s: float) -> None:
        """Wait until those have ended whose places were taken; those that took them are like all others from now on."""
        wait_for(
            self._changed, lambda: all(rank.end is not None or rank.node.agent.gone for rank in self._left), deadline_s
        )
        self._left = []

    def on(self, hosts: Collection[str]) -> list[int]:
        """Return which ranks run on these nodes."""
        return [rank.place for rank in self._ranks if rank.node.record.hostname in hosts]

    def kill_rank(self, number: int) -> None:
        """Kill one rank."""
        for rank in [rank for rank in self._ranks if rank.number == number]:
            rank.node.tasks.signal(rank.task, signal.SIGKILL)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self._ranks)

    def lost(self) -> list[ProcessEnd]:
        """Return how the ranks have ended that have."""
        with self._changed:
            return [self._end_of(rank, rank.end) for rank in self._ranks if rank.end is not None]

    @property
    def exit_code(self) -> int | None:
        """The exit code of all ranks together; some may still be running when it is known."""
        return combined_exit_code(self._exits())

    @property
    def any_ended(self) -> bool:
        """Whether any rank has ended."""
        return any(rank.end is not None for rank in self._ranks)

    @property
    def ended(self) -> bool:
        """Whether all ranks have ended; a rank on a lost node counts as ended."""
        return all(rank.end is not None or rank.node.agent.gone for rank in self._ranks)

    def starts(self) -> list[tuple[str, str]] | None:
        """Return each rank's host, and why it was not forked from a warm process, if not; None: not known yet."""
        if any(rank.task not in rank.node.tasks.starts and not rank.node.agent.gone for rank in self._ranks):
            return None
        return [
            (rank.node.record.hostname, rank.node.tasks.starts.get(rank.task, "it is lost")) for rank in self._ranks
        ]

    def ask_to_stop(self, signum: int) -> None:
        """Ask all ranks to save their state and end."""
        self._signal(signum)

    def kill(self) -> None:
        """Kill all ranks; the processes that they leave are ended with the other leftovers of the launch."""
        self._signal(signal.SIGKILL)

    def wait(self, deadline_s: float) -> bool:
        """Wait until all ranks have ended; return whether they did in time."""
        return wait_for(self._changed, lambda: self.ended, deadline_s)

    def _signal(self, signum: int) -> None:
        for rank in self._ranks:
            rank.node.tasks.signal(rank.task, signum)

    def failed(self) -> list[ProcessEnd]:
        """Return the ranks that have ended, once those that may be why the first of them did have had the time to."""
        # The nodes were pinged since the first of them failed, so all ranks that ended before it are known.
        until_s = time.monotonic() + ORIGIN_WAIT_S
        exits = self._exits()
        while self._all_lost_their_peer() and not self.ended and (left_s := until_s - time.monotonic()) > 0:
            wait_for(self._changed, partial(self._differ, exits), left_s)
            exits = self._exits()
        wait_for(self._changed, lambda: self.ended, self._settle_s)
        return self.lost()

    def _all_lost_their_peer(self) -> bool:
        """Return whether all ranks that have ended badly say only that a connection to another one is gone."""
        # It takes long for thousands of them, so it is asked without the lock that their messages wait for.
        for rank in self._ranks:
            if rank.end is None or rank.end.exit_code == 0 or rank in self._victims:
                continue
            if not only_lost_its_peer(self._end_of(rank, rank.end)):
                return False
            self._victims.add(rank)
        return True

    def lingering(self, silent_s: float) -> list[ProcessEnd]:
        """Return the ranks that run, with what they have written by the last look at their stacks, as if they failed.

        Parameters
        ----------
        silent_s
            For how many seconds there has been no sign of life.
        """
        return [
            ProcessEnd(
                rank.node.record.hostname,
                pid=0,
                exit_code=EXIT_ERROR,
                ended_s=0.0,
                ran_s=0.0,
                lines=tuple(rank.node.checks.error_output.get(rank.task, "").splitlines()),
                rank=rank.number,
                lingers_s=silent_s,
                place=rank.place,
                device=rank.device,
            )
            for rank in self._ranks
            if rank.end is None
        ]

    def _end_of(self, rank: _Rank, end: TaskEnded) -> ProcessEnd:
        return ProcessEnd(
            rank.node.record.hostname,
            end.pid,
            end.exit_code,
            end.ended_s,
            end.ran_s,
            tuple(end.error_output.splitlines()),
            rank=rank.number,
            place=rank.place,
            device=rank.device,
            raised_s=end.raised_s,
        )

    def _differ(self, exits: list[int | None]) -> bool:
        return self.ended or self._exits() != exits

    def _exits(self) -> list[int | None]:
        return [None if rank.end is None else rank.end.exit_code for rank in self._ranks]


def combined_exit_code(exits: Sequence[int | None]) -> int | None:
    """Return the exit code of all ranks together, or None while there is none. Pure."""
    # If a rank was killed by a signal, that is why the others failed. Otherwise the first failure counts (that of the
    # lowest rank, if several are known at once). The result is 0 once all ranks have ended with 0.
    ended = [code for code in exits if code is not None]
    died = [code for code in ended if code < 0]
    failed = [code for code in ended if code > 0]
    if died or failed:
        return (died or failed)[0]
    return 0 if len(ended) == len(exits) else None


def _relay(rank: _Rank, printer: Printer, take_errors: TakeErrors) -> TakeOutput:
    """Return what passes the output of one rank on to the printer, line by line."""
    host = rank.node.record.hostname
    prefix = f"[{host}] " if rank.number is None else f"[{host} rank {rank.number}] "
    lines = {stream: Lines(prefix.encode()) for stream in ("stdout", "stderr")}

    def take(stream: Stream, data: bytes) -> None:
        text = lines[stream].take(data) if data else lines[stream].end()
        printer.add(stream, text, partial(rank.node.agent.send, Printed(len(data))))
        if stream == "stderr":
            take_errors(host, rank.number, data)

    return take


class Lines:
    """Splits a stream that arrives in pieces into whole lines. Pure."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix  # put in front of each line
        self._rest = b""

    def take(self, data: bytes) -> bytes:
        """Return the lines that this piece completes; a line that is too long is split."""
        lines = (self._rest + data).splitlines(keepends=True)
        # A carriage return ends a line too, so that a progress bar is seen moving.
        self._rest = b"" if not lines or lines[-1].endswith((b"\n", b"\r")) else lines.pop()
        while len(self._rest) >= LONGEST_LINE_BYTES:
            lines.append(self._rest[:LONGEST_LINE_BYTES] + b"\n")
            self._rest = self._rest[LONGEST_LINE_BYTES:]
        return b"".join(self._prefix + line for line in lines)

    def end(self) -> bytes:
        """Return the rest of the stream as a last line."""
        rest, self._rest = self._rest, b""
        return self._prefix + rest + b"\n" if rest else b""

"""Membership: which processes make up a launch when a rank is replaced and the others keep their processes.

A rank that can stay offers it (`Offer`). If others are lost, the controller raises the launch number and publishes who
is replaced (`Replaced`). The ranks that stay adopt the new launch; they and the new processes report what they have
(`Ready`). The controller then publishes in which order they connect, and from which step all go on (`Formation`), and
each offers again to stay once it has the state of that step. Ranks that are to be replaced while they still run
(`Leaving`) go on until those that take their places are ready, and all stop before the same step. Processes may stand
by without a rank (`StandsBy`), and import what ranks have imported later on (`Imports`), until they are told whose
place they take (`Placed`). What the ranks say are requests to the controller; what it publishes is the stream
``memberships``; ``rendezvous:<n>`` is what the ranks of launch n tell each other to connect, and ``handed-over`` what a
rank alone has known, for who takes its place.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from laggard.kvstore.client.connection import Session, current_session
from laggard.kvstore.client.environment import LAUNCH, OWN_RANK, RANK_VARIABLES, own_node
from laggard.kvstore.client.fence import Command, adopt_launch, as_adopted
from laggard.kvstore.control import Control
from laggard.kvstore.errors import FencedError, MembershipError
from laggard.records import plain, record_of
from laggard.system import own_environment

JOINS = "LAGGARD_JOINS"
"""Set for a process that takes the place of a rank while the others stay: the launch in which it does."""

STANDS_BY = "LAGGARD_STANDS_BY"
"""Set for a process that has no rank until it takes the place of one."""

# The controller's own deadlines are shorter; a rank that hears nothing for so long ends.
SILENCE_S = 300.0
_READ_S = 1.0
_KEEP_ENTRIES = 1000
_EXPIRY_S = 3600


@dataclass(frozen=True, slots=True)
class Offer:
    """A rank can stay when others are lost, since it has a state to go on from; or why not."""

    rank: int
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """A rank has adopted a launch, or has begun in it, and waits for the others."""

    rank: int
    handle: str  # by which the others connect to it, in words of whatever connects them
    have: tuple[int, ...]  # the steps from which it can go on, and whose state it can give to others
    own: tuple[int, ...]  # those of which it knows what only this rank has; a new process, from the one before it
    handed_over: tuple[tuple[int, int], ...] = ()  # ranks and steps: what is such a one's own at a step is stored
    alike: tuple[int, ...] = ()  # the ranks whose state it can take over; empty: that of any


@dataclass(frozen=True, slots=True)
class StandsBy:
    """A process without a rank has run the program until it needs one, or why it cannot wait for it."""

    host: str
    local_rank: int  # among those that stand by on the node
    pid: int
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Placed:
    """A process that stands by is a rank of a launch from now on, with the variables of one."""

    launch: int
    host: str
    pid: int
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Imports:
    """In a launch, what stands by imports these modules, which a rank needs."""

    launch: int
    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Replaced:
    """In a launch, new processes take the place of these ranks of the launch before; the other ranks go on."""

    launch: int
    before: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Leaving:
    """These ranks of a launch are replaced at the end of a step, since others stand by to take their places."""

    launch: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Formation:
    """How the ranks of a launch connect, and what they go on from."""

    launch: int
    handles: tuple[str, ...]  # in the order of the ranks
    step: int
    sources: Mapping[str, int]  # for each rank that is behind, the one that gives it the state of that step


Said = Offer | Ready | StandsBy
Published = Replaced | Leaving | Formation | Placed | Imports


@dataclass(frozen=True, slots=True)
class Message:
    """What a rank or the controller says, as a request or an entry of the stream holds it."""

    said: Said | Published


class MembershipRecords(Control):
    """What is published of memberships, beside the other control records."""

    def publish(self, record: Published) -> None:
        """Publish a record for the ranks."""
        entry = "MAXLEN", "~", str(_KEEP_ENTRIES), "*", "record", json.dumps(plain(Message(record)))
        self._execute("XADD", self._endpoint.key("memberships"), *entry)

    def published(self, after: str, wait_s: float) -> Iterator[tuple[str, Published]]:
        """Yield ``(id, record)`` of what was published after an id, waiting for the first one so long at most."""
        for entry_id, fields in self._retry.call(lambda: self._entries("memberships", after, wait_s)):
            yield entry_id.decode(), cast("Published", record_of(Message, json.loads(fields[b"record"])).said)

    def meet(self, key: str, value: bytes) -> None:
        """Store what the other ranks of the launch need to connect."""
        self._put("HSET", self._key("rendezvous"), key, value)

    def met(self, key: str) -> bytes | None:
        """Return what one of the ranks has stored under a key."""
        return self._retry.call(lambda: cast("bytes | None", self._client.hget(self._key("rendezvous"), key)))

    def agree(self, key: str, value: bytes) -> bytes:
        """Store a value unless one of the ranks has stored another one; return the stored one."""
        return self._put("HSETNX", self._key("rendezvous"), key, value)

    def hand_over(self, rank: int, step: int, value: bytes) -> None:
        """Store what only one rank has at the beginning of a step, for who takes its place."""
        self._put("HSET", self._endpoint.key("handed-over"), f"{rank}-{step}", value)

    def handed_over(self, rank: int, step: int) -> bytes | None:
        """Return what was stored for who takes a rank's place."""
        name = self._endpoint.key("handed-over")
        return self._retry.call(lambda: cast("bytes | None", self._client.hget(name, f"{rank}-{step}")))

    def _put(self, command: str, name: str, field: str, value: bytes) -> bytes:
        """Store a field of what nobody needs for long; return what is stored there then."""
        commands: list[Command] = [(command, name, field, value), ("HGET", name, field), ("EXPIRE", name, _EXPIRY_S)]
        return cast("bytes", self._retry.call(lambda: self._writer.execute(commands))[1])


class Membership:
    """How a rank stays in its job while others are replaced; of one thread.

    A program of any kind can use it: it says that it can stay (`offer`), asks after any trouble whether somebody is
    replaced (`await_replaced`), says what it has (`report`), waits for what all go on from (`await_formation`), and
    says that it is there (`formed`). Who has taken a lost rank's place (`joins`) begins with `report`. Before each step
    a rank asks whether all stop there (`pauses`), and then reports as well, or leaves (`leave`): what it hands over is
    there once it is known what all go on from (`handed_over`).

    Attributes
    ----------
    rank, size
        This rank's number, and the number of ranks.
    joins
        Whether this process takes another's place and has not done so yet.
    leaves
        Whether another process takes this one's place at the step before which all stop.
    """

    def __init__(self, session: Session, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._joins_in = int(os.environ.get(JOINS, "-1"))
        self.joins, self.leaves = self._joins_in >= 0, False
        self._replaced: tuple[int, ...] = ()  # the ranks that are replaced in this launch
        self._pause_at: int | None = None  # the step before which all stop
        self._launch = session.environment.launch
        self.records = MembershipRecords(session.client, session.endpoint, self._launch)
        self._read = "0-0"

    @property
    def launch(self) -> int:
        """The launch that this process belongs to now."""
        return as_adopted(self._launch)

    @classmethod
    def of_process(cls) -> Membership | None:
        """Return that of this process, once it has a rank; None if it was not started for a device of a job."""
        if STANDS_BY in os.environ:
            cls(current_session(), -1, 0)._stand_by()
        rank = os.environ.get(OWN_RANK)
        if rank is None or os.environ.get("RANK") != rank:
            return None
        return cls(current_session(), int(rank), int(os.environ["WORLD_SIZE"]))

    def _stand_by(self) -> None:
        """Wait until this process takes the place of a rank, and set its variables; end if it knows its rank too early.

        Who ends a job, or a node, ends what stands by there.
        """
        found: Published | None = None
        while not (isinstance(found, Placed) and (found.host, found.pid) == (own_node(), os.getpid())):
            why_not = _why_not_stand_by()
            with contextlib.suppress(FencedError):  # the next launch has begun, and this process is about to be told
                self._say(StandsBy(own_node(), int(os.environ["LOCAL_RANK"]), os.getpid(), why_not))
            if why_not:
                sys.exit()
            found = self._await((Placed, Replaced, Imports), math.inf)
            if isinstance(found, Imports):
                sys.modules["laggard_warm"].load_more(found.modules)  # which has forked this process
        os.environ.__class__ = os._Environ
        del os.environ[STANDS_BY]
        os.environ.update(found.variables)
        _show_environment()

    def offer(self, why_not: str = "") -> None:
        """Say that this rank can stay when others are lost, or why not."""
        self._say(Offer(self.rank, why_not))

    def await_replaced(self, within_s: float) -> bool:
        """Wait until ranks of this launch are replaced, and adopt the launch in which they are.

        Returns
        -------
        bool
            Whether there is one; if not, the trouble is this rank's own.

        Raises
        ------
        FencedError
            If this process is one of those that were replaced.
        """
        return isinstance(self._await(Replaced, within_s), Replaced)

    def pauses(self, step: int) -> bool:
        """Return whether all ranks stop before this step, since some are replaced; each asks before each step.

        Then `leave` is next for who `leaves`, and `report` for all others.
        """
        if self._pause_at is None:
            found = self._await((Leaving, Replaced), 0.0)
            if not isinstance(found, Leaving):
                return found is not None
            # Who was not told yet may have begun this step, which needs all ranks; before the next one it is told.
            self._pause_at = int(self.records.agree("pause", str(step + 1).encode()))
            self.leaves = self.rank in found.ranks
        return step >= self._pause_at

    def leave(self, step: int, own: bytes) -> None:
        """Hand over what only this rank has before a step, and wait until another one has its place; then end."""
        self._replaced = (self.rank,)
        self.report("", (), (), {self.rank: {step: own}})
        with contextlib.suppress(FencedError):  # another one has its place
            self._await(Replaced, SILENCE_S)
            raise MembershipError(self.launch, SILENCE_S)

    def handed_over(self, step: int) -> bytes | None:
        """Return what others have handed over to this rank before a step."""
        return self.records.handed_over(self.rank, step)

    def report(
        self,
        handle: str,
        have: tuple[int, ...],
        own: tuple[int, ...],
        kept: Mapping[int, Mapping[int, bytes]],
        alike: tuple[int, ...] = (),
    ) -> None:
        """Say that this rank waits for the others, and what it has, as in `Ready`.

        Parameters
        ----------
        handle, have, own, alike
            As in `Ready`.
        kept
            What it keeps that is only one rank's, by rank and step: it is handed over for those that are replaced.
        """
        handed_over = tuple((rank, step) for rank in self._replaced for step in kept.get(rank, ()))
        for rank, step in handed_over:
            self.records.hand_over(rank, step, kept[rank][step])
        self._say(Ready(self.rank, handle, have, own, handed_over, alike))

    def await_formation(self) -> Formation | None:
        """Wait until it is known what all ranks go on from; None if others were lost: then report anew.

        Raises
        ------
        FencedError
            If this process is one of those that were replaced.
        MembershipError
            If nothing is heard for long.
        """
        found = self._await((Formation, Replaced), SILENCE_S)
        if found is None:
            raise MembershipError(self.launch, SILENCE_S)
        return found if isinstance(found, Formation) else None

    def formed(self) -> None:
        """Say that this rank is connected, and has the state that all go on from."""
        self.offer()
        self.joins = False
        os.environ.pop(JOINS, None)

    def _say(self, said: Said) -> None:
        self.records.ask("member", [plain(Message(said))])

    def _await(self, kinds: type | tuple[type, ...], within_s: float) -> Published | None:
        until_s, left_s = time.monotonic() + within_s, within_s
        while left_s >= 0:
            for entry_id, record in self.records.published(self._read, min(left_s, _READ_S)):
                self._read = entry_id
                if isinstance(record, Replaced):
                    if record.before != self.launch:
                        continue
                    self._adopt(record)
                elif record.launch != self.launch or self.launch < self._joins_in:  # who stands by does not form part
                    continue
                if isinstance(record, kinds):
                    return record
            left_s = until_s - time.monotonic()
        return None

    def _adopt(self, replaced: Replaced) -> None:
        if self.rank in replaced.ranks and replaced.launch != self._joins_in:
            raise FencedError(self.launch, replaced.launch)
        adopt_launch(self.launch, replaced.launch)
        self._pause_at, self._replaced = None, replaced.ranks
        os.environ[LAUNCH] = str(replaced.launch)
        _show_environment()


def _why_not_stand_by() -> str:
    asked: set[str] | None = getattr(os.environ, "asked_for", None)  # by what has forked this process
    if asked is None:
        return "they were not forked from a warm process"
    return f"the program reads {', '.join(sorted(asked))} before its ranks are counted" if asked else ""


def _show_environment() -> None:
    own_environment.show(os.environ, lambda name: name.startswith("LAGGARD_") or name in RANK_VARIABLES)

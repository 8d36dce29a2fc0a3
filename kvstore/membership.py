"""Membership: which processes make up a launch when a rank is replaced and the others keep their processes.

A rank that can stay offers it (`Offer`). If others are lost, the controller raises the launch number and publishes who
is replaced (`Replaced`). The ranks that stay adopt the new launch; they and the new processes report what they have
(`Ready`). The controller then publishes in which order they connect, and from which step all go on (`Formation`), and
each says once it has the state of that step (`Formed`). What the ranks say are requests to the controller; what it
publishes is the stream ``memberships``; ``rendezvous:<n>`` is what the ranks of launch n tell each other to connect.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import redis

from laggard.kvstore.client.connection import Endpoint, Session, current_session
from laggard.kvstore.client.environment import LAUNCH, OWN_RANK, RANK_VARIABLES
from laggard.kvstore.client.fence import FencedWriter, adopt_launch, as_adopted
from laggard.kvstore.client.retry import RETRY_FOR_S, RetryPolicy
from laggard.kvstore.control import Control
from laggard.kvstore.errors import FencedError, MembershipError
from laggard.records import plain, record_of
from laggard.system import own_environment

JOINS = "LAGGARD_JOINS"
"""Set for a process that takes the place of a rank while the others stay."""

# The controller's own deadlines are shorter; a rank that hears nothing for so long ends.
SILENCE_S = 90.0
_READ_S = 1.0
_KEEP_ENTRIES = 1000
_RENDEZVOUS_EXPIRY_S = 3600


@dataclass(frozen=True, slots=True)
class Offer:
    """A rank can stay when others are lost, or why not."""

    rank: int
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """A rank has adopted a launch, or has begun in it, and waits for the others."""

    rank: int
    handle: str  # by which the others connect to it, in words of whatever connects them
    have: tuple[int, ...]  # the steps from which it can go on, and whose state it can give to others
    own: tuple[int, ...]  # those of which it knows what only this rank has; a new process, from the one before it


@dataclass(frozen=True, slots=True)
class Formed:
    """A rank is connected and has the state."""

    rank: int


@dataclass(frozen=True, slots=True)
class Replaced:
    """In a launch, new processes take the place of these ranks of the launch before; the other ranks go on."""

    launch: int
    before: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Formation:
    """How the ranks of a launch connect, and what they go on from."""

    launch: int
    handles: tuple[str, ...]  # in the order of the ranks
    step: int
    source: int  # the rank that gives the state of that step to those that are behind
    behind: tuple[int, ...]


Said = Offer | Ready | Formed
Published = Replaced | Formation


@dataclass(frozen=True, slots=True)
class Message:
    """What a rank says, as a request holds it."""

    said: Said


class MembershipRecords:
    """What is published of memberships, as a process of a launch reads and writes it."""

    def __init__(self, client: redis.Redis, endpoint: Endpoint, launch: int) -> None:
        self._client = client
        self._stream = endpoint.key("memberships")
        self._endpoint = endpoint
        self._launch = launch
        self._writer = FencedWriter(client, endpoint, launch)
        self._retry = RetryPolicy(endpoint, RETRY_FOR_S)

    def publish(self, record: Published) -> None:
        """Publish a record for the ranks."""
        entry = "MAXLEN", "~", str(_KEEP_ENTRIES), "*", "record", json.dumps(plain(record))
        self._retry.call(lambda: self._writer.execute([("XADD", self._stream, *entry)]))

    def published(self, after: str, wait_s: float) -> Iterator[tuple[str, Published]]:
        """Yield ``(id, record)`` of what was published after an id, waiting for the first one so long at most."""
        block_ms = max(1, int(wait_s * 1000))
        answer = self._retry.call(lambda: cast("Any", self._client.xread({self._stream: after}, block=block_ms)))
        streams = answer.values() if isinstance(answer, dict) else [entries for _, entries in answer or []]
        for entries in streams:
            for entry_id, fields in entries[0] if entries and isinstance(entries[0], list) else entries:
                text = json.loads(fields[b"record"])
                is_formation = text["is"] == Formation.__name__
                found = record_of(Formation, text) if is_formation else record_of(Replaced, text)
                yield entry_id.decode(), found

    def meet(self, key: str, value: bytes, *, expected: bytes | None = None) -> bytes:
        """Store what the other ranks of the launch need to connect, unless there is other than what is expected."""
        name = self._rendezvous()
        if expected is not None and (found := self.met(key)) is not None and found != expected:
            return found
        expires = "EXPIRE", name, _RENDEZVOUS_EXPIRY_S
        self._retry.call(lambda: self._writer.execute([("HSET", name, key, value), expires]))
        return value

    def met(self, key: str) -> bytes | None:
        """Return what one of the ranks has stored under a key."""
        return self._retry.call(lambda: cast("bytes | None", self._client.hget(self._rendezvous(), key)))

    def part(self, key: str) -> None:
        """Remove what was stored under a key."""
        self._retry.call(lambda: self._writer.execute([("HDEL", self._rendezvous(), key)]))

    def _rendezvous(self) -> str:
        return self._endpoint.key("rendezvous", str(as_adopted(self._launch)))


class Membership:
    """How a rank stays in its job while others are replaced; of one thread.

    A program of any kind can use it: it says that it can stay (`offer`), asks after any trouble whether somebody is
    replaced (`await_replaced`), says what it has (`report`), waits for what all go on from (`await_formation`), and
    says that it is there (`formed`). Who has taken a lost rank's place (`joins`) begins with `report`.

    Attributes
    ----------
    rank, size
        This rank's number, and the number of ranks.
    joins
        Whether this process takes a lost rank's place and has not done so yet.
    """

    def __init__(self, session: Session, rank: int, size: int) -> None:
        launch = session.environment.launch
        self.rank, self.size = rank, size
        self.joins = os.environ.get(JOINS) == "1"
        self.records = MembershipRecords(session.client, session.endpoint, launch)
        self._control = Control(session.client, session.endpoint, launch)
        self._launch = launch
        self._read = "0-0"

    @property
    def launch(self) -> int:
        """The launch that this process belongs to now."""
        return as_adopted(self._launch)

    @classmethod
    def of_process(cls) -> Membership | None:
        """Return that of this process; None if it was not started for a device of a job."""
        rank = os.environ.get(OWN_RANK)
        if rank is None or os.environ.get("RANK") != rank:
            return None
        return cls(current_session(), int(rank), int(os.environ["WORLD_SIZE"]))

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

    def report(self, handle: str, have: tuple[int, ...], own: tuple[int, ...]) -> None:
        """Say that this rank waits for the others, and what it has, as in `Ready`."""
        self._say(Ready(self.rank, handle, have, own))

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
        self._say(Formed(self.rank))
        self.joins = False
        os.environ.pop(JOINS, None)

    def _say(self, said: Said) -> None:
        self._control.ask("member", [plain(Message(said))])

    def _await(self, kinds: type | tuple[type, ...], within_s: float) -> Published | None:
        until_s = time.monotonic() + within_s
        while (left_s := until_s - time.monotonic()) > 0:
            for entry_id, record in self.records.published(self._read, min(left_s, _READ_S)):
                self._read = entry_id
                if isinstance(record, Replaced):
                    if record.before != self.launch:
                        continue
                    self._adopt(record)
                elif record.launch != self.launch:
                    continue
                if isinstance(record, kinds):
                    return record
        return None

    def _adopt(self, replaced: Replaced) -> None:
        if self.rank in replaced.ranks:
            raise FencedError(self.launch, replaced.launch)
        adopt_launch(self.launch, replaced.launch)
        os.environ[LAUNCH] = str(replaced.launch)
        own_environment.show(os.environ, lambda name: name.startswith("LAGGARD_") or name in RANK_VARIABLES)

"""Control records: which nodes a launch runs on, and requests to the controller.

Keys of a job: ``launch:<n>`` (the record of launch n, JSON), ``requests`` (a stream that the controller reads),
``progress:<n>`` (the newest step that launch n reported, and the newest that it can be restored to),
``phases:<n>`` (the phases that its processes have declared),
``reserve:<n>`` (the number of nodes in reserve, once it has changed), ``ranks:<n>`` (how its ranks look from outside,
by host), ``links:<n>`` (what its nodes tell each other of their links), ``exclusions`` and ``ledger`` (of nodes).
The fence (:mod:`laggard.kvstore.client.fence`) holds the number of the current launch and refuses every write of an
earlier launch; exclusions and ledger, which only the controller writes, outlive launches and jobs.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast, get_args

import redis

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.client.environment import own_node
from laggard.kvstore.client.fence import Argument, FencedWriter, as_adopted, current_launch
from laggard.kvstore.client.retry import RETRY_FOR_S, RetryPolicy
from laggard.kvstore.errors import NoLaunchRecordError, UnknownRequestError
from laggard.records import plain, record_of

_Record = TypeVar("_Record")
RequestKind = Literal["verdicts", "notices", "reboot", "recovers", "shards", "member"]
Progress = Literal["step", "checkpointed"]

_MAX_REQUESTS = 10_000  # the controller reads them at once
DETECT_INTERVAL_S = 3.0  # `SlowGPUDetector`'s default


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node of the allocation: its host name, its address, and the names of its devices."""

    hostname: str
    address: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """The nodes of one launch."""

    launch: int
    nodes: tuple[NodeRecord, ...]
    reserve: tuple[NodeRecord, ...]
    excluded: tuple[str, ...] = ()
    relaunch_s: float | None = None  # time from the decision to relaunch until these nodes were ready
    detect_interval_s: float = DETECT_INTERVAL_S  # time from one round of readings to the next
    began_s: float | None = None  # Unix time from which on its program was started
    ends_s: float | None = None  # Unix time at which the job ends at the latest, or is expected to; `None`: not known
    commits: int = 0  # number of commits to State before it, and the highest step that a launch before it has reported
    step: float | None = None
    # The primary, if its devices are not in use; `None`: it is one of the nodes
    head_only: NodeRecord | None = None
    # The leaf switch of each node, by host name, as far as it is known
    leaves: Mapping[str, str] = field(default_factory=dict)
    primary_host: str = ""  # the host name of the primary, which may have any ranks; empty: the first node

    @property
    def primary(self) -> NodeRecord:
        """The node that holds State and the controller."""
        return self.head_only or primary_of(self.nodes, self.primary_host)


def primary_of(nodes: Sequence[NodeRecord], host: str) -> NodeRecord:
    """Return the primary among the nodes of a launch: the one of that name, else the first."""
    return next((node for node in nodes if node.hostname == host), nodes[0])


@dataclass(frozen=True, slots=True)
class PhaseRecord:
    """The phases that a process has declared."""

    host: str  # the process's node
    name: str  # what the newest one is called
    count: int  # how many there were, that one included
    running: bool  # whether it goes on


@dataclass(frozen=True, slots=True)
class Signs:
    """What has been seen of a launch by now."""

    commits: int  # number of commits to State, by all launches
    step: float | None = None  # the newest step that this launch has reported
    # The newest step up to which its work can be restored, as this launch has reported it
    checkpointed: float | None = None
    # The phases that its processes have declared, by process
    phases: Mapping[str, PhaseRecord] = field(default_factory=dict)
    n_reserve: int | None = None  # number of nodes in reserve, if it has changed since the launch began


@dataclass(frozen=True, slots=True)
class Request:
    """A message from a process of the job to the controller."""

    # `verdicts`: a detector's verdicts of one round; `notices`: other things the user should know; `reboot`: the
    # program asks for a relaunch; `recovers`: it restarts its own workers in this launch; `shards`: it has
    # checkpoints for which the nodes need shard servers; `member`: what a rank says that can stay when another one is
    # lost (:mod:`laggard.kvstore.membership`)
    kind: RequestKind
    launch: int  # the launch it is about
    body: list[Any]  # verdicts as JSON objects; notices as sentences; for a reboot, the host names to exclude
    node: str = ""  # that of the process, as far as it is known


class Control:
    """The control records of one job, as a process of launch ``launch`` reads and writes them.

    :meth:`ask`, :meth:`write_launch`, :meth:`read_launch` and :meth:`read_links` wait for a server that is being
    restarted.
    """

    def __init__(self, client: redis.Redis, endpoint: Endpoint, launch: int) -> None:
        self._client = client
        self._endpoint = endpoint
        self._launch = launch
        self._writer = FencedWriter(client, endpoint, launch)
        self._retry = RetryPolicy(endpoint, RETRY_FOR_S)

    def write_launch(self, record: LaunchRecord) -> None:
        """Store the record of a launch."""
        self._execute("SET", self._endpoint.key("launch", str(record.launch)), json.dumps(plain(record)))

    def read_launch(self) -> LaunchRecord:
        """Return the record of this process's launch."""
        text = self._retry.call(lambda: self._get(self._key("launch")))
        if text is None:
            raise NoLaunchRecordError(as_adopted(self._launch))
        return record_of(LaunchRecord, json.loads(text))

    def tell_progress(self, step: float, kind: Progress = "step") -> None:
        """Store the newest step of this process's launch, or the newest that it can be restored to."""
        self._execute("HSET", self._key("progress"), kind, repr(float(step)))

    def read_progress(self, kind: Progress = "step") -> str | None:
        """Return what :meth:`tell_progress` stored last, as text; None if it stored nothing, or no number."""
        text = cast("bytes | None", self._client.hget(self._key("progress"), kind)) or b""
        return text.decode() if _is_number(text) else None

    def tell_phase(self, process: str, phase: PhaseRecord) -> None:
        """Store the newest phase of a process of this launch."""
        self._execute("HSET", self._key("phases"), process, json.dumps(plain(phase)))

    def read_phases(self) -> dict[str, PhaseRecord]:
        """Return what :meth:`tell_phase` stored last, by process."""
        phases = {}
        for process, phase in self._get_all(self._key("phases")).items():
            with contextlib.suppress(ValueError):  # written by something else
                phases[process] = record_of(PhaseRecord, phase)
        return phases

    def tell_reserve(self, n_nodes: int) -> None:
        """Store how many nodes are in reserve since the launch's record was written."""
        self._execute("SET", self._key("reserve"), str(n_nodes))

    def read_reserve(self) -> int | None:
        """Return what :meth:`tell_reserve` stored last; None if it stored nothing."""
        text = self._get(self._key("reserve")) or b""
        return int(text) if text.isdigit() else None

    def tell_ranks(self, host: str, ranks: Mapping[str, Any]) -> None:
        """Store how the ranks of this process's launch on a node look from outside, as plain JSON values."""
        self._execute("HSET", self._key("ranks"), host, json.dumps(ranks))

    def read_ranks(self) -> dict[str, dict[str, Any]]:
        """Return what :meth:`tell_ranks` stored last, by host."""
        return self._get_all(self._key("ranks"))

    def tell_links(self, field: str, value: object) -> None:
        """Store a field of what the nodes of this process's launch tell each other of their links, a JSON value."""
        self._execute("HSET", self._key("links"), field, json.dumps(value))

    def read_links(self) -> dict[str, Any]:
        """Return what :meth:`tell_links` stored last, by field."""
        return self._retry.call(lambda: self._get_all(self._key("links")))

    def keep(self, name: str, records: Sequence[object]) -> None:
        """Store records of the controller's, beyond launches and jobs."""
        self._execute("SET", self._endpoint.key(name), json.dumps(plain(records)))

    def kept(self, name: str, kind: type[_Record]) -> list[_Record]:
        """Return what :meth:`keep` stored last under a name, in this job or an earlier one."""
        return [record_of(kind, each) for each in json.loads(self._get(self._endpoint.key(name)) or "[]")]

    def ask(self, kind: RequestKind, body: Sequence[Any]) -> None:
        """Send a request to the controller."""
        text = json.dumps({"launch": as_adopted(self._launch), "node": own_node(), "body": list(body)})
        key = self._endpoint.key("requests")
        # A retry after a lost reply may store it twice; the second then concerns a launch that is over.
        self._execute("XADD", key, "MAXLEN", "~", str(_MAX_REQUESTS), "*", kind, text)

    def requests(self, after: str, wait_s: float) -> Iterator[tuple[str, Request]]:
        """Yield ``(id, request)`` for each request after the given id, waiting at most ``wait_s`` for the first."""
        for entry_id, fields in self._entries("requests", after, wait_s):
            yield entry_id.decode(), _request_of(fields)

    def last_request_id(self) -> str:
        """Return the id of the newest request, where a new reader begins; ``0-0`` if there is none."""
        newest = cast("Any", self._client.xrevrange(self._endpoint.key("requests"), count=1))
        return newest[0][0].decode() if newest else "0-0"

    def _entries(self, stream: str, after: str, wait_s: float) -> list[tuple[bytes, dict[bytes, bytes]]]:
        """Return the entries of a stream of the job after an id, waiting so long for the first one at most."""
        block_ms = max(1, int(wait_s * 1000)) if wait_s > 0 else None
        answer = cast("Any", self._client.xread({self._endpoint.key(stream): after}, block=block_ms))
        streams = answer.values() if isinstance(answer, dict) else [entries for _, entries in answer or []]
        # RESP3 wraps a stream's entries in another list.
        flat = (entries[0] if entries and isinstance(entries[0], list) else entries for entries in streams)
        return [entry for entries in flat for entry in entries]

    def _execute(self, name: str, key: str, *rest: Argument) -> None:
        self._retry.call(lambda: self._writer.execute([(name, key, *rest)]))

    def _key(self, name: str) -> str:
        """Return a key of this process's launch."""
        return self._endpoint.key(name, str(as_adopted(self._launch)))

    def _get(self, key: str) -> bytes | None:
        return cast("bytes | None", self._client.get(key))

    def _get_all(self, key: str) -> dict[str, Any]:
        found = {}
        for name, text in cast("dict[bytes, bytes]", self._client.hgetall(key)).items():
            with contextlib.suppress(ValueError, RecursionError):  # a process of the job may have stored anything
                found[name.decode()] = json.loads(text)
        return found


def _is_number(text: bytes) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _request_of(fields: Mapping[bytes, bytes]) -> Request:
    try:
        ((kind, text),) = fields.items()
        message = json.loads(text)
        about = int(message["launch"]), list(message["body"]), str(message.get("node", ""))
        request = Request(cast("RequestKind", kind.decode()), *about)
    except (ValueError, TypeError, KeyError) as error:
        raise UnknownRequestError(repr(fields)) from error
    if request.kind not in get_args(RequestKind):
        raise UnknownRequestError(repr(fields))
    return request


def nodes_in_use(client: redis.Redis, endpoint: Endpoint) -> set[str]:
    """Return the names of the nodes of the current launch; none before the first one."""
    launch = current_launch(client, endpoint)
    if launch is None:
        return set()
    try:
        return {node.hostname for node in Control(client, endpoint, launch).read_launch().nodes}
    except NoLaunchRecordError:  # it has begun and is not written yet
        return set()

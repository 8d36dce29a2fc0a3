"""The state server of a simulation: the commands that the controller and State use, and all that can happen to them.

A command may be lost on its way, its answer may be, either may come late, and the server may hang, die, or load its log
meanwhile. What was answered is in the log: a server that starts again has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import redis

from laggard.kvstore.client import fence
from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.errors import ServerStartError
from laggard.kvstore.server import process as server
from laggard.kvstore.server.process import StateServer
from laggard.kvstore.state import layout
from tests.simulation.modules import Popen, machine
from tests.simulation.processes import Process, here, step
from tests.simulation.scheduler import Thread, current

__all__ = ["Client", "Disk", "SimulatedServer"]

PORT = 6379
_LATENCY_S = 0.0005
_LOAD_S = 0.05
ENDPOINT = Endpoint("127.0.0.1", PORT, "job", "password")


@dataclass
class Disk:
    """The log of a state server, and what goes wrong with the server that has it.

    Attributes
    ----------
    data
        By key: text, hashes and streams.
    process
        The server's process; None while there is none.
    loading
        Whether it reads its log, and answers only that.
    latency_s
        The longest time that a command or an answer is on its way.
    lose_commands, lose_answers, repeats
        How many of the next commands get lost, get no answer, or (requests to the controller) are stored twice.
    load_s
        How long the next start takes.
    failing_starts
        How many of the next starts fail.
    on_commit
        Called with the launch and the key of each commit that is applied.
    pending, readers
        Whom to tell of a lost connection, and of a new entry in a stream.
    """

    data: dict[str, Any] = field(default_factory=dict)
    process: Process | None = None
    loading: bool = False
    latency_s: float = _LATENCY_S
    lose_commands: int = 0
    lose_answers: int = 0
    repeats: int = 0
    load_s: float = _LOAD_S
    failing_starts: int = 0
    on_commit: Callable[[int, str], None] = lambda *_: None
    pending: list[Callable[[], None]] = field(default_factory=list)
    readers: list[Callable[[], None]] = field(default_factory=list)

    def launch(self) -> int:
        """Return the launch that may write."""
        return int(self.data.get(fence.launch_key(ENDPOINT), b"-1"))

    def ask(self, launch: str, hosts: Sequence[str]) -> None:
        """Store a request for a relaunch without some hosts, as a process of the program does."""
        stream = self.data.setdefault(ENDPOINT.key("requests"), [])
        text = json.dumps({"launch": int(launch), "body": list(hosts)}).encode()
        stream.append((b"%d-0" % (len(stream) + 1), {b"reboot": text}))
        for waiter in self.readers:
            waiter()

    def counters(self) -> Mapping[str, bytes]:
        """Return what is in State, by key."""
        counters: Mapping[str, bytes] = self.data.get(ENDPOINT.key("state", "index"), {})
        return counters

    def speed_up(self) -> None:
        """Answer at once again."""
        self.latency_s = _LATENCY_S

    def calm(self) -> None:
        """Let nothing more go wrong."""
        self.speed_up()
        self.lose_commands = self.lose_answers = self.repeats = self.failing_starts = 0
        self.load_s = _LOAD_S

    def drop_connections(self) -> None:
        """End all connections, as when the server ends."""
        for drop in list(self.pending):
            drop()


class Client:
    """A connection to the server, as ``redis.Redis``."""

    def __init__(self, disk: Disk, timeout_s: float) -> None:
        self._disk = disk
        self._timeout_s = timeout_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass

    def _call(self, apply: Callable[[], Any]) -> Any:
        step()
        disk, thread = self._disk, current()
        assert thread is not None
        scheduler = thread.process.scheduler
        chance = scheduler.chance
        process = disk.process
        if process is None or process.ended:
            raise redis.ConnectionError("Error 111 connecting: Connection refused.")
        call = _Call(apply, disk, process, thread)
        if disk.lose_commands > 0:
            disk.lose_commands -= 1
            call.reset_after(chance.random() * disk.latency_s)
        else:
            scheduler.at(chance.random() * disk.latency_s, call.arrive)
        disk.pending.append(call.connection_lost)
        scheduler.block(self._timeout_s)
        disk.pending.remove(call.connection_lost)
        call.abandoned = True
        return call.result()

    def ping(self) -> Any:
        return self._call(lambda: True)

    def info(self, *_: str) -> Any:
        return self._call(lambda: {"used_memory": 0, "rdb_changes_since_last_save": 1})

    def bgsave(self, **_: bool) -> Any:
        return self._call(lambda: True)

    def get(self, key: str) -> Any:
        return self._call(lambda: self._disk.data.get(key))

    def set(self, key: str, value: Any) -> bool:
        self._call(lambda: self._disk.data.__setitem__(key, _bytes(value)))
        return True

    def hget(self, key: str, name: str) -> Any:
        return self._call(lambda: self._disk.data.get(key, {}).get(name))

    def hincrby(self, key: str, name: str, amount: int) -> Any:
        if (link := machine().links.get(here().host.name)) is not None and link.is_cut:
            here().scheduler.block(self._timeout_s)
            raise redis.TimeoutError("Timeout connecting to server")

        def apply() -> int:
            counts = self._disk.data.setdefault(key, {})
            counts[name.encode()] = _bytes(int(counts.get(name.encode(), b"0")) + amount)
            return int(counts[name.encode()])

        return self._call(apply)

    def hgetall(self, key: str) -> Any:
        return self._call(lambda: dict(self._disk.data.get(key, {})))

    def hkeys(self, key: str) -> Any:
        return self._call(lambda: [_bytes(name) for name in self._disk.data.get(key, {})])

    def hlen(self, key: str) -> Any:
        return self._call(lambda: len(self._disk.data.get(key, {})))

    def xrevrange(self, key: str, count: int = 1) -> Any:
        return self._call(lambda: self._disk.data.get(key, [])[::-1][:count])

    def xrange(self, key: str, *_: Any, **__: Any) -> Any:
        return self._call(lambda: list(self._disk.data.get(key, [])))

    def xread(self, streams: dict[str, str], block: int) -> list[Any]:
        ((key, after),) = streams.items()
        scheduler = here().scheduler
        until_s = scheduler.now_s + block / 1000

        def newer() -> list[Any]:
            return [entry for entry in self._disk.data.get(key, []) if _number(entry[0]) > _number(after.encode())]

        while True:
            if found := self._call(newer):
                return [(key.encode(), found)]
            if scheduler.now_s >= until_s:
                return []
            # It waits for the next entry, or for the end of the connection.
            thread = current()
            assert thread is not None
            waiter = partial(scheduler.wake, thread)
            self._disk.pending.append(waiter)
            self._disk.readers.append(waiter)
            scheduler.block(until_s - scheduler.now_s)
            self._disk.pending.remove(waiter)
            self._disk.readers.remove(waiter)

    def register_script(self, text: str) -> Callable[..., Any]:
        script: Callable[[Sequence[str], Sequence[Any]], Any] = {
            fence._BEGIN_LUA: self._begin,
            fence.EXECUTE_LUA: self._execute,
            layout._COMMIT_LUA: self._commit,
        }[text]
        return lambda keys, args: self._call(lambda: script(keys, args))

    # -- the scripts, as the server runs them: each in one step

    def _begin(self, keys: Sequence[str], args: Sequence[Any]) -> bytes | None:
        current_launch = self._disk.data.get(keys[0])
        assert args[1] == "", "a job's own server has no lock"
        if current_launch is not None and int(args[0]) <= int(current_launch):
            return bytes(current_launch)
        self._disk.data[keys[0]] = _bytes(args[0])
        return None

    def _fenced(self, keys: Sequence[str], args: Sequence[Any]) -> list[bytes] | None:
        launch = self._disk.data.get(keys[0])
        return None if launch == _bytes(args[0]) else [b"fenced", launch or b""]

    def _execute(self, keys: Sequence[str], args: Sequence[Any]) -> list[Any]:
        if fenced := self._fenced(keys, args):
            return fenced
        at = 1
        replies: list[Any] = [b"ok"]
        for key in keys[1:]:
            name, count = args[at], int(args[at + 1])
            rest = args[at + 2 : at + 2 + count]
            at += 2 + count
            if name == "SET" and not ("NX" in rest and key in self._disk.data):
                self._disk.data[key] = _bytes(rest[0])
                replies.append(b"OK")
            elif name == "SET":
                replies.append(b"")
            elif name == "XADD":
                kind, text = rest[-2:]
                stream = self._disk.data.setdefault(key, [])
                for _ in range(2 if self._disk.repeats > 0 else 1):
                    stream.append((b"%d-0" % (len(stream) + 1), {_bytes(kind): _bytes(text)}))
                self._disk.repeats = max(0, self._disk.repeats - 1)
                replies.append(stream[-1][0])
                for waiter in self._disk.readers:
                    waiter()
            elif name == "HSET":
                self._disk.data.setdefault(key, {})[_bytes(rest[0])] = _bytes(rest[1])
                replies.append(1)
            else:
                raise NotImplementedError(name)
        return replies

    def _commit(self, keys: Sequence[str], args: Sequence[Any]) -> list[Any]:
        if fenced := self._fenced(keys, args):
            return fenced
        _, index, meta, acknowledgement, *_ = keys
        data = self._disk.data
        if acknowledgement in data:
            return [b"ok", data[acknowledgement]]
        launch, _, _, _, is_upkeep, _, n_reads, name, key, _, count, by = args
        assert (is_upkeep, n_reads, name, count) == (0, 0, "increment", 1), "only single increments are simulated"
        counts = data.setdefault(meta, {})
        version = int(counts.get("commits", b"0")) + 1
        counts["commits"] = _bytes(version)
        counters = data.setdefault(index, {})
        before = counters.get(key, b"0 n0\n").split(b"n")[1]
        counters[key] = b"%d n%d\n" % (version, int(before) + int(by))
        data[acknowledgement] = _bytes(version)
        self._disk.on_commit(int(launch), str(key))
        return [b"ok", _bytes(version)]


class _Call:
    """One command on its way to the server, and its answer on the way back."""

    def __init__(self, apply: Callable[[], Any], disk: Disk, server: Process, thread: Thread) -> None:
        self._apply = apply
        self._disk = disk
        self._server = server
        self._thread = thread
        self._answer: list[Any] = []
        self._error: redis.RedisError = redis.TimeoutError("Timeout reading from socket")
        self.abandoned = False

    def arrive(self) -> None:
        """Run at the server, once it can."""
        if self._server.ended:
            self.connection_lost()
        elif self._server.halted:
            self._server.delayed.append(self.arrive)  # it is done even if nobody waits for it any more
        elif self._disk.loading:
            self._fail(redis.BusyLoadingError("LOADING the dataset in memory"))
        else:
            answer = self._apply()
            if self._disk.lose_answers > 0:
                self._disk.lose_answers -= 1
                self._fail(redis.ConnectionError("Connection closed by server."))
                return
            scheduler = self._thread.process.scheduler
            scheduler.at(scheduler.chance.random() * self._disk.latency_s, lambda: self._arrive_back(answer))

    def _arrive_back(self, answer: Any) -> None:
        if not self.abandoned and not self._server.ended:
            self._answer.append(answer)
            self._thread.process.scheduler.wake(self._thread)

    def reset_after(self, delay_s: float) -> None:
        """Lose the command on its way: the connection is reset."""
        self._thread.process.scheduler.at(delay_s, self.connection_lost)

    def connection_lost(self) -> None:
        """End without an answer."""
        self._fail(redis.ConnectionError("Connection closed by server."))

    def _fail(self, error: redis.RedisError) -> None:
        if not self.abandoned and not self._answer:
            self._error = error
            self._thread.process.scheduler.wake(self._thread)

    def result(self) -> Any:
        if not self._answer:
            raise self._error
        return self._answer[0]


class _Child:
    """The server's process, as ``laggard.system.child_process.ChildProcess``."""

    def __init__(self, disk: Disk) -> None:
        self.process = Popen(["valkey-server", "-"])
        self.process.process.tied = True
        self.pid = self.process.pid
        disk.process = self.process.process

    def last_output(self) -> str:
        return ""

    def output(self) -> str:
        return ""


class SimulatedServer(StateServer):
    """The product's own handle of its server, on a simulated process and a simulated log."""

    @classmethod
    def start(cls, directory: Path, *, job: str, **_: Any) -> StateServer:
        return cls._start(server._Plan(directory, job, "127.0.0.1", directory, None))

    @classmethod
    def _start(cls, plan: Any, *_: Any) -> StateServer:
        disk: Disk = machine().disk
        disk.loading = True
        child: Any = _Child(disk)
        process: Process = child.process.process
        process.on_end = lambda _: disk.drop_connections()
        if disk.failing_starts > 0:
            disk.failing_starts -= 1
            process.after(disk.load_s / 2, lambda: process.exit(1))
        load_s, disk.load_s = disk.load_s, _LOAD_S
        scheduler = process.scheduler
        loaded_s = scheduler.now_s + load_s
        while scheduler.now_s < loaded_s and not process.ended:
            thread = current()
            assert thread is not None
            process.waiting.append(thread)
            scheduler.block(loaded_s - scheduler.now_s)
        if process.ended:
            raise ServerStartError(f"it ended with code {process.exit_code}", "")
        disk.loading = False
        return cls(child, ENDPOINT, plan)


def _number(entry_id: bytes) -> int:
    return int(entry_id.partition(b"-")[0])


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()

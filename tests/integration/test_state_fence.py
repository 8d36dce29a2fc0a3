"""A process of an old launch cannot write."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import redis

from laggard.kvstore.client.fence import FencedWriter, begin_launch, current_launch
from laggard.kvstore.errors import FencedError, StaleLaunchError
from laggard.kvstore.server.process import StateServer
from laggard.kvstore.state.mapping import State, Transaction


@pytest.fixture
def client(state_server: StateServer) -> redis.Redis:
    client = state_server.endpoint.connect()
    client.flushall()
    return client


def test_the_launch_number_only_rises(client: redis.Redis, state_server: StateServer) -> None:
    endpoint = state_server.endpoint
    assert current_launch(client, endpoint) is None
    begin_launch(client, endpoint, 9)
    begin_launch(client, endpoint, 10)
    for launch in (10, 9, 0):
        with pytest.raises(StaleLaunchError, match=f"launch {launch} cannot begin after launch 10; use 11 or higher"):
            begin_launch(client, endpoint, launch)
    assert current_launch(client, endpoint) == 10


def test_a_negative_launch_is_refused(client: redis.Redis, state_server: StateServer) -> None:
    with pytest.raises(ValueError, match="launch -1 is negative"):
        begin_launch(client, state_server.endpoint, -1)


def test_only_one_of_many_can_begin_a_launch(client: redis.Redis, state_server: StateServer) -> None:
    outcomes: list[bool] = []
    gate = threading.Barrier(8)

    def begin() -> None:
        gate.wait()
        try:
            begin_launch(client, state_server.endpoint, 3)
        except StaleLaunchError:
            outcomes.append(False)
        else:
            outcomes.append(True)

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [False] * 7 + [True]


def in_transaction(change: Callable[[Transaction], object]) -> Callable[[State], object]:
    def write(state: State) -> None:
        with state.transaction() as t:
            change(t)

    return write


WRITES: dict[str, Callable[[State], object]] = {
    "assign": lambda state: state.__setitem__("a", 1),
    "assign a large value": lambda state: state.__setitem__("a", np.ones(1_000_000)),
    "delete": lambda state: state.__delitem__("a"),
    "append": lambda state: state.append("list", 1),
    "append a large value": lambda state: state.append("list", np.ones(1_000_000)),
    "pop": lambda state: state.pop("a"),
    "popitem": lambda state: state.popitem(),
    "setdefault": lambda state: state.setdefault("new", 1),
    "update": lambda state: state.update(a=1, b=2),
    "clear": lambda state: state.clear(),
    "update_with": lambda state: state.update_with(lambda t: t.__setitem__("a", 1)),
    "a transaction that assigns": in_transaction(lambda t: t.__setitem__("a", 1)),
    "a transaction that deletes": in_transaction(lambda t: t.__delitem__("a")),
    "a transaction that appends": in_transaction(lambda t: t.append("list", 1)),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_every_kind_of_write_of_an_old_launch_is_refused_and_changes_nothing(
    client: redis.Redis, state_server: StateServer, write: Callable[[State], object]
) -> None:
    endpoint = state_server.endpoint
    begin_launch(client, endpoint, 0)
    old = State(client, endpoint, 0)
    old.update({"a": "kept", "list": [1]})
    begin_launch(client, endpoint, 1)
    before = {name: client.dump(name) for name in client.keys()}  # noqa: SIM118 - a command, not a dict
    with pytest.raises(FencedError, match="a write of launch 0 was refused because launch 1 is the current one"):
        write(old)
    assert {name: client.dump(name) for name in client.keys()} == before  # noqa: SIM118


def test_a_transaction_that_was_open_when_the_next_launch_began_is_refused(
    client: redis.Redis, state_server: StateServer
) -> None:
    endpoint = state_server.endpoint
    begin_launch(client, endpoint, 0)
    state = State(client, endpoint, 0)

    def overtaken() -> None:
        with state.transaction() as t:
            t["a"] = 1
            begin_launch(client, endpoint, 1)

    with pytest.raises(FencedError):
        overtaken()
    assert "a" not in State(client, endpoint, 1)


def test_an_old_launch_may_still_read(client: redis.Redis, state_server: StateServer) -> None:
    begin_launch(client, state_server.endpoint, 0)
    State(client, state_server.endpoint, 0)["a"] = 1
    begin_launch(client, state_server.endpoint, 1)
    assert State(client, state_server.endpoint, 0)["a"] == 1


def test_no_write_counts_before_the_first_launch_or_of_a_future_one(
    client: redis.Redis, state_server: StateServer
) -> None:
    with pytest.raises(FencedError, match="no launch has begun"):
        State(client, state_server.endpoint, 0)["a"] = 1
    begin_launch(client, state_server.endpoint, 0)
    with pytest.raises(FencedError, match="launch 0 is the current one"):
        State(client, state_server.endpoint, 1)["a"] = 1


def test_a_fenced_writer_runs_commands_in_order(client: redis.Redis, state_server: StateServer) -> None:
    begin_launch(client, state_server.endpoint, 0)
    writer = FencedWriter(client, state_server.endpoint, 0)
    replies = writer.execute([("HSET", "h", "a", 1, "b", b"\0"), ("RPUSH", "l", "x"), ("DEL", "h")])
    assert replies == [2, 1, 1]
    [entry] = writer.execute([("XADD", "s", "*", "v", 1.5)])
    assert client.xrange("s") == [(entry, {b"v": b"1.5"})]


def test_a_fenced_writer_of_an_old_launch_writes_nothing(client: redis.Redis, state_server: StateServer) -> None:
    begin_launch(client, state_server.endpoint, 0)
    writer = FencedWriter(client, state_server.endpoint, 0)
    begin_launch(client, state_server.endpoint, 1)
    with pytest.raises(FencedError):
        writer.execute([("SET", "k", "v"), ("XADD", "s", "*", "a", "b")])
    assert client.exists("k", "s") == 0

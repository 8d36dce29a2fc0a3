"""A large transaction, cut into parts, is applied as a whole or not at all, whoever dies or loses an answer when."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.errors import ConflictError, FencedError
from laggard.kvstore.server.process import StateServer
from laggard.kvstore.state.mapping import State, Transaction
from laggard.kvstore.state.parts import Operation, StepLimits, cut
from laggard.kvstore.values.decoding import Value

KEYS = [f"k{n}" for n in range(8)]
BEFORE: dict[str, Value] = {"k0": 1, "k1": [1, b"x" * 300], "k2": b"y" * 300, "k3": "text", "other": 5}
CHUNK_BYTES = 100
SMALL_PARTS = StepLimits(part_size=3, part_bytes=1000, settled=2)
STEPS = st.lists(
    st.tuples(st.sampled_from("sdail"), st.sampled_from(KEYS), st.integers(0, 9) | st.binary(max_size=300)),
    min_size=4,
    max_size=14,
)
PIECES = st.lists(st.binary(max_size=40), max_size=9)
OPERATIONS = st.lists(
    st.one_of(
        st.builds(lambda key, piece: Operation("value", key, (piece,)), st.sampled_from(KEYS), st.binary(max_size=40)),
        st.builds(lambda key, pieces: Operation("append", key, pieces), st.sampled_from(KEYS), PIECES),
        st.builds(lambda key, pieces: Operation("list", key, pieces), st.sampled_from(KEYS), PIECES),
        st.builds(lambda key: Operation("increment", key, (1,)), st.sampled_from(KEYS)),
        st.builds(lambda key: Operation("delete", key), st.sampled_from(KEYS)),
    ),
    max_size=8,
    unique_by=lambda operation: operation.key,
)
SERVER_SETTINGS = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    derandomize=True,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateServer]:
    with StateServer.start(tmp_path_factory.mktemp("state"), job="parts", fsync="no") as running:
        yield running


# The parts


@given(reads=st.dictionaries(st.sampled_from(KEYS), st.just("1")), operations=OPERATIONS)
def test_the_parts_together_do_what_the_transaction_does(reads: dict[str, str], operations: list[Operation]) -> None:
    parts = cut(reads, operations, SMALL_PARTS)
    assert {key: version for part in parts for key, version in part.reads.items()} == reads
    done: dict[str, tuple[str, list[Any]]] = {}
    for operation in (operation for part in parts for operation in part.operations):
        name, pieces = done.get(operation.key, (operation.name, []))
        assert operation.key not in done or operation.name == "append"
        done[operation.key] = (name, [*pieces, *operation.pieces])
    assert done == {operation.key: (operation.name, list(operation.pieces)) for operation in operations}


@given(reads=st.dictionaries(st.sampled_from(KEYS), st.just("1")), operations=OPERATIONS)
def test_no_part_is_large_and_what_others_wait_for_comes_last(
    reads: dict[str, str], operations: list[Operation]
) -> None:
    parts = cut(reads, operations, SMALL_PARTS)
    for part in parts:
        things = [operation.size for operation in part.operations] + [1 for _ in part.reads]
        assert sum(things) <= 3 or len(things) == 1
    waits = [part.needs_lock for part in parts]
    assert waits == sorted(waits)


# On a server


class Cut(Exception):  # noqa: N818
    """The client dies, or its connection does."""


class Counted:
    """A script of the committer; calls one of `hooks` before or after each of its runs."""

    def __init__(self, script: Any, runs: list[str], hook: Any) -> None:
        self._script = script
        self._runs = runs
        self._hook = hook

    def __call__(self, **arguments: Any) -> Any:
        number = len(self._runs)
        self._runs.append("")
        self._hook(number, "before")
        reply = self._script(**arguments)
        self._hook(number, "after")
        return reply


def hooked(state: State, hook: Any) -> list[str]:
    runs: list[str] = []
    layout: Any = state._layout
    committer = layout._committer
    committer._commit_script = Counted(committer._commit_script, runs, hook)
    committer._settle_script = Counted(committer._settle_script, runs, hook)
    return runs


def apply(t: Transaction | dict[str, Value], steps: list[tuple[str, str, Value]]) -> None:
    """Do the same to a transaction or a dict; steps that the dict's contents do not allow are left out."""
    for kind, key, value in steps:
        if kind == "s":
            t[key] = value
        elif kind == "d":
            t.pop(key, None)
        elif kind == "l":
            t[key] = [value, value, value, value]
        elif kind == "i":
            if type(t.get(key, 0)) is int and type(value) is int:
                t.increment(key, value) if isinstance(t, Transaction) else t.update({key: t.get(key, 0) + value})
        elif type(t.get(key, [])) is list:
            t.append(key, value) if isinstance(t, Transaction) else t.update({key: [*t.get(key, []), value]})


def fresh(client: redis.Redis, server: StateServer) -> State:
    client.flushall()
    begin_launch(client, server.endpoint, 0)
    state = State(client, server.endpoint, 0, chunk_bytes=CHUNK_BYTES, limits=SMALL_PARTS, retry_for_s=5)
    state.update(BEFORE)
    return state


def contents(state: State) -> dict[str, Value]:
    return {key: state[key] for key in state}


def commit(state: State, steps: list[tuple[str, str, Value]]) -> None:
    with state.transaction() as t:
        apply(t, steps)


def expected(steps: list[tuple[str, str, Value]]) -> dict[str, Value]:
    after = dict(BEFORE)
    apply(after, steps)
    return after


@given(steps=STEPS, dies_at=st.integers(0, 25), when=st.sampled_from(["before", "after"]))
@SERVER_SETTINGS
def test_a_client_that_dies_at_any_moment_leaves_all_of_its_transaction_or_nothing(
    server: StateServer, steps: list[tuple[str, str, Value]], dies_at: int, when: str
) -> None:
    after = expected(steps)
    with server.endpoint.connect() as client:
        other = fresh(client, server)
        mine = State(client, server.endpoint, 0, chunk_bytes=CHUNK_BYTES, limits=SMALL_PARTS)

        def hook(number: int, moment: str) -> None:
            if (number, moment) == (dies_at, when):
                raise Cut

        hooked(mine, hook)
        with suppress(Cut):
            commit(mine, steps)
        read_singly = {key: other[key] for key in [*KEYS, "other"] if key in other}
        found = contents(other)
        assert found == read_singly
        assert found in (BEFORE, after)
        # Whoever goes on does so on what was there, and nothing of the dead one comes up later.
        client.delete(server.endpoint.key("state", "lock"))  # which expires
        other.append("k7" if isinstance(found.get("k7", []), list) else "new", 1)
        other["k1"] = 7
        changed = {**found, "k1": 7}
        name = "k7" if isinstance(found.get("k7", []), list) else "new"
        changed[name] = [*found.get(name, []), 1]
        assert contents(other) == changed
        begin_launch(client, server.endpoint, 1)
        later = State(client, server.endpoint, 1, chunk_bytes=CHUNK_BYTES, limits=SMALL_PARTS)
        later["large"] = b"z" * 300
        del later["large"]
        assert contents(later) == changed
        later.clear()
        left = {name.decode().split(":state:")[1] for name in client.keys("laggard:*:state:*")}
        assert {name for name in left if not name.startswith("ack:")} == {"meta"}


@given(steps=STEPS, lost=st.sets(st.integers(0, 25)))
@SERVER_SETTINGS
def test_a_transaction_whose_answers_are_lost_is_applied_once(
    server: StateServer, steps: list[tuple[str, str, Value]], lost: set[int]
) -> None:
    with server.endpoint.connect() as client:
        other = fresh(client, server)
        before = other.commits()
        mine = State(client, server.endpoint, 0, chunk_bytes=CHUNK_BYTES, limits=SMALL_PARTS)

        def hook(number: int, moment: str) -> None:
            if number in lost and moment == "after":
                raise redis.ConnectionError("cut")

        hooked(mine, hook)
        with mine.transaction() as t:
            apply(t, steps)
        assert contents(other) == expected(steps)
        assert other.commits() - before == bool(t._writes)


@given(steps=STEPS, key=st.sampled_from(KEYS), at=st.integers(0, 25))
@SERVER_SETTINGS
def test_a_reader_or_writer_between_two_parts_sees_all_or_nothing_and_loses_nothing(
    server: StateServer, steps: list[tuple[str, str, Value]], key: str, at: int
) -> None:
    """The writer does not wait for a lock: it would be this thread's own."""
    after = expected(steps)
    with server.endpoint.connect() as client:
        other = fresh(client, server)
        mine = State(client, server.endpoint, 0, chunk_bytes=CHUNK_BYTES, limits=SMALL_PARTS)
        reads: list[dict[str, Value]] = []
        wrote: list[bool] = []

        def hook(number: int, moment: str) -> None:
            if moment == "after":
                reads.append({k: other[k] for k in [*KEYS, "other"] if k in other})
                if number == at and not client.exists(server.endpoint.key("state", "lock")):
                    wrote.append(reads[-1] == after)
                    other["other"] = other["other"] + 1
                    other.discard(key)

        hooked(mine, hook)
        try:
            commit(mine, steps)
            failed = False
        except ConflictError:  # it had read the key that was deleted
            failed = True
        own_write = {"other": BEFORE["other"] + 1}
        states = [before_or_after(each, own_write, key) for each in (BEFORE, after)]
        allowed = [BEFORE, after, *states]
        if wrote and not failed and not wrote[0]:  # deleted in between, then written by what came later
            late = {k: v for k, v in {**BEFORE, **own_write}.items() if k != key}
            with suppress(KeyError, TypeError):
                apply(late, steps)
                allowed.append(late)
        assert all(each in allowed for each in reads)
        assert contents(other) in allowed


def before_or_after(found: dict[str, Value], own_write: dict[str, Value], key: str) -> dict[str, Value]:
    return {k: v for k, v in {**found, **own_write}.items() if k != key}


def test_a_part_of_an_old_launch_is_refused_and_the_next_launch_deletes_the_others(server: StateServer) -> None:
    with server.endpoint.connect() as client:
        other = fresh(client, server)
        mine = State(client, server.endpoint, 0, chunk_bytes=CHUNK_BYTES, limits=SMALL_PARTS)

        def hook(number: int, moment: str) -> None:
            if (number, moment) == (2, "after"):
                begin_launch(client, server.endpoint, 1)

        hooked(mine, hook)
        with pytest.raises(FencedError):
            mine.update(dict.fromkeys(KEYS, 9))
        assert contents(other) == BEFORE
        assert client.keys("laggard:*:state:staged:*")
        State(client, server.endpoint, 1, chunk_bytes=CHUNK_BYTES, limits=SMALL_PARTS)["large"] = b"z" * 300
        assert not client.keys("laggard:*:state:staged:*")


def test_a_transaction_that_paused_for_longer_than_its_lock_lasts_is_refused_whole(server: StateServer) -> None:
    with server.endpoint.connect() as client:
        other = fresh(client, server)
        mine = State(client, server.endpoint, 0, chunk_bytes=CHUNK_BYTES, limits=SMALL_PARTS)

        def hook(number: int, moment: str) -> None:
            if (number, moment) == (1, "after"):
                client.delete(server.endpoint.key("state", "lock"))
                other.increment("k0")

        hooked(mine, hook)
        with pytest.raises(ConflictError, match="while this one paused"):
            increment_all(mine)
        assert contents(other) == {**BEFORE, "k0": 2}


def increment_all(state: State) -> None:
    with state.transaction() as t:
        for key in ("k0", *KEYS[4:]):
            t.increment(key)


def test_a_commit_waits_for_the_lock_of_a_large_transaction(server: StateServer) -> None:
    with server.endpoint.connect() as client:
        other = fresh(client, server)
        client.set(server.endpoint.key("state", "lock"), "0.someone", px=300)
        other["k0"] = 2
        assert other["k0"] == 2
        assert not client.exists(server.endpoint.key("state", "lock"))


def test_parts_that_a_server_has_lost_are_sent_again(server: StateServer) -> None:
    """A server that does not write each commit to disk at once loses the last moments when it is killed."""
    with server.endpoint.connect() as client:
        other = fresh(client, server)
        mine = State(client, server.endpoint, 0, chunk_bytes=CHUNK_BYTES, limits=SMALL_PARTS)

        def hook(number: int, moment: str) -> None:
            if (number, moment) == (4, "after"):
                (staged,) = client.keys("laggard:*:state:staged:*")
                client.delete(staged)

        runs = hooked(mine, hook)
        mine.update(dict.fromkeys(KEYS, 9))
        assert contents(other) == {**BEFORE, **dict.fromkeys(KEYS, 9)}
        assert len(runs) > len(KEYS) + 5


def test_what_a_process_that_is_gone_has_staged_is_deleted_after_an_hour(server: StateServer) -> None:
    with server.endpoint.connect() as client:
        other = fresh(client, server)
        mine = State(client, server.endpoint, 0, chunk_bytes=CHUNK_BYTES, limits=SMALL_PARTS)

        def hook(number: int, moment: str) -> None:
            if (number, moment) == (4, "before"):
                raise Cut

        hooked(mine, hook)
        with pytest.raises(Cut):
            mine.update({key: [b"x" * 300] for key in KEYS})
        opened = server.endpoint.key("state", "open")
        other.update(dict.fromkeys(KEYS, 1))
        assert client.hlen(opened) == 1, "it may go on yet"
        (name,) = client.hkeys(opened)
        client.hincrby(opened, name.decode(), -3601)
        other.update(dict.fromkeys(KEYS, 2))
        assert not client.keys("laggard:*:state:[sol]*")

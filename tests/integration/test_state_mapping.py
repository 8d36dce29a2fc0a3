"""State on a real server: large values, conflicts, damage, and a server that goes away."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import redis

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.errors import (
    ConflictError,
    CorruptValueError,
    LargeTransactionError,
    NotACounterError,
    NotAListError,
    StateFullError,
    StateUnavailableError,
    UnsupportedValueError,
)
from laggard.kvstore.server.process import StateServer
from laggard.kvstore.state.layout import Layout
from laggard.kvstore.state.mapping import State, Transaction

# Bounds a hang only.
DEADLINE_S = 20.0
CHUNK_BYTES = 1 << 16
LARGE = np.arange(100_000)  # 14 chunks


@pytest.fixture
def client(state_server: StateServer) -> Iterator[redis.Redis]:
    with state_server.endpoint.connect() as client:
        client.flushall()
        client.config_set("maxmemory", 0)
        begin_launch(client, state_server.endpoint, 0)
        yield client


@pytest.fixture
def state(client: redis.Redis, state_server: StateServer) -> State:
    return State(client, state_server.endpoint, 0, chunk_bytes=CHUNK_BYTES)


@pytest.fixture
def theirs(client: redis.Redis, state_server: StateServer) -> State:
    """The same State, in another process."""
    return State(client, state_server.endpoint, 0, chunk_bytes=CHUNK_BYTES)


def layout_of(state: State) -> Layout:
    assert isinstance(state._layout, Layout)
    return state._layout


def chunks(client: redis.Redis) -> list[bytes | str]:
    return sorted(client.keys("laggard:{test}:state:chunk:*"))


# Large values


def test_a_large_value_is_split_into_chunks_and_read_back(client: redis.Redis, state: State) -> None:
    state["a"] = {"x": LARGE, "y": [LARGE.astype(np.float32), "text"]}
    assert max(client.strlen(name) for name in chunks(client)) <= CHUNK_BYTES
    assert np.array_equal(state["a"]["x"], LARGE)
    assert state["a"]["y"][1] == "text"


def test_a_value_of_many_small_parts_is_split_too(client: redis.Redis, state: State) -> None:
    losses = [n / 7 for n in range(50_000)]
    state["losses"] = losses
    state["more"] = {"a": losses}
    assert len(chunks(client)) > 10
    assert (state["losses"], state["more"]) == (losses, {"a": losses})


def test_replacing_deleting_and_clearing_free_the_chunks(client: redis.Redis, state: State) -> None:
    state["a"] = LARGE
    first = chunks(client)
    state["a"] = LARGE
    assert not set(first) & set(chunks(client))
    assert len(first) == len(chunks(client))
    state.append("list", LARGE)
    state.append("list", LARGE)
    del state["a"]
    assert len(chunks(client)) == 2 * len(first)
    state["list"] = [LARGE]
    assert len(chunks(client)) == len(first)
    state.clear()
    assert not client.keys("laggard:{test}:state:[cil]*")


def test_a_flipped_bit_in_a_chunk_is_noticed(client: redis.Redis, state: State) -> None:
    state["a"] = LARGE
    name = chunks(client)[0]
    client.setbit(name, 5000, 1 - client.getbit(name, 5000))
    with pytest.raises(CorruptValueError, match=r"'a' is damaged \(chunk \d+ of 14 does not match its checksum\)"):
        state["a"]


def test_a_missing_chunk_is_noticed(client: redis.Redis, state: State) -> None:
    state["a"] = LARGE
    client.delete(chunks(client)[3])
    with pytest.raises(CorruptValueError, match="is missing"):
        state["a"]
    with pytest.raises(CorruptValueError, match="is missing"), state.transaction() as t:
        t["a"]


def test_a_flipped_bit_in_a_small_value_is_noticed(client: redis.Redis, state: State) -> None:
    state["a"] = "some text"
    index = "laggard:{test}:state:index"
    stored = client.hget(index, "a")
    assert isinstance(stored, bytes)
    client.hset(index, "a", stored.replace(b"some", b"sane").decode())
    with pytest.raises(CorruptValueError, match="'a' is damaged"):
        state["a"]


def test_a_list_with_a_missing_part_is_noticed(client: redis.Redis, state: State) -> None:
    state["a"] = [1]
    state.append("a", 2)
    client.rpop(client.keys("laggard:{test}:state:list:*")[0])
    with pytest.raises(CorruptValueError, match="part of its list is missing"):
        state["a"]


def test_a_commit_whose_chunks_did_not_arrive_is_refused_whole(
    client: redis.Redis, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    state["a"] = 1
    upload = Layout._upload

    def lose_one(self: Layout, *args: object) -> object:
        manifest = upload(self, *args)  # type: ignore[arg-type]
        client.delete(chunks(client)[0])
        return manifest

    monkeypatch.setattr(Layout, "_upload", lose_one)
    with pytest.raises(CorruptValueError, match="its upload is incomplete"):
        state.update(a=2, b=LARGE)
    assert dict(state) == {"a": 1}
    assert chunks(client) == []


def test_chunks_of_an_interrupted_upload_expire(client: redis.Redis, state_server: StateServer, state: State) -> None:
    state["kept"] = LARGE
    kept = chunks(client)
    interrupted = State(client, state_server.endpoint, 0, chunk_bytes=CHUNK_BYTES)
    layout_of(interrupted)._commit_script = None  # type: ignore[assignment]
    with pytest.raises(TypeError):
        interrupted["torn"] = LARGE
    torn = set(chunks(client)) - set(kept)
    assert torn
    assert all(0 < client.ttl(name) <= 3600 for name in torn)
    assert all(client.ttl(name) == -1 for name in kept)


def test_a_reader_beside_a_writer_sees_one_version_or_another_never_a_mix(
    state: State, state_server: StateServer
) -> None:
    state["a"] = np.zeros(50_000)
    done = threading.Event()
    seen: set[float] = set()
    mixed: list[object] = []

    def read() -> None:
        reader = State(state_server.endpoint.connect(), state_server.endpoint, 0)
        while not done.is_set():
            values = set(reader["a"].tolist())
            seen.update(values)
            if len(values) != 1:
                mixed.append(values)

    thread = threading.Thread(target=read)
    thread.start()
    deadline = time.monotonic() + DEADLINE_S
    version = 0
    while len(seen) < 10 and time.monotonic() < deadline:
        version += 1
        state["a"] = np.full(50_000, float(version))
    done.set()
    thread.join()
    assert not mixed
    assert len(seen) >= 10


# Lists, keys, values


def test_append_needs_a_list(state: State) -> None:
    state["n"] = 1
    with pytest.raises(NotAListError, match="cannot append to 'n': its value is not a list"):
        state.append("n", 2)


def test_a_transaction_that_would_keep_others_waiting_is_refused_whole(state: State) -> None:
    with pytest.raises(LargeTransactionError, match="200001 keys and items, where at most 200000"):
        state.update(dict.fromkeys(map(str, range(200_001)), 1))
    assert len(state) == 0


def test_a_transaction_of_many_arrays_is_read_back(client: redis.Redis, state: State) -> None:
    arrays = {f"{n}": np.full(25_000, float(n)) for n in range(50)}
    state.update(arrays)
    for key, array in arrays.items():
        np.testing.assert_array_equal(state[key], array)
    assert client.keys("laggard:*:state:chunk:*"), "in one script they would keep others waiting"


def test_a_long_list_comes_back_in_order(state: State) -> None:
    state["a"] = [-2, -1]
    for start in range(0, 1000, 100):
        with state.transaction() as t:
            for n in range(start, start + 100):
                t.append("a", n)
    assert state["a"] == list(range(-2, 1000))


def test_an_increment_needs_an_integer(state: State) -> None:
    state["n"] = 1.0
    with pytest.raises(NotACounterError, match="cannot increment 'n': it is not an integer"):
        state.increment("n")
    state["n"] = 2**53 - 2
    state.increment("n")
    with pytest.raises(NotACounterError):
        state.increment("n")
    assert state["n"] == 2**53 - 1


def test_increments_do_not_conflict_and_none_is_lost(state: State) -> None:
    def count() -> None:
        for n in range(100):
            with state.transaction() as t:
                t.increment("n", n)
                t.append("log", n)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert state["n"] == 4 * sum(range(100))
    assert len(state["log"]) == 400


def test_append_does_not_conflict_with_append(state: State, theirs: State) -> None:
    with state.transaction() as t:
        t.append("a", 1)
        theirs.append("a", 0)
    assert state["a"] == [0, 1]


@pytest.mark.parametrize("key", ["", "\ud800"])
def test_a_key_that_is_not_text_is_refused_on_writing_and_absent_on_reading(state: State, key: str) -> None:
    with pytest.raises(ValueError, match="is not a valid key of State"):
        state[key] = 1
    with pytest.raises(KeyError):
        state[key]
    assert key not in state
    with state.transaction() as t:
        assert key not in t
        assert t.get(key) is None
        t["other"] = 1


@pytest.mark.parametrize("key", ["a:b", "{x}", "\0\r\n", "𝄞" * 1000, " "])
def test_any_other_text_is_a_key(state: State, key: str) -> None:
    state[key] = 1
    assert list(state) == [key]


def test_an_unsupported_value_fails_where_it_is_assigned_and_nothing_is_committed(state: State) -> None:
    def attempt() -> None:
        with state.transaction() as t:
            t["fine"] = 1
            t["bad"] = object()

    with pytest.raises(UnsupportedValueError, match="'bad'"):
        attempt()
    assert len(state) == 0


def test_a_transaction_copies_an_array_when_it_is_assigned(state: State) -> None:
    buffer = np.zeros(100_000)
    with state.transaction() as t:
        for n in range(3):
            buffer[:] = n
            t.append("a", buffer)
            t["last"] = buffer
        buffer[:] = 99
    assert [array[0] for array in state["a"]] == [0, 1, 2]
    assert state["last"][0] == 2


def test_a_value_that_was_read_is_a_copy(state: State) -> None:
    state["a"] = np.zeros(3)
    state["a"][0] = 1
    assert state["a"][0] == 0


def test_a_transaction_that_is_over_accepts_nothing_more(state: State) -> None:
    with state.transaction() as t:
        t["a"] = 1
    with pytest.raises(RuntimeError, match="this transaction is over"):
        t["a"] = 2


# Conflicts


def test_update_with_retries_after_a_conflict(state: State, theirs: State) -> None:
    runs: list[int] = []

    def change(t: Transaction) -> str:
        n = t.get("n", 0)
        if not runs:
            theirs["n"] = 10
        runs.append(n)
        t["n"] = n + 1
        return "done"

    assert state.update_with(change) == "done"
    assert (runs, state["n"]) == ([0, 10], 11)


def test_update_with_gives_up_after_its_attempts(state: State, theirs: State) -> None:
    def change(t: Transaction) -> None:
        t["m"] = t.get("n", 0)
        theirs["n"] = theirs.get("n", 0) + 1

    with pytest.raises(ConflictError, match="another transaction changed 'n' first"):
        state.update_with(change, attempts=3)
    assert dict(state) == {"n": 3}


def test_upkeep_is_not_counted_as_work_of_the_program(state: State, theirs: State) -> None:
    state["a"] = 1
    theirs.update_with(lambda t: t.__setitem__("b", 2), is_upkeep=True)
    with state.transaction(is_upkeep=True) as t:
        t["c"] = t["b"]
    assert (dict(state), state.commits()) == ({"a": 1, "b": 2, "c": 2}, 1)


def test_a_read_only_transaction_is_checked_but_not_counted(state: State, theirs: State) -> None:
    state["a"] = state["b"] = 1
    before = state.commits()
    with state.transaction() as t:
        assert t["a"] == t["b"]
    assert state.commits() == before

    def torn_read() -> None:
        with state.transaction() as t:
            t["a"]
            theirs["a"] = 2
            t["b"]

    with pytest.raises(ConflictError):
        torn_read()


def increment(endpoint: Endpoint, times: int) -> None:
    state = State(endpoint.connect(), endpoint, 0)
    for _ in range(times):

        def change(t: Transaction) -> None:
            t["n"] = t.get("n", 0) + 1
            t.append("log", os.getpid())

        state.update_with(change, attempts=1000)


def test_no_increment_of_several_processes_is_lost(state: State, state_server: StateServer) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=increment, args=(state_server.endpoint, 50)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(DEADLINE_S)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert state["n"] == 150
    assert sorted(state["log"].count(worker.pid) for worker in workers) == [50, 50, 50]


# A server that goes away


def test_a_commit_whose_reply_was_lost_is_applied_once(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    script = layout_of(state)._commit_script
    lost = iter([True, True, False])

    def answer_lost(**kwargs: object) -> object:
        reply = script(**kwargs)  # type: ignore[arg-type]
        if next(lost):
            raise redis.ConnectionError("cut")
        return reply

    monkeypatch.setattr(layout_of(state), "_commit_script", answer_lost)
    state.append("a", 1)
    assert state["a"] == [1]
    assert state.commits() == 1


def test_a_commit_is_remembered_until_its_thread_has_got_the_answer_however_long_it_sleeps(state: State) -> None:
    """A process that is stopped between two attempts may go on days later."""
    client = layout_of(state)._client
    remembered = layout_of(state)._prefix + "ack:*"

    def expiries_s() -> list[int]:
        return sorted(client.ttl(name) for name in client.scan_iter(match=remembered))

    state["n"] = 1
    (newest_s,) = expiries_s()
    assert newest_s > 6 * 86_400
    state["n"]
    state.increment("m")
    with state.transaction() as transaction:
        transaction["n"]  # which writes nothing, and so leaves nothing to remember
    former_s, newest_s = expiries_s()
    assert former_s < 3600
    assert newest_s > 6 * 86_400
    state["n"] = 2
    assert [each > 6 * 86_400 for each in expiries_s()] == [False, False, True]


def test_a_client_survives_a_restart_of_the_server_and_applies_every_commit_once(tmp_path: Path) -> None:
    server = StateServer.start(tmp_path, job="a")
    with server.endpoint.connect() as client:
        begin_launch(client, server.endpoint, 0)
        state = State(client, server.endpoint, 0, retry_for_s=DEADLINE_S)
        restarted: list[StateServer] = []

        def restart() -> None:
            os.kill(server.pid, signal.SIGKILL)
            server.wait_exit(DEADLINE_S)
            restarted.append(StateServer.start(tmp_path, job="a", port=server.endpoint.port))

        thread = threading.Thread(target=restart)
        for n in range(200):
            if n == 50:
                thread.start()
            with state.transaction() as t:
                t["n"] = t.get("n", 0) + 1
                t.append("log", n)
        thread.join()
        assert (state["n"], state["log"], state.commits()) == (200, list(range(200)), 200)
    restarted[0].stop()


def test_a_server_that_is_gone_is_named_once_the_retries_are_over(tmp_path: Path) -> None:
    with StateServer.start(tmp_path, job="a") as server:
        state = State(server.endpoint.connect(), server.endpoint, 0, retry_for_s=0.2)
    began = time.monotonic()
    with pytest.raises(StateUnavailableError, match=f"no answer from the state server at {server.endpoint.address}"):
        state["a"]
    assert time.monotonic() - began < DEADLINE_S


def test_a_wrong_password_is_reported_at_once(state_server: StateServer) -> None:
    endpoint = state_server.endpoint
    wrong = Endpoint(endpoint.host, endpoint.port, endpoint.job, "wrong")
    with pytest.raises(StateUnavailableError, match=r"(?i)invalid username-password|wrongpass"):
        State(wrong.connect(), wrong, 0, retry_for_s=600)["a"]


def test_a_server_without_memory_keeps_the_last_commit_and_names_the_way_out(client: redis.Redis, state: State) -> None:
    state["a"] = 1
    client.config_set("maxmemory", 1)
    with pytest.raises(
        StateFullError, match=r"memory is used up\); State is as of the last commit: delete keys that are"
    ):
        state.update(a=2, b=3)
    with pytest.raises(StateFullError):
        state["large"] = LARGE
    with pytest.raises(StateFullError):
        state.update({f"{n}": n for n in range(2000)})
    client.config_set("maxmemory", 0)
    assert dict(state) == {"a": 1}
    assert not client.keys("laggard:{test}:state:[cso]*")


def test_a_server_without_memory_is_freed_by_deleting_and_can_begin_a_launch(
    client: redis.Redis, state: State, state_server: StateServer
) -> None:
    state.update({f"{n}": n for n in range(2000)})
    client.config_set("maxmemory", 1)
    del state["7"]
    assert len(state) == 1999
    state.clear()
    assert len(state) == 0
    begin_launch(client, state_server.endpoint, 1)


def test_a_server_is_given_a_limit_on_its_memory(tmp_path: Path) -> None:
    with StateServer.start(tmp_path, job="a") as server, server.endpoint.connect() as client:
        assert 0 < int(client.config_get("maxmemory")["maxmemory"]) < psutil.virtual_memory().total
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}

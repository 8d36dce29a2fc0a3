"""A transaction is applied as a whole or not at all, whoever dies or loses an answer when."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.server.process import StateServer
from laggard.kvstore.state.mapping import State, Transaction
from laggard.kvstore.values.decoding import Value

KEYS = [f"k{n}" for n in range(8)]
BEFORE: dict[str, Value] = {"k0": 1, "k1": [1, b"x" * 300], "k2": b"y" * 300, "k3": "text", "other": 5}
CHUNK_BYTES = 100
STEPS = st.lists(
    st.tuples(st.sampled_from("sdail"), st.sampled_from(KEYS), st.integers(0, 9) | st.binary(max_size=300)),
    min_size=4,
    max_size=14,
)
SERVER_SETTINGS = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    derandomize=True,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateServer]:
    with StateServer.start(tmp_path_factory.mktemp("state"), job="commits") as running:
        yield running


class Cut(Exception):  # noqa: N818
    """The client dies, or its connection does."""


class Counted:
    """The script of the committer; calls a hook before and after each of its runs."""

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
    layout._commit_script = Counted(layout._commit_script, runs, hook)
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
    state = State(client, server.endpoint, 0, chunk_bytes=CHUNK_BYTES, retry_for_s=5)
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


@given(steps=STEPS, when=st.sampled_from(["before", "after"]))
@SERVER_SETTINGS
def test_a_client_that_dies_at_any_moment_leaves_all_of_its_transaction_or_nothing(
    server: StateServer, steps: list[tuple[str, str, Value]], when: str
) -> None:
    after = expected(steps)
    with server.endpoint.connect() as client:
        other = fresh(client, server)
        mine = State(client, server.endpoint, 0, chunk_bytes=CHUNK_BYTES)

        def hook(_: int, moment: str) -> None:
            if moment == when:
                raise Cut

        hooked(mine, hook)
        with suppress(Cut):
            commit(mine, steps)
        read_singly = {key: other[key] for key in [*KEYS, "other"] if key in other}
        found = contents(other)
        assert found == read_singly
        assert found == (after if when == "after" else BEFORE)
        # Whoever goes on does so on what was there, and nothing of the dead one comes up later.
        other.append("k7" if isinstance(found.get("k7", []), list) else "new", 1)
        other["k1"] = 7
        changed = {**found, "k1": 7}
        name = "k7" if isinstance(found.get("k7", []), list) else "new"
        changed[name] = [*found.get(name, []), 1]
        assert contents(other) == changed
        begin_launch(client, server.endpoint, 1)
        later = State(client, server.endpoint, 1, chunk_bytes=CHUNK_BYTES)
        later["large"] = b"z" * 300
        del later["large"]
        assert contents(later) == changed
        later.clear()
        left = {name.decode().split(":state:")[1] for name in client.keys("laggard:*:state:*")}
        assert {name for name in left if not name.startswith("ack:")} == {"meta"}


@given(steps=STEPS, lost=st.sets(st.integers(0, 3)))
@SERVER_SETTINGS
def test_a_transaction_whose_answers_are_lost_is_applied_once(
    server: StateServer, steps: list[tuple[str, str, Value]], lost: set[int]
) -> None:
    with server.endpoint.connect() as client:
        other = fresh(client, server)
        before = other.commits()
        mine = State(client, server.endpoint, 0, chunk_bytes=CHUNK_BYTES)

        def hook(number: int, moment: str) -> None:
            if number in lost and moment == "after":
                raise redis.ConnectionError("cut")

        hooked(mine, hook)
        with mine.transaction() as t:
            apply(t, steps)
        assert contents(other) == expected(steps)
        assert other.commits() - before == bool(t._writes)

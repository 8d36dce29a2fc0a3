"""State compared with a dict: the same operations leave the same contents."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.errors import ConflictError, NotACounterError, NotAListError
from laggard.kvstore.server.process import StateServer
from laggard.kvstore.state.layout import MAX_COUNT
from laggard.kvstore.state.mapping import State
from laggard.kvstore.values.codec import encode
from laggard.kvstore.values.decoding import Value
from tests.local import fresh_local_state

KEYS = st.sampled_from(["a", "b", "ü", "two words"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=300)
# Half of these are larger than a chunk in this test.
ARRAYS = st.integers(0, 60).map(lambda size: np.arange(size, dtype=np.int32))
ITEMS = SCALARS | ARRAYS
VALUES = ITEMS | st.lists(ITEMS, max_size=3) | st.dictionaries(st.text(max_size=3), ITEMS, max_size=3)
CHUNK_BYTES = 100


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateServer]:
    with StateServer.start(tmp_path_factory.mktemp("state"), job="model") as running:
        yield running


def same(left: Value, right: Value) -> bool:
    return encode("", left).joined() == encode("", right).joined()


class Model(RuleBasedStateMachine):
    """Two clients of one State beside a dict."""

    def __init__(self, mine: State, theirs: State) -> None:
        super().__init__()
        self.mine = mine
        self.theirs = theirs
        self.model: dict[str, Value] = {}
        self.commits = 0

    def model_append(self, key: str, item: Value) -> bool:
        if not isinstance(self.model.get(key, []), list):
            return False
        self.model[key] = [*self.model.get(key, []), item]
        return True

    @rule(key=KEYS, value=VALUES)
    def assign(self, key: str, value: Value) -> None:
        self.mine[key] = value
        self.model[key] = value
        self.commits += 1

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        if key in self.model:
            del self.mine[key], self.model[key]
            self.commits += 1
        else:
            with pytest.raises(KeyError):
                del self.mine[key]

    @rule(key=KEYS, item=ITEMS)
    def append(self, key: str, item: Value) -> None:
        if self.model_append(key, item):
            self.mine.append(key, item)
            self.commits += 1
        else:
            with pytest.raises(NotAListError):
                self.mine.append(key, item)

    def model_increment(self, key: str, by: int) -> bool:
        value = self.model.get(key, 0)
        if type(value) is not int or max(abs(value), abs(by), abs(value + by)) > MAX_COUNT:
            return False
        self.model[key] = value + by
        return True

    @rule(key=KEYS, by=st.integers(-9, 9) | st.integers())
    def increment(self, key: str, by: int) -> None:
        if self.model_increment(key, by):
            self.mine.increment(key, by)
            self.commits += 1
        else:
            with pytest.raises(NotACounterError):
                self.mine.increment(key, by)

    @rule(key=KEYS, default=VALUES)
    def pop(self, key: str, default: Value) -> None:
        self.commits += key in self.model
        assert same(self.mine.pop(key, default), self.model.pop(key, default))

    @rule(key=KEYS, default=VALUES)
    def setdefault(self, key: str, default: Value) -> None:
        self.commits += key not in self.model
        assert same(self.mine.setdefault(key, default), self.model.setdefault(key, default))

    @rule(values=st.dictionaries(KEYS, VALUES))
    def update(self, values: dict[str, Value]) -> None:
        self.mine.update(values)
        self.model.update(values)
        self.commits += bool(values)

    @rule(
        steps=st.lists(st.tuples(st.sampled_from("sdai"), KEYS, ITEMS | st.integers(-9, 9)), min_size=1, max_size=6),
        fail=st.booleans(),
    )
    def transaction(self, steps: list[tuple[str, str, Value]], fail: bool) -> None:
        before = dict(self.model)
        with suppress(ZeroDivisionError, NotAListError, NotACounterError), self.mine.transaction() as t:
            for kind, key, value in steps:
                if kind == "s":
                    t[key] = self.model[key] = value
                elif kind == "d":
                    assert (key in t) == (key in self.model)
                    t.pop(key, None)
                    self.model.pop(key, None)
                elif kind == "i":
                    if not (type(value) is int and self.model_increment(key, value)):
                        fail = True
                        t.increment(key, value)
                        break
                    t.increment(key, value)
                elif self.model_append(key, value):
                    t.append(key, value)
                else:
                    # One of our own is noticed at once, one that was there before at the commit, which ends here.
                    fail = True
                    t.append(key, value)
                    break
                assert same({k: t[k] for k in sorted(t)}, dict(sorted(self.model.items())))
                assert len(t) == len(self.model)
            else:
                if fail:
                    raise ZeroDivisionError
        if fail:
            self.model = before
        else:
            self.commits += bool(t._writes)

    @rule(read=KEYS, write=KEYS, theirs=KEYS, value=ITEMS)
    def clash(self, read: str, write: str, theirs: str, value: Value) -> None:
        def attempt() -> None:
            with self.mine.transaction() as t:
                t.get(read)
                t[write] = 1
                self.theirs[theirs] = value

        self.model[theirs] = value
        self.commits += 1
        if read == theirs:
            with pytest.raises(ConflictError, match=repr(read)):
                attempt()
        else:
            attempt()
            self.model[write] = 1
            self.commits += 1

    @rule(theirs=KEYS, value=ITEMS)
    def clash_over_the_set_of_keys(self, theirs: str, value: Value) -> None:
        new = theirs not in self.model

        def attempt() -> None:
            with self.mine.transaction() as t:
                t["count"] = len(t)
                self.theirs[theirs] = value

        count = len(self.model)
        self.model[theirs] = value
        self.commits += 1
        if new:
            with pytest.raises(ConflictError, match="the set of keys"):
                attempt()
        else:
            attempt()
            self.model["count"] = count
            self.commits += 1

    @precondition(lambda self: self.model)
    @rule()
    def clear(self) -> None:
        self.mine.clear()
        self.model.clear()
        self.commits += 1

    @invariant()
    def both_hold_the_same(self) -> None:
        assert same({key: self.theirs[key] for key in sorted(self.theirs)}, dict(sorted(self.model.items())))
        assert len(self.mine) == len(self.model)
        assert self.mine.commits() == self.commits


class OnServer(Model):
    """The clients are those of a state server."""

    def __init__(self, client: redis.Redis, server: StateServer) -> None:
        client.flushall()
        begin_launch(client, server.endpoint, 0)
        self.client = client
        super().__init__(*(State(client, server.endpoint, 0, chunk_bytes=CHUNK_BYTES) for _ in range(2)))

    @invariant()
    def nothing_is_left_over(self) -> None:
        chunks = self.client.keys("laggard:*:state:chunk:*")
        assert all(self.client.ttl(name) == -1 for name in chunks)
        if not self.model:
            assert chunks == self.client.keys("laggard:*:state:list:*") == []


def run_model(model: type[Model], max_examples: int) -> None:
    run_state_machine_as_test(
        model,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
            derandomize=True,
        ),
    )


def test_state_holds_what_a_dict_would(server: StateServer) -> None:
    with server.endpoint.connect() as client:

        class Bound(OnServer):
            def __init__(self) -> None:
                super().__init__(client, server)

        run_model(Bound, max_examples=12)


def test_state_in_a_file_holds_what_a_dict_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAGGARD_LOCAL_LAUNCH", raising=False)
    runs = iter(range(1_000_000))

    class InFile(Model):
        def __init__(self) -> None:
            monkeypatch.setenv("LAGGARD_LOCAL_STATE", str(tmp_path / f"{next(runs)}.db"))
            super().__init__(*(fresh_local_state(chunk_bytes=CHUNK_BYTES) for _ in range(2)))

    run_model(InFile, max_examples=6)

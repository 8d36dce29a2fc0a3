"""Whatever a process writes where watchers read, the watcher goes on, and finds on other nodes what it would have."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.watched_launch import HOSTS, ROUNDS, SLOW, Entry, WatchedLaunch, verdicts_of_rounds, watched_launch

LIAR = "node4"
FOUND = {(*SLOW, "very slow")}

TEXTS = st.text(max_size=12) | st.sampled_from(["", "x" * 40_000, "nan", "-1", "1e20", "9" * 400, "\0", "\x1b[2J"])
NUMBERS = (
    st.floats()
    | st.integers(-(2**63), 2**64 - 1)
    | st.sampled_from([0, -0.0, -1.0, 1e-320, 1e308, 1e20, float("nan"), float("inf")])
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
KNOWN = ("gpu", "rank", "process", "group", "model", "uuid", "stride", "cause", "wrong", "error", "utilisation")
NAMES = st.sampled_from([*KNOWN, "temperature", "warmed", "launch", "report"]) | TEXTS
HOST = st.sampled_from([LIAR, *HOSTS, "elsewhere", ""]) | TEXTS
TAGS = st.builds(
    lambda tags, host, gpu: {**tags, "host": host, "gpu": gpu},
    st.dictionaries(NAMES, TEXTS, max_size=5),
    HOST,
    st.sampled_from(["0", "1", "2"]) | TEXTS,
)
LIKE_SAMPLES = st.tuples(NUMBERS | VALUES, st.lists(NUMBERS, max_size=5) | VALUES, TAGS | VALUES)
BYTES = (
    st.binary(max_size=60)
    | st.sampled_from([b"", b"[" * 100_000, b"[1,[1],{}", b"[1,[" + b"1," * 20_000 + b'1],{"host":"node4"}]'])
    | (LIKE_SAMPLES | VALUES).map(lambda each: orjson.dumps(each, option=orjson.OPT_NON_STR_KEYS))
)
# A process says by its environment where it runs: it may say nothing, or anything but the name of another node.
ENTRIES = st.builds(
    lambda node, sample: {b"node": node, b"sample": sample},
    st.sampled_from([LIAR.encode(), LIAR.encode(), b"", b"\xff"]),
    BYTES,
) | st.dictionaries(st.binary(max_size=6), st.binary(max_size=20), min_size=1, max_size=3)


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedLaunch]:
    with watched_launch(tmp_path_factory.mktemp("watched")) as running:
        yield running


def test_without_anything_else_the_slow_device_is_found(launch: WatchedLaunch) -> None:
    assert verdicts_of_rounds(launch) == FOUND


@settings(max_examples=40)
@given(rounds=st.lists(st.lists(ENTRIES, max_size=4), min_size=ROUNDS, max_size=ROUNDS))
def test_whatever_a_process_writes_in_place_of_samples(launch: WatchedLaunch, rounds: list[list[Entry]]) -> None:
    assert verdicts_of_rounds(launch, rounds.__getitem__, but=LIAR) == FOUND


@settings(max_examples=40)
@given(samples=st.lists(st.tuples(st.lists(NUMBERS, min_size=1, max_size=4), TAGS), min_size=8, max_size=30))
def test_whatever_a_process_says_of_its_own_devices(
    launch: WatchedLaunch, samples: list[tuple[list[float], dict[str, str]]]
) -> None:
    written = [
        {b"node": LIAR.encode(), b"sample": orjson.dumps([1.0, values, {**tags, "host": LIAR, "gpu": str(place % 2)}])}
        for place, (values, tags) in enumerate(samples)
    ]
    found = verdicts_of_rounds(launch, lambda number: written[number % 2 :: 2], but=LIAR)
    assert found == FOUND

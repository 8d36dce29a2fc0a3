"""Whatever is left as samples, and whatever only as summaries: exact functions see no difference."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.kvstore.series.columns import decode_integers, decode_words, encode_integers, encode_words
from laggard.kvstore.series.sample_store import SampleStore, key_of
from laggard.telemetry.query import SubQuery, evaluate, query_from_json
from laggard.telemetry.query.engine import Answer, Span
from laggard.telemetry.store.chunks import chunk_from_bytes, pack_rows
from laggard.telemetry.store.history import History
from laggard.telemetry.store.planning import SAMPLES, Grid, Origin, plan
from laggard.telemetry.store.summaries import COLUMNS, EXACT, Summaries, merged, of_samples
from laggard.telemetry.store.tiers import Tiers

SECOND_US = 1_000_000
START_S = 1_000_000_020  # a whole minute
WIDTHS_US = (SECOND_US, 10 * SECOND_US, 60 * SECOND_US)
LENGTH_S = 400

decimals = st.integers(-(10**6), 10**6).map(lambda n: n / 1000)
numbers = st.one_of(decimals, st.floats(-1e9, 1e9), st.sampled_from([0.0, -0.0, 1e300, 5e-324, 0.1]))
moments = st.integers(0, LENGTH_S * 1000 - 1)


def sub_query(downsample: str, aggregator: str = "none") -> tuple[SubQuery, Span]:
    body = {"metric": "m", "aggregator": aggregator, "downsample": downsample}
    query = query_from_json({"start": START_S, "end": (START_S + LENGTH_S) * 1000 - 1, "queries": [body]}, 0)
    return query.queries[0], Span(query.start_us, query.end_us, query.milliseconds)


class Store:
    """A history that drops parts between batches, which come in any order; and a store that drops nothing."""

    def __init__(self, batch_rows: int) -> None:
        self.now_s = float(START_S + LENGTH_S)
        windows_s = dict.fromkeys(WIDTHS_US, 1e9)
        self.tiers = Tiers(windows_s, max_bytes=1 << 40, clock=lambda: self.now_s, batch_rows=batch_rows)
        samples = SampleStore(1e9, clock=lambda: self.now_s, observe=self.tiers.add)
        self.history = History(self.tiers, samples)
        self.whole = SampleStore(1e9, clock=lambda: self.now_s)

    def add(self, host: str, batch: list[tuple[int, float]]) -> None:
        times_us = START_S * SECOND_US + np.array([ms for ms, _ in batch], dtype=np.int64) * 1000
        values = np.array([value for _, value in batch], dtype=np.float64)
        for store in (self.whole, self.history.samples):
            store.extend(key_of("m", {"host": host}), times_us, values)

    def drop(self, width_us: int, before_s: int) -> None:
        """Drop what is older than a time, from the samples (width 1) or from a tier."""
        before_us = (START_S + before_s) * SECOND_US
        if width_us == SAMPLES:
            self.history.samples.window_s = self.now_s - START_S - before_s
            self.history.samples.trim()
        else:
            self.tiers._tiers[width_us].drop_before(before_us)


actions = st.one_of(
    st.tuples(st.just("add"), st.sampled_from("ab"), st.lists(st.tuples(moments, numbers), min_size=1, max_size=30)),
    st.tuples(st.just("fold"), st.none(), st.none()),
    st.tuples(st.just("drop"), st.sampled_from((SAMPLES, *WIDTHS_US[:2])), st.integers(0, LENGTH_S)),
)


def apply(store: Store, taken: list[Any]) -> None:
    for kind, first, second in taken:
        if kind == "add":
            store.add(first, second)
        elif kind == "fold":
            store.tiers.fold()
        else:
            store.drop(first, second)


def assert_same(found: list[Answer], expected: list[Answer]) -> None:
    assert [(a.tags, a.times_us.tolist()) for a in found] == [(a.tags, a.times_us.tolist()) for a in expected]
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.values, theirs.values, rtol=1e-9, atol=1e-3)


@given(
    st.lists(actions, max_size=12),
    st.sampled_from(sorted(EXACT)),
    st.sampled_from(["1m", "2m", "1n"]),
    st.integers(1, 200),
)
def test_any_division_of_the_samples_among_the_tiers_gives_the_same(
    taken: list[Any], function: str, interval: str, batch_rows: int
) -> None:
    store = Store(batch_rows)
    apply(store, taken)
    query, span = sub_query(f"{interval}-{function}")
    expected = evaluate(query, span, store.whole.read(["m"], 0, 2**60))

    found = store.history.downsampled(query, span)

    assert found.approximate_us == 0
    assert_same(evaluate(query, span, found.series, downsampled=True), expected)


specifications = ["10s-avg", "1s-max", "7s-sum", "1m-p95", "1s-p50", "7s-median", "500ms-last", ""]


@given(st.lists(actions, max_size=12), st.sampled_from(specifications))
def test_an_answer_that_is_not_said_to_be_approximate_is_exact_however_often_it_is_asked_for(
    taken: list[Any], downsample: str
) -> None:
    store = Store(20)
    query, span = sub_query(downsample)
    for action in taken:
        apply(store, [action])
        assert_exact_if_it_says_so(store, query, span)


def assert_exact_if_it_says_so(store: Store, query: SubQuery, span: Span) -> None:
    expected = evaluate(query, span, store.whole.read(["m"], 0, 2**60))

    found = store.history.downsampled(query, span)

    answers = evaluate(query, span, found.series, downsampled=True)
    if found.approximate_us == 0:
        assert_same(answers, expected)
    else:
        assert [a.tags for a in answers] == [a.tags for a in expected]
        for ours, theirs in zip(answers, expected, strict=True):
            assert len(ours.times_us) <= max(1, len(theirs.times_us))


@given(st.lists(actions, max_size=12))
def test_what_is_dumped_holds_each_sample_once(taken: list[Any]) -> None:
    store = Store(20)
    apply(store, taken)
    expected: dict[str, float] = {}
    for each in store.whole.read(["m"], 0, 2**60):
        expected[each.tags["host"]] = float(len(each.values))

    summaries, samples = store.history.everything("m")

    counts: dict[str, float] = {}
    for part in summaries:
        host = dict(part.key[1])["host"]
        counts[host] = counts.get(host, 0.0) + float(part.rows["count"].sum())
    for each in samples:
        counts[each.tags["host"]] = counts.get(each.tags["host"], 0.0) + len(each.values)
    assert counts == expected


lengths = st.integers(0, 500).map(lambda s: s * SECOND_US // 4)


@given(
    lengths,
    lengths,
    st.sampled_from([0, SECOND_US // 2, SECOND_US, 7 * SECOND_US, 10 * SECOND_US, 120 * SECOND_US]),
    st.sampled_from(["avg", "p95"]),
    st.tuples(lengths, lengths, lengths, lengths),
)
def test_a_plan_covers_its_range_once_with_sources_that_are_complete(
    begin_us: int, length_us: int, step_us: int, function: str, complete: tuple[int, ...]
) -> None:
    origins = [Origin(width, since) for width, since in zip((SAMPLES, *WIDTHS_US), complete, strict=True)]
    since = {origin.width_us: origin.complete_from_us for origin in origins}
    grid = Grid(begin_us, begin_us + length_us, step_us, function)

    segments = plan(grid, origins)

    edges = [grid.end_us, *(segment.begin_us for segment in segments)]
    assert [segment.end_us for segment in segments] == edges[:-1]
    assert edges[-1] == grid.begin_us
    assert all((a.width_us, a.exact) != (b.width_us, b.exact) for a, b in pairwise(segments))  # a source is read once
    for segment in segments:
        if segment.end_us != grid.end_us:  # inside the range, where two sources meet, no bucket is divided
            assert segment.end_us % segment.width_us == 0
        if segment.begin_us != grid.begin_us:
            assert segment.begin_us % segment.width_us == 0
        if min(complete) <= segment.begin_us:
            assert since[segment.width_us] <= segment.begin_us
        assert segment.exact == grid.is_exact(segment.width_us)


samples = st.lists(st.tuples(st.integers(0, 5), moments, st.one_of(decimals, numbers)), min_size=1, max_size=50)


def rows_of(drawn: list[tuple[int, int, float]]) -> Summaries:
    series, ms, values = (np.array(column) for column in zip(*drawn, strict=True))
    return of_samples(series.astype(np.int64), START_S * SECOND_US + ms.astype(np.int64) * 1000, values.astype(float))


@given(samples, st.sampled_from(WIDTHS_US))
def test_a_chunk_gives_back_its_rows_and_each_column_alone(drawn: list[tuple[int, int, float]], width_us: int) -> None:
    rows = merged(rows_of(drawn), width_us)

    chunk = chunk_from_bytes(pack_rows(rows, width_us).to_bytes())

    assert (chunk.first_us, chunk.end_us) == (rows["start_us"].min(), rows["start_us"].max() + width_us)
    found = chunk.unpack(COLUMNS)
    for name in COLUMNS:
        if name == "sum":
            largest = np.maximum(np.abs(rows["min"]), np.abs(rows["max"])) * rows["count"]
            assert (np.abs(found[name] - rows[name]) <= 1e-14 * rows["count"] * largest).all()
        else:
            np.testing.assert_array_equal(found[name], rows[name], err_msg=name)
        np.testing.assert_array_equal(chunk.unpack([name])[name], found[name], err_msg=name)


@given(samples, st.integers(0, 3), st.data())
def test_summaries_of_parts_add_up_to_those_of_the_whole(
    drawn: list[tuple[int, int, float]], cuts: int, data: st.DataObject
) -> None:
    whole = merged(rows_of(drawn), WIDTHS_US[1])
    places = sorted(data.draw(st.lists(st.integers(0, len(drawn)), min_size=cuts, max_size=cuts)))
    parts = [drawn[begin:end] for begin, end in zip([0, *places], [*places, len(drawn)], strict=True)]
    tables = [merged(rows_of(part), SECOND_US) for part in parts if part]
    joined: Mapping[str, Any] = {name: np.concatenate([table[name] for table in tables]) for name in COLUMNS}

    found = merged(dict(joined), WIDTHS_US[1])

    for name in COLUMNS:
        np.testing.assert_allclose(found[name], whole[name], rtol=1e-9, atol=1e-3, err_msg=name)


@given(st.binary(max_size=400), samples, st.integers(0, 200), st.integers(0, 255))
def test_what_is_no_chunk_is_refused_and_nothing_else_happens(
    noise: bytes, drawn: list[tuple[int, int, float]], place: int, byte: int
) -> None:
    good = pack_rows(merged(rows_of(drawn), SECOND_US), SECOND_US).to_bytes()
    damaged = bytearray(good)
    damaged[place % len(good)] = byte
    for data in (noise, bytes(damaged), good[: place % len(good)]):
        try:
            rows = chunk_from_bytes(data).unpack(COLUMNS)
        except ValueError:
            continue
        assert len({len(column) for column in rows.values()}) == 1


def test_a_column_that_claims_too_little_or_too_much_is_refused() -> None:
    bomb = b"\1" + zlib.compress(bytes(10_000_000), wbits=-15)
    with pytest.raises(ValueError, match="should have"):
        decode_words(bomb, 10)
    with pytest.raises(ValueError, match="should have"):
        decode_integers(encode_integers(np.arange(0, 100, 3) ** 2), 7)
    words = np.arange(9, dtype=np.uint64)
    assert decode_words(encode_words(words), 9).tolist() == words.tolist()

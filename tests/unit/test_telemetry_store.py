"""What a node keeps and publishes, and what the primary makes of it: samples, tiers of summaries, and rollups."""

from __future__ import annotations

import json
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from laggard.kvstore.series.columns import RAW, encode_integers
from laggard.kvstore.series.sample_store import SampleStore, key_of
from laggard.kvstore.series.timeseries import TimeSeries
from laggard.telemetry.query import SubQuery, query_from_json
from laggard.telemetry.query.engine import Span
from laggard.telemetry.store import tiers as tiers_module
from laggard.telemetry.store.chunks import Chunk, chunk_from_bytes, pack_rows
from laggard.telemetry.store.history import History
from laggard.telemetry.store.rollups import Publisher, Rollups, Run
from laggard.telemetry.store.summaries import COLUMNS, Summaries, concatenated, merged, of_samples
from laggard.telemetry.store.tier import Tier
from laggard.telemetry.store.tiers import Tiers

SECOND_US = 1_000_000
T0 = 1_700_000_040  # a whole minute
WINDOWS_S = {SECOND_US: 1e9, 10 * SECOND_US: 1e9, 60 * SECOND_US: 1e9}


def us(seconds: float) -> int:
    """Return a time so many seconds after T0."""
    return round((T0 + seconds) * SECOND_US)


def query(downsample: str, begin_s: float, end_s: float, metric: str = "m") -> tuple[SubQuery, Span]:
    body = {"metric": metric, "aggregator": "none", "downsample": downsample}
    asked = query_from_json({"start": 1, "queries": [body]}, us(0)).queries[0]
    return asked, Span(us(begin_s), us(end_s))


class Node:
    """A node's telemetry, with samples of one metric."""

    def __init__(self, host: str = "a", since_s: float = 0, samples_window_s: float = 1e9) -> None:
        self.now_s = float(T0 + 1000)
        self.run = Run.new(host, us(since_s))
        self.tiers = Tiers(WINDOWS_S, max_bytes=1 << 30, clock=lambda: self.now_s, batch_rows=16)
        self.samples = SampleStore(samples_window_s, clock=lambda: self.now_s, observe=self.tiers.add)
        self.history = History(self.tiers, self.samples)
        self.publisher = Publisher(self.run, self.tiers)

    def add(self, *at_s: float, metric: str = "m", value: float = 1.0) -> None:
        times_us = np.array([us(at) for at in at_s], dtype=np.int64)
        self.samples.extend(key_of(metric, {"host": self.run.host}), times_us, np.full(len(at_s), value))

    def message(self) -> bytes | None:
        self.publisher.add(self.tiers.fold())
        return self.publisher.message()

    def publish(self, rollups: Rollups) -> None:
        message = self.message()
        assert message is not None
        rollups.take(message)
        self.publisher.received()


def new_rollups(now_s: Callable[[], float] = lambda: T0 + 1000.0, ten_seconds_s: float = 1e9) -> Rollups:
    return Rollups(WINDOWS_S | {10 * SECOND_US: ten_seconds_s}, max_bytes=1 << 30, clock=now_s)


def counted(series: Sequence[TimeSeries]) -> dict[str, list[tuple[float, float]]]:
    """Return the points by host, their times in seconds after T0."""
    return {
        each.tags["host"]: list(zip(((each.times_us / SECOND_US) - T0).tolist(), each.values.tolist(), strict=True))
        for each in series
    }


# -- what a node publishes ---------------------------------------------------------------------------------------------


def test_what_was_not_received_is_part_of_the_next_message_and_what_was_is_not() -> None:
    node, rollups = Node(), new_rollups()
    assert node.message() is None
    node.add(1, 2)
    assert node.message() is not None  # lost
    node.add(3, 11)
    node.publish(rollups)
    assert node.message() is None
    node.add(12)
    node.publish(rollups)
    found = rollups.history.downsampled(*query("10s-count", 0, 19))
    assert counted(found.series) == {"a": [(0, 3), (10, 2)]}


def test_the_names_of_all_series_are_sent_with_every_sixth_message_and_otherwise_those_that_are_new() -> None:
    node, names = Node(), []
    for number in range(13):
        node.add(number, metric="first")
        if number in (2, 7):
            node.add(number, metric=f"new{number}")
        late = new_rollups()  # a primary that was started just now
        node.publish(late)
        names.append([metric for metric, _ in late.history.series_keys()])
    assert names == [
        *(["first"], [], ["new2"], [], [], []),
        *(["first", "new2"], ["new7"], [], [], [], []),
        ["first", "new2", "new7"],
    ]


def test_the_primary_has_the_keys_of_the_node() -> None:
    node, rollups = Node(), new_rollups()
    keys = [key_of("m", {"host": "a", "gpu": "0", "model": "H100"}), key_of("n", {})]
    for key in keys:
        node.samples.extend(key, np.array([us(1)]), np.ones(1))
    node.publish(rollups)
    assert rollups.history.series_keys() == keys


def test_a_primary_that_was_started_later_has_the_series_from_their_names_on() -> None:
    node, late = Node(), new_rollups()
    node.add(1)
    node.publish(new_rollups())
    for number in range(1, 8):
        node.add(10 * number)
        node.publish(late)
    assert counted(late.history.downsampled(*query("10s-count", 0, 79)).series) == {"a": [(60, 1), (70, 1)]}


@pytest.mark.parametrize("more", [0, 1])
def test_while_nobody_listens_the_newest_rollups_are_kept(more: int) -> None:
    node, rollups = Node(), new_rollups()
    node.add(*(10 * number for number in range(180_000 + more)))
    node.publish(rollups)
    (found,), _ = rollups.history.everything("m")
    assert found.rows["count"].sum() == 180_000
    assert found.rows["start_us"].min() == us(10 * more)


# -- what the primary has of all nodes ---------------------------------------------------------------------------------


def test_a_message_that_is_damaged_is_refused_and_leaves_nothing() -> None:
    node, rollups = Node(), new_rollups()
    node.add(*range(40))
    message = node.message()
    assert message is not None
    for length in range(len(message)):
        with pytest.raises(ValueError, match="not valid rollups"):
            rollups.take(message[:length])
    assert rollups.history.series_keys() == []
    rollups.take(message)
    assert rollups.history.series_keys() == [key_of("m", {"host": "a"})]


@pytest.mark.parametrize(("first", "is_refused"), [(-1, True), (0, False), (399_999, False), (400_000, True)])
def test_a_node_has_a_limited_number_of_series(first: int, *, is_refused: bool) -> None:
    node, rollups = Node(), new_rollups()
    node.add(1)
    message = node.message()
    assert message is not None
    head = f'["a","{node.run.name}",{node.run.since_us},0]'.encode()
    other = f'["a","{node.run.name}",{node.run.since_us},{first}]'.encode()
    assert head in message
    changed = message.replace(head, other).replace(len(head).to_bytes(4, "little"), len(other).to_bytes(4, "little"), 1)
    if is_refused:
        with pytest.raises(ValueError, match="more than 400000 series"):
            rollups.take(changed)
    else:
        rollups.take(changed)
    assert len(rollups.history.series_keys()) == (not is_refused)


def test_rows_of_a_series_without_a_name_are_left_out_and_negative_numbers_refused() -> None:
    node, rollups = Node(), new_rollups()
    node.add(1)
    rows = node.tiers.fold()
    for series, is_refused in ((1, False), (-2, True)):
        node.publisher.add({**rows, "series": np.full(1, series)})
        message = node.publisher.message()
        assert message is not None
        if is_refused:
            with pytest.raises(ValueError, match="negative number"):
                rollups.take(message)
        else:
            rollups.take(message)
        node.publisher.received()
    assert rollups.history.span_us() is None


@pytest.mark.parametrize(
    ("series", "said"),
    [([0], []), ([0, 1], ["1 of 2 rollups of a are of unknown series"]), ([1], ["1 of 1 rollups of a"])],
)
def test_how_many_rows_are_left_out_is_logged(
    series: list[int], said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    node, rollups = Node(), new_rollups()
    node.add(1)
    row = node.tiers.fold()
    for number in series:
        node.publisher.add({**row, "series": np.full(1, number)})
    message = node.publisher.message()
    assert message is not None
    with caplog.at_level("INFO", "laggard.telemetry"):
        rollups.take(message)
    assert [each.startswith(text) for each, text in zip(caplog.messages, said, strict=True)] == [True] * len(said)


@pytest.mark.parametrize(
    ("downsample", "begin_s", "metric", "can"),
    [
        ("10s-sum", 0, "m", True),
        ("30s-max", 0, "m", True),
        ("1m-avg", 0, "m", True),
        ("", 0, "m", False),  # samples
        ("5s-sum", 0, "m", False),
        ("15s-sum", 0, "m", False),
        ("1m-p95", 0, "m", False),
        ("1m-sum", 60, "m", True),
    ],
)
def test_rollups_answer_what_their_buckets_give_exactly(
    downsample: str, begin_s: float, metric: str, can: bool
) -> None:
    node, rollups = Node(), new_rollups()
    node.add(*range(100))
    node.publish(rollups)
    assert rollups.can_answer(*query(downsample, begin_s, 99, metric)) == can


def test_rollups_do_not_answer_for_times_that_they_have_dropped() -> None:
    clock_s = [T0 + 1000.0]
    rollups, node = new_rollups(lambda: clock_s[0], ten_seconds_s=5000), Node()
    times = [10 * number for number in range(131_072)]  # so many rows are packed, and dropped, together
    node.add(*times)
    node.publish(rollups)
    before = rollups.history.tiers.nbytes()
    assert rollups.can_answer(*query("10s-sum", 0, 99))
    clock_s[0] += times[-1] + 10_000.0
    rollups.history.tiers.trim()
    assert rollups.history.tiers.nbytes() < before
    assert not rollups.can_answer(*query("10s-sum", 0, 99))
    assert rollups.can_answer(*query("1m-sum", 0, 99))  # of minutes everything is left
    assert rollups.can_answer(*query("10s-sum", times[-1] + 60, times[-1] + 99))


def test_rollups_answer_from_when_on_they_have_all_minutes() -> None:
    end_s = 60 * 131_072  # so many rows are packed, and dropped, together
    windows_s = {10 * SECOND_US: 1e9, 60 * SECOND_US: 1.0}
    rollups, node = Rollups(windows_s, max_bytes=1 << 30, clock=lambda: T0 + end_s + 1.0), Node()
    node.add(*range(0, end_s, 60))
    node.publish(rollups)
    rollups.history.tiers.trim()
    asked, _ = query("1m-sum", 0, 60)
    for begin_s, can in ((end_s - 60, False), (end_s, True)):
        assert rollups.can_answer(asked, Span(us(begin_s), us(end_s + 600))) == can


def test_a_query_without_the_name_of_a_metric_is_not_answered_from_rollups() -> None:
    asked, span = query("10s-sum", 0, 99)
    assert new_rollups().can_answer(asked, span)
    assert not new_rollups().can_answer(replace(asked, metrics=()), span)


def test_beside_the_answers_are_nodes_that_gave_none_and_what_a_node_had_before_it_was_started_anew() -> None:
    rollups = new_rollups()
    lost, before, again = Node("a"), Node("b"), Node("b", since_s=35)
    lost.add(5, 15)
    before.add(5, 15, 25, 32)
    again.add(36, 45)
    for node in (lost, before, again):
        node.publish(rollups)
    asked = query("10s-count", 0, 59)

    everybody = {"a": lost.run, "b": again.run}
    nobody = counted(rollups.beside(*asked, {}).series)
    assert nobody["a"] == [(0, 1), (10, 1)]
    answered = {run.name: run for run in everybody.values()}
    assert counted(rollups.beside(*asked, answered).series) == {"b": [(0, 1), (10, 1), (20, 1), (30, 1)]}
    assert counted(rollups.beside(*query("10s-count", 35, 59), answered).series) == {}
    assert counted(rollups.beside(*query("10s-count", 0, 19), answered).series) == {"b": [(0, 1), (10, 1)]}
    only_again = {again.run.name: again.run}
    assert counted(rollups.beside(*asked, only_again).series).keys() == {"a", "b"}
    assert rollups.beside(*asked, only_again).approximate_us == 0
    assert rollups.beside(*query("5s-count", 0, 19), answered).approximate_us == 10 * SECOND_US


def test_beside_answers_without_buckets_a_node_that_was_started_anew_has_what_was_until_then() -> None:
    rollups = new_rollups()
    before, again = Node("b"), Node("b", since_s=35.5)
    before.add(5, 32)
    again.add(36)
    for node in (before, again):
        node.publish(rollups)
    asked, span = query("", 0, 59)
    answered = {again.run.name: again.run}
    assert asked.downsample is None
    assert counted(rollups.beside(asked, span, answered).series) == {"b": [(0, 1), (30, 1)]}
    assert rollups.beside(asked, Span(us(35.5), us(59)), answered).series == []
    assert rollups.beside(asked, Span(us(35.5) - 1, us(59)), answered).series != []


def test_beside_the_answers_of_all_there_is_nothing() -> None:
    rollups, node = new_rollups(), Node()
    node.add(1)
    node.publish(rollups)
    found = rollups.beside(*query("5s-count", 0, 59), {node.run.name: node.run})
    assert (found.series, found.approximate_us) == ([], 0)


@pytest.mark.parametrize("more", [-1, 0, 1, 1 << 30])
def test_keys_are_as_long_as_a_message_says(more: int) -> None:
    node, rollups = Node(), new_rollups()
    node.add(1)
    message = node.message()
    assert message is not None
    n_head, n_keys, keys_bytes = struct.unpack_from("<III", message)
    changed = struct.pack("<III", n_head, n_keys, keys_bytes + more) + message[12:]
    if more < 0:
        with pytest.raises(ValueError, match="not valid rollups"):
            rollups.take(changed)
    else:
        rollups.take(changed)  # the length only bounds what is allocated
        assert rollups.history.series_keys() == [key_of("m", {"host": "a"})]


def with_keys(message: bytes, text: bytes) -> bytes:
    """Return the message with other keys, given as JSON."""
    n_head, n_keys, _ = struct.unpack_from("<III", message)
    packed_keys = zlib.compress(text, level=1)
    lengths = struct.pack("<III", n_head, len(packed_keys), len(text))
    return lengths + message[12 : 12 + n_head] + packed_keys + message[12 + n_head + n_keys :]


@pytest.mark.parametrize("keys", [[[1, []]], [["m", ["host"]]], [["m", ["host", 1]]], [["m"]], 5, None])
def test_keys_that_are_none_are_refused(keys: object) -> None:
    node, rollups = Node(), new_rollups()
    node.add(1)
    message = node.message()
    assert message is not None
    with pytest.raises(ValueError, match="not valid rollups"):
        rollups.take(with_keys(message, json.dumps(keys).encode()))
    assert rollups.history.series_keys() == []


def test_keys_of_more_than_64_mib_are_refused() -> None:
    node, rollups = Node(), new_rollups()
    node.add(1)
    message = node.message()
    assert message is not None
    keys, room_bytes = b'[["m", []]]', 64 << 20
    with pytest.raises(ValueError, match="not valid rollups"):
        rollups.take(with_keys(message, keys.rjust(room_bytes + 1)))
    rollups.take(with_keys(message, keys.rjust(room_bytes)))
    assert rollups.history.series_keys() == [key_of("m", {})]


def test_what_only_the_primary_has_left_is_of_all_runs_but_those_that_are_there() -> None:
    rollups = new_rollups()
    nodes = {"a0": Node("a"), "b0": Node("b"), "b1": Node("b", since_s=100)}
    for number, node in enumerate(nodes.values(), 1):
        node.add(*range(number))
        node.publish(rollups)

    def counts(*there: str) -> list[tuple[str, float]]:
        names = {nodes[each].run.name for each in there}
        found = [(dict(each.key[1])["host"], float(each.rows["count"].sum())) for each in rollups.lost(names)]
        return sorted(found)

    assert counts("a0", "b1") == [("b", 2)]
    assert counts("a0") == [("b", 2), ("b", 3)]
    assert counts("b1") == [("a", 1), ("b", 2)]
    assert counts() == [("a", 1), ("b", 2), ("b", 3)]


@pytest.mark.parametrize("killed_s", range(5, 105, 5))
def test_whenever_a_nodes_telemetry_is_killed_its_dump_and_the_servers_hold_all_but_the_last_ten_seconds(
    killed_s: int,
) -> None:
    rollups, first = new_rollups(), Node("a")
    for second in range(killed_s):
        first.add(second)
        if second % 10 == 9:
            first.publish(rollups)
    second_run = Node("a", since_s=killed_s)
    second_run.add(*range(killed_s, 105))

    own = sum(len(each.times_us) for each in second_run.history.everything("m")[1])
    lost = sum(int(each.rows["count"].sum()) for each in rollups.lost({second_run.run.name}))
    assert own + lost == 105 - killed_s % 10


# -- one tier ----------------------------------------------------------------------------------------------------------


def rows(*at_s: float, series: int = 0) -> Summaries:
    times_us = np.array([us(at) for at in at_s], dtype=np.int64)
    samples = of_samples(np.full(len(at_s), series, dtype=np.int64), times_us, np.ones(len(at_s)))
    return merged(samples, 10 * SECOND_US)


def pack(tier: Tier, now_s: float = 1000, metrics: Sequence[int] = (0, 0)) -> None:
    tables = tier.tables
    whole = tier.merged(tables)
    tier.replace(len(tables), whole, tier.packed(whole, np.array(metrics, dtype=np.int64), us(now_s)))


def test_a_tier_is_packed_when_it_has_many_rows_or_many_tables() -> None:
    tier = Tier(10 * SECOND_US, batch_rows=4)
    tier.add(rows())
    tier.add(rows(0, 10, 20))
    assert not tier.is_due
    tier.add(rows(30))
    assert tier.is_due
    large = Tier(10 * SECOND_US, batch_rows=3 * 512)
    for number in range(3):
        assert not large.is_due
        large.add(rows(number))
    assert large.is_due


@pytest.mark.parametrize(("n_rows", "is_packed"), [(3, False), (4, True)])
def test_rows_are_packed_if_they_are_half_a_batch_once_those_of_one_bucket_are_merged(
    n_rows: int, *, is_packed: bool
) -> None:
    tier = Tier(10 * SECOND_US, batch_rows=8)
    for _ in range(3):
        tier.add(rows(*(10 * number for number in range(n_rows))))
    assert tier.nbytes == 3 * n_rows * 64
    pack(tier)
    assert (tier.packed_bytes > 0) == is_packed
    assert tier.nbytes == (tier.packed_bytes if is_packed else n_rows * 64)
    assert tier.span_us() == (us(0), us(10 * n_rows))


def test_what_comes_while_rows_are_packed_stays() -> None:
    tier = Tier(10 * SECOND_US, batch_rows=2)
    tier.add(rows(0, 10))
    tables = tier.tables
    whole = tier.merged(tables)
    tier.add(rows(50))
    tier.replace(len(tables), whole, tier.packed(whole, np.zeros(1, dtype=np.int64), us(1000)))
    assert [each["start_us"].tolist() for each in tier.tables] == [[us(50)]]
    assert tier.span_us() == (us(0), us(60))


def test_batches_are_dropped_when_all_of_them_is_too_old_and_the_tier_says_so() -> None:
    tier = Tier(10 * SECOND_US, batch_rows=2)
    assert tier.span_us() is None
    assert not tier.drop_oldest()
    for at_s in (0, 100):
        tier.add(rows(at_s, at_s + 10))
        pack(tier)
    both = tier.packed_bytes
    tier.drop_before(us(20) - 1)
    assert (tier.packed_bytes, tier.complete_from_us) == (both, 0)
    tier.drop_before(us(20))
    assert (tier.packed_bytes < both, tier.complete_from_us) == (True, us(20))
    assert tier.span_us() == (us(100), us(120))
    assert tier.drop_oldest()
    assert (tier.nbytes, tier.complete_from_us, tier.span_us()) == (0, us(120), None)


@pytest.mark.parametrize(
    ("ahead_us", "kept_until_us"), [(3600 * SECOND_US, 3600 * SECOND_US), (3620 * SECOND_US, 3600 * SECOND_US)]
)
def test_a_clock_that_is_wrong_does_not_keep_a_batch_for_longer(ahead_us: int, kept_until_us: int) -> None:
    tier = Tier(10 * SECOND_US, batch_rows=2)
    tier.add(rows(0, ahead_us / SECOND_US - 10))
    pack(tier, now_s=0)
    tier.drop_before(us(0) + kept_until_us - 1)
    assert tier.packed_bytes > 0
    tier.drop_before(us(0) + kept_until_us)
    assert tier.packed_bytes == 0


def test_a_view_has_the_chunks_of_a_metric_that_reach_into_a_range() -> None:
    tier = Tier(10 * SECOND_US, batch_rows=2)
    tier.add(rows(10, 20))
    tier.add(rows(10, 20, series=1))
    pack(tier, metrics=(1, 7))

    def n_chunks(metric: int, begin_s: float, end_s: float) -> int:
        return len(tier.view([metric], us(begin_s), us(end_s)).chunks)

    assert n_chunks(1, 0, 100) == n_chunks(7, 0, 100) == 1
    assert len(tier.view([1, 7, 8], us(0), us(100)).chunks) == 2
    assert n_chunks(8, 0, 100) == 0
    assert (n_chunks(1, 29, 40), n_chunks(1, 30, 40)) == (1, 0)
    assert (n_chunks(1, 0, 11), n_chunks(1, 0, 10)) == (1, 0)


# -- all tiers ---------------------------------------------------------------------------------------------------------


def test_series_beyond_the_limit_are_not_in_the_tiers_and_their_samples_counted() -> None:
    tiers = Tiers(WINDOWS_S, max_bytes=1 << 20, clock=lambda: T0, max_series=2)
    for name in "abca":
        tiers.add(key_of(name, {}), np.array([us(0), us(1)]).tobytes(), np.ones(2).tobytes())
    assert ([each.key[0] for each in tiers.known()], tiers.dropped) == (["a", "b"], 2)
    assert [each.number for each in tiers.known(["b", "x"])] == [1]
    assert tiers.fold()["count"].sum() == 6


def test_what_arrived_is_added_up_a_few_series_at_a_time_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    folded = []
    for at_once in (1, 5, 1000):
        monkeypatch.setattr(tiers_module, "FOLD_SAMPLES", at_once)
        tiers = Tiers(WINDOWS_S, max_bytes=1 << 20, clock=lambda: T0)
        for at, name in enumerate("abcabdb"):
            tiers.add(key_of(name, {}), np.array([us(2 - at), us(at + 0.5)]).tobytes(), np.full(2, at * 1.0).tobytes())
        folded.append({name: column.tolist() for name, column in tiers.fold().items()})
    assert folded[0] == folded[1] == folded[2]
    assert sum(folded[0]["count"]) == 14


def test_tiers_that_are_too_large_lose_the_oldest_of_a_fine_one_that_is_large_first() -> None:
    tiers = Tiers(WINDOWS_S, max_bytes=1 << 30, clock=lambda: T0 + 1e6, batch_rows=600)
    key = key_of("m", {})
    rng = np.random.default_rng(1)
    for begin_s in range(0, 60_000, 600):
        times_us = np.array([us(begin_s + at) for at in range(600)])
        tiers.add(key, times_us.tobytes(), rng.random(600).tobytes())
        tiers.fold()
    whole = tiers.nbytes()
    small = Tiers(WINDOWS_S, max_bytes=whole // 2, clock=lambda: T0 + 1e6, batch_rows=600)
    for begin_s in range(0, 60_000, 600):
        times_us = np.array([us(begin_s + at) for at in range(600)])
        small.add(key, times_us.tobytes(), rng.random(600).tobytes())
        small.fold()
    small.trim()
    second, ten, minute = small.origins()
    assert small.nbytes() <= whole // 2 + 1000
    assert second.complete_from_us > us(0)
    assert (ten.complete_from_us, minute.complete_from_us) == (0, 0)
    tiers.trim()
    assert tiers.nbytes() == whole


# -- a node's history --------------------------------------------------------------------------------------------------


def test_an_answer_from_summaries_says_how_wide_their_averages_are() -> None:
    node = Node(samples_window_s=500)
    node.add(*range(0, 1000, 10))
    node.samples.trim()
    assert node.history.downsampled(*query("1m-p95", 0, 100)).approximate_us == SECOND_US
    assert node.history.downsampled(*query("1m-p95", 600, 999)).approximate_us == 0
    assert node.history.downsampled(*query("1m-max", 0, 999)).approximate_us == 0
    assert node.history.downsampled(*query("1m-p95", 0, 100, "x")).approximate_us == 0  # nothing was averaged


@pytest.mark.parametrize(("more", "approximate_us"), [(0, 0), (1, SECOND_US)])
def test_a_function_that_needs_too_many_samples_uses_averages_of_a_second(more: int, approximate_us: int) -> None:
    node = Node()
    times_us = us(0) + np.arange(1_000_000 + more, dtype=np.int64) * 10
    node.samples.extend(key_of("m", {"host": "a"}), times_us, np.ones(len(times_us)))
    found = node.history.downsampled(*query("1h-median", 0, 999))
    assert (found.approximate_us, found.series[0].values.tolist()) == (approximate_us, [1.0])


def test_a_history_has_what_is_beside_it_too() -> None:
    one, other = Node("a"), Node("b", samples_window_s=100)
    one.add(0, 10)
    other.add(5, 30)
    other.add(0, metric="n")
    other.tiers.fold()
    other.samples.trim()
    both = History(one.tiers, one.samples, beside=other.history)
    assert sorted(both.metrics()) == ["m", "n"]
    assert [dict(tags)["host"] for metric, tags in both.series_keys() if metric == "m"] == ["a", "b"]
    assert both.span_us() == (us(0), us(60))
    found = both.downsampled(*query("1m-p95", 0, 59))
    assert (len(found.series), found.approximate_us) == (2, SECOND_US)  # of the less exact one
    assert one.history.downsampled(*query("1m-p95", 0, 59)).approximate_us == 0


def test_the_span_of_a_history_is_that_of_its_samples_and_of_older_summaries() -> None:
    node = Node(samples_window_s=500)
    assert node.history.span_us() is None
    node.add(5.5, 900.5)
    node.tiers.fold()
    assert node.history.span_us() == (us(5.5), us(900.5))  # exact
    node.samples.trim()
    begin_us, end_us = node.history.span_us() or (0, 0)
    assert (begin_us, end_us) == (us(0), us(900.5))  # of a minute
    only_summaries = History(node.tiers)
    assert only_summaries.span_us() == (us(0), us(960))
    assert History(Tiers(WINDOWS_S, max_bytes=1, clock=lambda: T0), SampleStore(1, clock=lambda: T0)).span_us() is None


def test_everything_is_each_time_once_from_its_finest_source() -> None:
    node = Node(samples_window_s=500)
    node.add(1, 2, 61, 900.5)
    node.samples.extend(key_of("m", {"host": "b"}), np.array([us(950)]), np.ones(1))
    node.samples.trim()
    summaries, samples = node.history.everything("m")
    assert [(each.width_us, each.rows["count"].tolist()) for each in summaries] == [(SECOND_US, [1, 1, 1])]
    assert counted(samples) == {"a": [(900.5, 1)], "b": [(950, 1)]}
    assert node.history.everything("m", lambda source: source == "x")[0] == []
    assert node.history.everything("x") == ([], [])


def test_summaries_of_numbers_with_few_decimals_take_less_room() -> None:
    def bytes_a_row(decimals: int) -> float:
        times_us = us(0) + np.arange(60_000, dtype=np.int64) * 100_000
        watts = np.round(np.random.default_rng(1).normal(300, 20, len(times_us)), decimals)
        seconds = merged(of_samples(np.zeros(len(times_us), np.int64), times_us, watts), SECOND_US)
        return pack_rows(seconds, SECOND_US).nbytes / len(seconds["count"])

    assert bytes_a_row(1) < 12
    assert bytes_a_row(15) > 24


@pytest.mark.parametrize("drops", [(at,) for at in range(1, 8)] + [(3, 5), (3, 6), (2, 4), (4, 6)])
def test_samples_that_are_dropped_while_they_are_read_are_read_again_as_summaries(drops: tuple[int, ...]) -> None:
    node, calls = Node(), 0
    node.add(1, 301, 601, 901)
    node.tiers.fold()

    def wanted(_: object) -> bool:
        nonlocal calls
        calls += 1
        if calls in drops:  # at first the oldest sample, then the next one, too
            node.samples.window_s = 800 - 300 * drops.index(calls)
            node.samples.trim()
        return True

    (found,) = node.history.downsampled(*query("1s-p95", 0, 999), wanted).series
    assert (found.metric, [at for at, _ in counted([found])["a"]]) == ("m", [1, 301, 601, 901])


@pytest.mark.parametrize(
    ("length_us", "approximate_us"),
    [(SECOND_US // 2, 0), (SECOND_US, 0), (SECOND_US + 1, SECOND_US)],
)
def test_for_a_second_or_less_all_samples_are_read_however_many(length_us: int, approximate_us: int) -> None:
    node = Node()
    times_us = us(0) + np.arange(1_000_001, dtype=np.int64) // 4
    node.samples.extend(key_of("m", {"host": "a"}), times_us, np.ones(len(times_us)))
    asked, _ = query("1s-median", 0, 1)
    assert node.history.downsampled(asked, Span(us(0), us(0) + length_us - 1)).approximate_us == approximate_us


def test_a_range_includes_its_end_to_the_microsecond() -> None:
    node = Node()
    node.add(9.999999, 10, 10.000001)
    assert counted(node.history.downsampled(*query("10s-count", 0, 10)).series) == {"a": [(0, 1), (10, 1)]}
    assert counted(node.history.downsampled(*query("10s-count", 0, 9.999999)).series) == {"a": [(0, 1)]}
    assert counted(node.history.downsampled(*query("10s-count", 0, 10.000001)).series) == {"a": [(0, 1), (10, 2)]}


def test_a_series_is_there_if_it_has_something_in_the_range_whatever_the_others_have() -> None:
    node = Node()
    for host, at_s in (("a", 1), ("b", 50), ("c", 1), ("d", 55)):
        node.samples.extend(key_of("m", {"host": host}), np.array([us(at_s)]), np.ones(1))
    for history in (node.history, History(node.tiers)):
        assert counted(history.downsampled(*query("10s-count", 30, 59)).series) == {"b": [(50, 1)], "d": [(50, 1)]}


def test_what_cannot_be_had_as_numbers_does_not_lengthen_the_span() -> None:
    node = Node(samples_window_s=940)
    node.add(10, value=float("nan"))
    node.add(65.5)
    node.tiers.fold()
    node.samples.trim()  # until a whole minute, before which there was no number
    assert node.samples.complete_from_us == us(60)
    assert node.history.span_us() == (us(65.5), us(65.5))


class Hasty(SampleStore):
    """Samples of which some are dropped whenever they are about to be read."""

    windows_s: Sequence[float] = ()

    def read(self, *which: Any) -> Iterator[TimeSeries]:
        if self.windows_s:
            self.window_s, *self.windows_s = self.windows_s
            self.trim()
        return super().read(*which)


@pytest.mark.parametrize("windows_s", [(), (800,), (1e9, 800), (800, 500)])
def test_everything_is_there_although_samples_are_dropped_while_they_are_read(windows_s: tuple[float, ...]) -> None:
    node = Node()
    samples = Hasty(1e9, clock=lambda: node.now_s, observe=node.tiers.add)
    samples.extend(key_of("m", {"host": "a"}), np.array([us(at) for at in (1, 301, 601, 901)]), np.ones(4))
    samples.windows_s = windows_s
    summaries, series = History(node.tiers, samples).everything("m")
    assert sum(float(each.rows["count"].sum()) for each in summaries) + sum(len(each.values) for each in series) == 4


# -- packed summaries --------------------------------------------------------------------------------------------------

HEAD = struct.Struct("<qqqIIb8I")
"""Width, first start and end; rows, series, decimals; lengths of the columns."""


def packed(values: Sequence[float], width_us: int = 10 * SECOND_US) -> Chunk:
    """Return a chunk of a series that has one sample a second."""
    times_us = us(0) + np.arange(len(values), dtype=np.int64) * SECOND_US
    return pack_rows(
        merged(of_samples(np.zeros(len(values), np.int64), times_us, np.array(values)), width_us), width_us
    )


def with_head(chunk: Chunk, **changed: int) -> bytes:
    names = ("width_us", "first_us", "end_us", "n_rows", "n_series", "decimals")
    lengths = [len(column) for column in chunk.columns]
    lengths[-1] += changed.pop("more_bytes", 0)
    return HEAD.pack(*({name: getattr(chunk, name) for name in names} | changed).values(), *lengths) + b"".join(
        chunk.columns
    )


@pytest.mark.parametrize(
    ("changed", "is_refused"),
    [
        ({}, False),
        ({"n_series": 0}, True),
        ({"n_series": 3}, False),
        ({"n_series": 4}, True),
        ({"n_rows": 4_000_000}, False),
        ({"n_rows": 4_000_001}, True),
        ({"width_us": 1}, False),
        ({"width_us": 0}, True),
        ({"decimals": -1}, False),
        ({"decimals": -2}, True),
        ({"decimals": 6}, False),
        ({"decimals": 7}, True),
        ({"more_bytes": 1}, True),
        ({"more_bytes": -1}, True),
    ],
)
def test_a_chunk_whose_head_says_what_cannot_be_is_refused(changed: dict[str, int], *, is_refused: bool) -> None:
    data = with_head(packed(range(30)), **changed)
    if is_refused:
        with pytest.raises(ValueError, match="not packed summaries"):
            chunk_from_bytes(data)
    else:
        assert chunk_from_bytes(data).to_bytes() == data


@pytest.mark.parametrize("lengths", [[2], [4], [4, -1], [-1, 4]])
def test_a_chunk_whose_series_do_not_have_its_rows_is_damaged(lengths: list[int]) -> None:
    chunk = packed(range(30))
    runs = encode_integers(np.array([*range(len(lengths)), *lengths]))
    with pytest.raises(ValueError, match="do not add up"):
        replace(chunk, n_series=len(lengths), columns=(runs, *chunk.columns[1:])).unpack(COLUMNS)


def test_a_chunk_knows_its_series_and_one_without_rows_does_no_harm() -> None:
    three = [rows(0, 10, series=2), rows(5, series=5), rows(0, 20, 40, series=9)]
    chunk = pack_rows(concatenated(three), 10 * SECOND_US)
    assert (chunk.series().tolist(), chunk.n_series, chunk.n_rows) == ([2, 5, 9], 3, 6)
    assert chunk.unpack(["series"])["series"].tolist() == [2, 2, 5, 9, 9, 9]
    runs = encode_integers(np.array([2, 4, 9, 3, 0, 3]))
    changed = replace(chunk, columns=(runs, *chunk.columns[1:]))
    assert changed.unpack(["series"])["series"].tolist() == [2, 2, 2, 9, 9, 9]


def test_a_chunk_takes_about_the_memory_that_it_says() -> None:
    data = packed(range(30)).to_bytes()
    tracemalloc.start()
    try:
        kept = [chunk_from_bytes(data) for _ in range(1000)]
        each_bytes = tracemalloc.get_traced_memory()[0] / len(kept)
    finally:
        tracemalloc.stop()
    assert kept[0].nbytes == pytest.approx(each_bytes, rel=0.2)


@pytest.mark.parametrize(
    ("values", "decimals", "sums"),
    [
        ([0.1] * 10, 1, [1.0]),  # added up as floats they are not quite 1
        ([0.1] * 20, 1, [1.0, 1.0]),
        ([-0.3] * 10, 1, [-3.0]),
        ([1 / 3] * 3, RAW, [1.0]),
        ([2.0**48] * 8 + [2.0**47] * 2, 0, [9 * 2.0**48]),
        ([2.0**48] * 10, 0, [10 * 2.0**48]),
        ([2.0**50] * 3, 0, [3 * 2.0**50]),
        ([2.0**50] * 4, RAW, [2.0**52]),  # beyond this, floats have no tenths to round
        ([-(2.0**50)] * 4, RAW, [-(2.0**52)]),
        ([2.0**50, 0.0, 0.0, 0.0], RAW, [2.0**50]),
        ([2.0**48 + 0.5], 1, [2.0**48 + 0.5]),
        ([2.0**48 + 0.5] * 4, RAW, [2.0**50 + 2]),
        ([0.0] * 4, 0, [0.0]),
    ],
)
def test_sums_of_decimals_are_kept_as_decimals_while_floats_hold_them(
    values: list[float], decimals: int, sums: list[float]
) -> None:
    chunk = packed(values)
    assert chunk.decimals == decimals
    assert chunk.unpack(["sum"])["sum"].tolist() == sums


def test_a_sum_that_is_not_that_of_its_decimals_is_kept_bit_by_bit() -> None:
    whole = merged(rows(*range(10)), 10 * SECOND_US)
    for off, decimals in ((0.0, 0), (1e-14, 0), (1e-12, RAW), (0.25, RAW)):
        changed: dict[str, Any] = {**whole, "sum": whole["sum"] + off}
        chunk = pack_rows(changed, 10 * SECOND_US)
        assert (off, chunk.decimals) == (off, decimals)
        assert chunk.unpack(["sum"])["sum"].tolist() == (changed if decimals == RAW else whole)["sum"].tolist()

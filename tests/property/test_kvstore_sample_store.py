"""The packed store gives back exactly what was put in."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from laggard.kvstore.series.sample_store import SampleStore, key_of
from laggard.kvstore.series.timeseries import block_span, decode_block, encode_block

times = st.lists(st.integers(0, 2**51), min_size=1, max_size=200).map(sorted)
decimals = st.integers(-(10**7), 10**7).map(lambda n: n / 1000)
values = st.one_of(
    st.floats(), st.integers(-(2**53), 2**53).map(float), decimals, st.sampled_from([0.0, -0.0, 1e300, 0.1, 2.0**60])
)


@st.composite
def samples(draw: st.DrawFn) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    drawn = draw(times)
    kind = draw(st.sampled_from([decimals, values, st.just(5.0)]))
    found = draw(st.lists(kind, min_size=len(drawn), max_size=len(drawn)))
    return np.array(drawn, dtype=np.int64), np.array(found, dtype=np.float64)


@given(samples())
@example((np.array([0, 1]), np.array([1e308, 5e-324])))
def test_a_block_loses_nothing(given_samples: tuple[NDArray[np.int64], NDArray[np.float64]]) -> None:
    times_us, found = given_samples

    block = encode_block(times_us, found)

    decoded_times, decoded = decode_block(block)
    assert decoded_times.tolist() == times_us.tolist()
    assert decoded.tobytes() == found.tobytes() or np.isnan(found).any()
    np.testing.assert_array_equal(decoded, found)
    assert block_span(block) == (times_us[0], times_us[-1], len(times_us))


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.lists(st.tuples(st.integers(0, 5000), decimals), max_size=300)), max_size=8
    )
)
def test_a_series_is_read_sorted_by_time_whatever_the_order_of_writing(
    batches: list[tuple[str, list[tuple[int, float]]]],
) -> None:
    store = SampleStore(window_s=1e9, clock=lambda: 0.0)
    expected: dict[str, list[tuple[int, float]]] = {}
    for host, batch in batches:
        store.extend(
            key_of("m", {"host": host}),
            np.array([t for t, _ in batch], dtype=np.int64),
            np.array([v for _, v in batch]),
        )
        expected.setdefault(host, []).extend(batch)

    found = {series.tags["host"]: series for series in store.read(["m"], 1000, 4000)}

    wanted = {host: sorted(t for t, _ in batch if 1000 <= t <= 4000) for host, batch in expected.items()}
    assert {host: series.times_us.tolist() for host, series in found.items()} == {h: w for h, w in wanted.items() if w}
    assert store.size().samples == sum(len(batch) for _, batch in batches)


@given(
    st.lists(st.integers(0, 5000), min_size=1, max_size=300),
    st.lists(st.tuples(st.booleans(), values), min_size=2, max_size=5),
)
def test_series_read_together_equal_those_read_alone(shared: list[int], series: list[tuple[bool, float]]) -> None:
    store = SampleStore(window_s=1e9, clock=lambda: 0.0)
    for gpu, (is_shared, last) in enumerate(series):
        times_us = np.array(shared) + (0 if is_shared else gpu)
        found = np.append(np.arange(1.0, len(shared)), last)
        store.extend(key_of("m", {"gpu": str(gpu)}), times_us, found)

    together = list(store.read(["m"], 1000, 4000))

    alone = [each for gpu in range(len(series)) for each in store.read(["m"], 1000, 4000, partial(_is_gpu, str(gpu)))]
    assert [each.tags for each in together] == [each.tags for each in alone]
    for ours, its in zip(together, alone, strict=True):
        np.testing.assert_array_equal(ours.times_us, its.times_us)
        np.testing.assert_array_equal(ours.values, its.values)


def _is_gpu(gpu: str, tags: Mapping[str, str]) -> bool:
    return tags["gpu"] == gpu

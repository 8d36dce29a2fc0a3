"""Answers as JSON against an obvious way to write them."""

from __future__ import annotations

import json
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from telemetry.query import query_from_json
from telemetry.query.engine import Answer
from telemetry.server.answers import TABLE_FROM_POINTS, answers_to_json

many = st.integers(1, 2 * TABLE_FROM_POINTS)
lines = st.one_of(
    many.flatmap(lambda n: st.lists(st.integers(100, 999).map(float), min_size=n, max_size=n)),
    many.flatmap(lambda n: st.lists(st.sampled_from([0.5, 7.0, -1e300, math.nan]), min_size=n, max_size=n)),
    st.lists(st.floats(), max_size=5),
)


@given(
    st.lists(lines, min_size=1, max_size=3),
    st.sampled_from([0, 999_999_900, 1_700_000_000]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["", "1s-avg-nan"]),
)
def test_every_point_is_written_at_its_time(
    values: list[list[float]], start_s: int, arrays: bool, milliseconds: bool, downsample: str
) -> None:
    body = {"start": 1, "end": 2, "queries": [{"metric": "m", "aggregator": "sum", "downsample": downsample}]}
    query = query_from_json(body | ({"msResolution": True} if milliseconds else {}), 0, arrays=arrays)
    times_us = (start_s + np.arange(2 * TABLE_FROM_POINTS)) * 1_000_000
    answers = [Answer("m", {}, [], times_us[: len(line)], np.array(line)) for line in values]

    written = json.loads(answers_to_json(query, [(query.queries[0], each) for each in answers], []))

    shows_missing = query.nulls and downsample != ""
    for element, line in zip(written, values, strict=True):
        points = [
            (time_us // (1000 if milliseconds else 1_000_000), value if math.isfinite(value) else None)
            for time_us, value in zip(times_us.tolist(), line, strict=False)
            if math.isfinite(value) or shows_missing
        ]
        assert element["dps"] == ([list(point) for point in points] if arrays else {str(t): v for t, v in points})

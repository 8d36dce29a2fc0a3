"""The newest times of all links in a time range, of a running job or of dumps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from laggard.telemetry.link_matrix import LEAF, SEND_TIME, TRANSFER_BYTES, LinkMatrix, matrix_of, newest_of_one_size
from laggard.telemetry.nodes.sources import Source
from laggard.telemetry.query.engine import Answer, Span
from laggard.telemetry.query.parsing import series_query
from laggard.telemetry.query.times import SECOND_US

# With 16 nodes, and a round every five minutes, a pair meets within 25 minutes.
WITHIN_S = 1_800
_BUCKET_S = 10
_BUCKET_US = _BUCKET_S * SECOND_US


def links_between(source: Source, span: Span, nodes: Collection[str] = ()) -> LinkMatrix | None:
    """Return the matrix at the end of a time range; None if no link was measured in it, or in its last half hour."""
    # What falls into a bucket has the time of its start.
    start_us = span.start_us - span.start_us % _BUCKET_US
    span = Span(max(start_us, span.end_us - WITHIN_S * SECOND_US), span.end_us)
    samples = [
        ((each.tags["host"], each.tags["peer"]), at, value)
        for each in _asked(source, SEND_TIME, "peer", span)
        if not nodes or {each.tags["host"], each.tags["peer"]} <= {*nodes}
        for at, value in _points(each)
    ]
    if not samples:
        return None
    sizes = [point for each in _asked(source, TRANSFER_BYTES, "host", span) for point in _points(each)]
    leaves = sorted(_asked(source, LEAF, "leaf", span), key=lambda each: int(each.times_us[-1]))
    return matrix_of(newest_of_one_size(samples, sizes), {each.tags["host"]: each.tags["leaf"] for each in leaves})


def _asked(source: Source, metric: str, tag: str, span: Span) -> Sequence[Answer]:
    """Return the series of a metric that have samples and the tags that make them ours."""
    found = source.evaluate(series_query(metric, f"{_BUCKET_S}s-last"), span).answers
    return [each for each in found if {"host", tag} <= each.tags.keys()]


def _points(answer: Answer) -> Iterator[tuple[int, float]]:
    return zip(answer.times_us.tolist(), answer.values.tolist(), strict=True)

"""The newest times of all links in a time range, of a running job or of dumps."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from laggard.telemetry.link_matrix import LEAF, SEND_TIME, TRANSFER_BYTES, LinkMatrix, matrix_of, newest_of_one_size
from laggard.telemetry.nodes.sources import Source
from laggard.telemetry.query.engine import Answer, Span
from laggard.telemetry.query.parsing import series_query
from laggard.telemetry.query.times import SECOND_US

# With 16 nodes, and a round every five minutes, a pair meets within 25 minutes.
WITHIN_S = 1_800
_BUCKET_S = 10
_BUCKET_US = _BUCKET_S * SECOND_US
# The tags that make a series ours.
_TAGS = {SEND_TIME: {"host", "peer"}, TRANSFER_BYTES: {"host"}, LEAF: {"host", "leaf"}}


def links_between(source: Source, span: Span, nodes: Collection[str] = ()) -> tuple[LinkMatrix | None, Collection[str]]:
    """Return the matrix at the end of a time range, and the nodes that did not answer.

    There is no matrix if no link was measured in the range, or in its last half hour.
    """
    # What falls into a bucket has the time of its start.
    start_us = span.start_us - span.start_us % _BUCKET_US
    span = Span(max(start_us, span.end_us - WITHIN_S * SECOND_US), span.end_us)
    found = source.evaluate_all([(series_query(metric, f"{_BUCKET_S}s-last"), span) for metric in _TAGS])
    missing = {host for each in found for host in each.missing}
    times, sizes, leaves = (
        [answer for answer in each.answers if tags <= answer.tags.keys()]
        for each, tags in zip(found, _TAGS.values(), strict=True)
    )
    samples = [
        ((each.tags["host"], each.tags["peer"]), at, value)
        for each in times
        if not nodes or {each.tags["host"], each.tags["peer"]} <= {*nodes}
        for at, value in _points(each)
    ]
    if not samples:
        return None, missing
    of_one_size = newest_of_one_size(samples, [point for each in sizes for point in _points(each)])
    leaves.sort(key=lambda each: int(each.times_us[-1]))
    return matrix_of(of_one_size, {each.tags["host"]: each.tags["leaf"] for each in leaves}), missing


def _points(answer: Answer) -> Iterator[tuple[int, float]]:
    return zip(answer.times_us.tolist(), answer.values.tolist(), strict=True)

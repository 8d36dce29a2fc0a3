"""Raw samples of all nodes, for programs and dumps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from laggard.kvstore.series.timeseries import TimeSeries
from laggard.telemetry.nodes.bus import NodeAsker
from laggard.telemetry.nodes.sources import MAX_TRAVELLING_SAMPLES, unpack_series


@dataclass(frozen=True, slots=True)
class Gathered:
    """The series that each node has, since when (Unix time in microseconds), and the nodes that did not answer."""

    by_host: Mapping[str, Sequence[TimeSeries]]
    since_us: Mapping[str, int]
    missing: list[str]

    @property
    def series(self) -> list[TimeSeries]:
        """All series."""
        return list(chain.from_iterable(self.by_host.values()))


def gather(
    asker: NodeAsker,
    metrics: Collection[str],
    start_us: int,
    end_us: int,
    *,
    tags: Mapping[str, str] | None = None,
    tag_keys: Collection[str] = (),
    expected: Collection[str] = (),
) -> Gathered:
    """Return the series of some metrics, with all of their samples in a time range; some nodes are expected."""
    question: dict[str, Any] = {
        "kind": "samples",
        "metrics": list(metrics),
        "start_us": start_us,
        "end_us": end_us,
        "tags": dict(tags or {}),
        "tag_keys": list(tag_keys),
    }
    asked = sorted({*asker.hosts(), *expected})
    question["samples"] = MAX_TRAVELLING_SAMPLES // max(1, len(asked))
    replies = asker.ask(question, hosts=asked)
    return Gathered(
        {host: unpack_series(reply) for host, reply in replies.by_host.items()},
        {host: reply["since_us"] for host, reply in replies.by_host.items()},
        replies.missing,
    )

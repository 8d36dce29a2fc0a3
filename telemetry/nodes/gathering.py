"""Raw samples of all nodes, for programs and dumps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from laggard.kvstore.series.timeseries import TimeSeries
from laggard.telemetry.nodes.bus import NodeAsker
from laggard.telemetry.nodes.sources import MAX_TRAVELLING_SAMPLES, unpack_series

__all__ = ["Gathered", "gather"]


@dataclass(frozen=True, slots=True)
class Gathered:
    """Series, and the nodes that did not answer in time."""

    series: list[TimeSeries]
    missing: list[str]


def gather(
    asker: NodeAsker,
    metrics: Collection[str],
    start_us: int,
    end_us: int,
    *,
    tags: Mapping[str, str] | None = None,
    tag_keys: Collection[str] = (),
    hosts: Collection[str] | None = None,
    deadline_s: float | None = None,
) -> Gathered:
    """Return the series of some metrics, with all of their samples in a time range.

    Parameters
    ----------
    asker
        Asks the nodes.
    metrics
        Names of the metrics.
    start_us, end_us
        Both inclusive.
    tags, tag_keys
        Only series that have these tags, and tags with these keys.
    hosts
        Which nodes to ask; by default all that listen.
    deadline_s
        How long to wait for the nodes; None: as long as the asker does.
    """
    question: dict[str, Any] = {
        "kind": "samples",
        "metrics": list(metrics),
        "start_us": start_us,
        "end_us": end_us,
        "tags": dict(tags or {}),
        "tag_keys": list(tag_keys),
    }
    asked = asker.hosts() if hosts is None else list(hosts)
    question["samples"] = MAX_TRAVELLING_SAMPLES // max(1, len(asked))
    replies = asker.ask(question, hosts=asked, deadline_s=deadline_s)
    return Gathered([each for reply in replies.by_host.values() for each in unpack_series(reply)], replies.missing)

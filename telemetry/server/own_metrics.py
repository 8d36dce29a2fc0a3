"""What the server knows of the job itself, for ``/metrics``: its nodes, verdicts, launch and progress."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from laggard.kvstore.series.sample_store import Newest
from laggard.telemetry.events import Event
from laggard.telemetry.nodes.watch import NodeHealth
from laggard.telemetry.page.content import accused
from laggard.telemetry.query.times import SECOND_US


def own_metrics(
    health: Mapping[str, NodeHealth], events: Iterable[Event], launch: int | None, progress_s: float | None, now_us: int
) -> list[Newest]:
    """Return the server's own metrics; what is not known, or has not happened, is left out."""
    found = []
    for host, node in health.items():
        tags = {"host": host}
        found += [
            Newest("laggard.node_up", tags, now_us, float(node.up)),
            Newest("laggard.node_lag", tags, now_us, node.lag_s),
            Newest("laggard.node_clock_skew", tags, now_us, node.clock_skew_s),
            Newest("laggard.node_dropped", tags, now_us, float(node.dropped)),
        ]
    for (host, gpu), verdict in accused(events).items():
        tags = {"host": host} | ({"gpu": gpu} if gpu else {})
        found.append(Newest("laggard.slow_since", tags, now_us, verdict.time_us / SECOND_US))
    if launch is not None:
        found.append(Newest("laggard.launch", {}, now_us, float(launch)))
    if progress_s is not None:
        found.append(Newest("laggard.progress", {}, now_us, progress_s))
    return found

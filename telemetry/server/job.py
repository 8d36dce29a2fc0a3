"""What the server knows of the job: its launches, the nodes of each, how these are, and that as metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from laggard.kvstore.client.connection import Session
from laggard.kvstore.client.fence import current_launch
from laggard.kvstore.control import Control, LaunchRecord
from laggard.kvstore.errors import NoLaunchRecordError
from laggard.kvstore.series.sample_store import Newest
from laggard.telemetry.events import Event, EventLog
from laggard.telemetry.nodes.watch import NodeHealth, NodeWatch
from laggard.telemetry.page.content import accused
from laggard.telemetry.query.times import SECOND_US, now_us
from laggard.telemetry.server.handlers import Reach


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


class FollowedJob:
    """Follows the job through its launches."""

    def __init__(self, session: Session, events: EventLog) -> None:
        self._session = session  # the primary's environment and its connection to the state server
        self._events = events  # the job's events
        self._began_us = now_us()
        self._launch: int | None = None
        self._record: LaunchRecord | None = None
        self._devices: frozenset[tuple[str, str]] = frozenset()

    def update(self) -> None:
        """Look for a new launch."""
        launch = current_launch(self._session.client, self._session.endpoint)
        if launch is None or launch == self._launch:
            return
        try:
            self._record = Control(self._session.client, self._session.endpoint, launch).read_launch()
        except NoLaunchRecordError:
            return  # not written yet
        self._launch = launch
        nodes_at_hand = (*self._record.nodes, *self._record.reserve)
        self._devices |= {(node.hostname, gpu) for node in nodes_at_hand for gpu in node.devices}

    def nodes(self) -> set[str]:
        """Return the nodes of the current launch."""
        return set() if self._record is None else {node.hostname for node in self._record.nodes}

    def nodes_ever(self) -> set[str]:
        """Return the nodes of all launches: one that was lost is missed until the job ends."""
        return self.nodes().union(*(event.nodes for event in self._all_events()))

    def reach(self, watch: NodeWatch) -> Reach:
        """Return since when there has been something to see, and on which nodes."""
        first = min((event.time_us for event in self._all_events()), default=self._began_us)
        return Reach(
            self._events.job or "a job",
            min(first, self._began_us),
            now_us(),
            nodes=self.nodes(),
            missing=self.missing(watch.health()),
            devices=self._devices,
        )

    def health(self, watch: NodeWatch) -> Mapping[str, Any]:
        """Return whether all nodes of the launch answer, and how each node is."""
        found = watch.health()
        missing = self.missing(found)
        nodes = {host: asdict(node) for host, node in found.items()}
        status = "degraded" if missing else "ok"
        return {"status": status, "launch": self._launch, "nodes": nodes, "missing": missing}

    def own_metrics(self, watch: NodeWatch) -> list[Newest]:
        """Return what the server knows of the job, for ``/metrics``."""
        events = self._all_events()
        return own_metrics(watch.health(), events, self._launch, self._events.progress_s, now_us())

    def missing(self, health: Mapping[str, NodeHealth]) -> list[str]:
        """Return the nodes of the launch that do not answer."""
        return sorted(host for host in self.nodes() if host not in health or not health[host].up)

    def _all_events(self) -> list[Event]:
        return self._events.between(0, now_us())

"""What the server knows of the job: its launches, the nodes of each, and how these are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from laggard.kvstore.client.connection import Session
from laggard.kvstore.client.fence import current_launch
from laggard.kvstore.control import Control, LaunchRecord
from laggard.kvstore.errors import NoLaunchRecordError
from laggard.kvstore.series.sample_store import Newest
from laggard.telemetry.events import Event, EventLog
from laggard.telemetry.nodes.watch import NodeHealth, NodeWatch
from laggard.telemetry.query.times import now_us
from laggard.telemetry.server.handlers import Reach
from laggard.telemetry.server.own_metrics import own_metrics


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

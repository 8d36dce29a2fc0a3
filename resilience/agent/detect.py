"""``--detect`` on one node, for one launch: ``python -m laggard.resilience.agent.detect WATCH``.

Probes the devices of the node, unless the program does so itself, or its links, or nothing
(:class:`laggard.resilience.wire.detection.Watch`). On the primary it also judges the readings of all nodes, as a
detector inside the program would, except that each node starts its own collector.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from laggard.collectors.group import CollectorGroup, NodeCollector
from laggard.collectors.links.collector import LinkCollector
from laggard.collectors.ray_actors import NodeActors
from laggard.detectors.judging.groups import Groups, read_groups
from laggard.detectors.sections import SectionDetector
from laggard.detectors.slow_gpu import SlowGPUDetector
from laggard.detectors.slow_link import SlowLinkDetector
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.control import Control, LaunchRecord, NodeRecord
from laggard.kvstore.errors import FencedError
from laggard.kvstore.state.mapping import State
from laggard.logs import configure_logging
from laggard.resilience.wire import decode
from laggard.resilience.wire.detection import Watch


class _DetectorBeside(SlowGPUDetector):
    """A detector that collects on this node only: each of the other nodes runs one like it."""

    def _place(self, nodes: Sequence[NodeRecord]) -> NodeActors | NodeCollector | None:
        here = current_session().environment.node
        is_mine = not self.inline_probes and any(node.hostname == here and node.devices for node in nodes)
        return NodeCollector(self.for_nodes()) if is_mine else None


class _LinksBeside(SlowLinkDetector):
    """A detector of slow links that collects on this node only, if the program runs on it."""

    def _place(self, launch: LaunchRecord) -> LinkCollector | None:
        here = current_session().environment.node
        return self.links_here() if any(node.hostname == here for node in launch.nodes) else None


def main(watch: Watch) -> None:
    """Probe, and on the primary judge, until SIGTERM."""
    configure_logging()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # in all threads, so that sigwait gets it
    session = current_session()
    launch = Control(session.client, session.endpoint, session.environment.launch).read_launch()
    groups = None if watch.groups is None else read_groups(Path(watch.groups))
    is_primary = session.environment.node == launch.primary.hostname
    with contextlib.ExitStack() as running:
        if "slow-link" in watch.watched:
            _watch_links(watch, running, is_primary=is_primary)
        if "slow-gpu" in watch.watched:
            _watch_devices(watch, groups, running, is_primary=is_primary)
        elif "sections" in watch.watched and is_primary:
            running.enter_context(
                SectionDetector(state=State.current(), groups=groups, restart_cost=watch.restart_cost_s)
            )
        signal.sigwait({signal.SIGTERM})


def _watch_links(watch: Watch, running: contextlib.ExitStack, *, is_primary: bool) -> None:
    links = _LinksBeside(
        watch.interval_s, state=State.current(), restart_cost=watch.restart_cost_s, interface=watch.link_interface
    )
    if is_primary:
        links.start()
    else:
        links.collect_here()
    running.callback(links.stop)


def _watch_devices(watch: Watch, groups: Groups | None, running: contextlib.ExitStack, *, is_primary: bool) -> None:
    detector = _DetectorBeside(
        watch.interval_s,
        state=State.current(),
        groups=groups,
        restart_cost=watch.restart_cost_s,
        inline_probes=watch.inline_probes,
    )
    if is_primary:
        detector.start()
        # The next launch may have begun; what was learned is in State.
        running.enter_context(contextlib.suppress(FencedError))
        running.callback(detector.stop)
    else:
        CollectorGroup.start(detector)


if __name__ == "__main__":
    main(decode(sys.argv[1].encode(), Watch))

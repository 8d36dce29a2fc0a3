"""``--detect`` on one node, for one launch: ``python -m laggard.resilience.agent.detect INTERVAL_S``.

Probes the devices of the node, unless the program does so itself (``--inline-probes``), or its links, or nothing
(``--watched``). On the primary it also judges the readings of all nodes, as a detector inside the program would,
except that each node starts its own collector.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from laggard.collectors.group import CollectorGroup, NodeCollector
from laggard.collectors.links.collector import LinkCollector
from laggard.collectors.ray_actors import NodeActors
from laggard.detectors.judging.groups import read_groups
from laggard.detectors.sections import SectionDetector
from laggard.detectors.slow_gpu import SlowGPUDetector
from laggard.detectors.slow_link import SlowLinkDetector
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.control import Control, LaunchRecord, NodeRecord
from laggard.kvstore.errors import FencedError
from laggard.kvstore.state.mapping import State
from laggard.logs import configure_logging
from laggard.resilience.decision.options import Watched


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


def main(arguments: Sequence[str]) -> int:
    """Probe, and on the primary judge, until SIGTERM."""
    configure_logging()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # in all threads, so that sigwait gets it
    session = current_session()
    launch = Control(session.client, session.endpoint, session.environment.launch).read_launch()
    options = _parser().parse_args(arguments)
    groups = None if options.groups is None else read_groups(options.groups)
    is_primary = session.environment.node == launch.primary.hostname
    if options.watched == "sections":
        with SectionDetector(state=State.current(), groups=groups, restart_cost=options.restart_cost):
            signal.sigwait({signal.SIGTERM})
        return 0
    if options.watched == "slow-link":
        links = _LinksBeside(
            options.interval_s,
            state=State.current(),
            restart_cost=options.restart_cost,
            interface=options.link_interface,
        )
        if is_primary:
            links.start()
        else:
            links.collect_here()
        signal.sigwait({signal.SIGTERM})
        links.stop()
        return 0
    detector = _DetectorBeside(
        options.interval_s,
        state=State.current(),
        groups=groups,
        restart_cost=options.restart_cost,
        inline_probes=options.inline_probes,
    )
    if is_primary:
        detector.start()
        signal.sigwait({signal.SIGTERM})
        with contextlib.suppress(FencedError):  # the next launch has begun; what was learned is in State
            detector.stop()
    else:
        CollectorGroup.start(detector)
        signal.sigwait({signal.SIGTERM})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m laggard.resilience.agent.detect", description=__doc__)
    parser.add_argument("interval_s", type=float)
    parser.add_argument("--inline-probes", action="store_true", help="the program runs the probes")
    parser.add_argument("--watched", choices=get_args(Watched), default="slow-gpu", help="what to watch for")
    parser.add_argument("--groups", type=Path, help="YAML file with the labels of ranks, devices and nodes")
    parser.add_argument("--restart-cost", type=float, metavar="S", help="what a restart costs; left out: as measured")
    parser.add_argument("--link-interface", default="", help="the network of which links are probed")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

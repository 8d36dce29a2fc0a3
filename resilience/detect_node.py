"""``python -m resilience.detect_node INTERVAL_S [PROBE...]``: one node's part of ``--detect``, for one launch.

It probes the devices of its node, unless the program does so itself (``--in-gaps``). On the primary it also watches
what the probes of all nodes read, and accuses: it is the detector that a program could have used itself, only that each
node starts its own collector.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Sequence

from collectors.group import CollectorGroup, NodeCollector
from collectors.placement import NodeActors
from detectors.slow_gpu import SlowGPUDetector
from kvstore.control import Control, NodeRecord
from kvstore.errors import FencedError
from kvstore.session import current_session
from kvstore.state import State

__all__ = ["main"]


class _DetectorBeside(SlowGPUDetector):
    """A detector that collects on this node alone: on each of the others runs one of the same kind."""

    def _place(self, nodes: Sequence[NodeRecord]) -> NodeActors | NodeCollector | None:
        here = current_session().environment.node
        is_mine = not self.in_gaps and any(node.hostname == here and node.devices for node in nodes)
        return NodeCollector(self) if is_mine else None


def main(arguments: Sequence[str]) -> int:
    """Probe, and on the primary judge, until SIGTERM comes."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # in all threads, so that it waits for us
    session = current_session()
    launch = Control(session.client, session.endpoint, session.environment.launch).read_launch()
    options = _parser().parse_args(arguments)
    detector = _DetectorBeside(
        options.interval_s, state=State.current(), probes_in_turn=options.probes, in_gaps=options.in_gaps
    )
    if session.environment.node == launch.nodes[0].hostname:
        detector.start()
        signal.sigwait({signal.SIGTERM})
        with contextlib.suppress(FencedError):  # the next launch has begun: what was learned was kept with the verdict
            detector.stop()
    else:
        CollectorGroup.start(detector)
        signal.sigwait({signal.SIGTERM})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m resilience.detect_node", description=__doc__)
    parser.add_argument("interval_s", type=float)
    parser.add_argument("probes", nargs="*", help="other probes, which run in turn")
    parser.add_argument("--in-gaps", action="store_true", help="the program runs them")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

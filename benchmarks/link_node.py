"""A node of the benchmark on real wires: probes its links as a real job's would, but a round a second.

``python -m benchmarks.link_node`` in the environment of a launch; its primary judges the readings of all nodes.
"""

from __future__ import annotations

import os
import signal
import sys

from laggard.collectors.links.collector import LinkCollector
from laggard.detectors.slow_link import LINK_MIN_SLOWDOWN, SlowLinkDetector
from laggard.kvstore.client.connection import current_session
from laggard.kvstore.control import Control, LaunchRecord
from laggard.logs import configure_logging

INTERVAL_S = 1.0


class _Here(SlowLinkDetector):
    """A detector that collects on this node only: each of the other nodes runs one like it."""

    def _place(self, launch: LaunchRecord) -> LinkCollector | None:
        del launch
        return self.links_here()


def main() -> int:
    """Probe, and on the primary judge, until SIGTERM."""
    configure_logging()
    # A node of a job has processors of its own: what else this machine does must not look like a slow wire.
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    session = current_session()
    launch = Control(session.client, session.endpoint, session.environment.launch).read_launch()
    detector = _Here(INTERVAL_S, min_slowdown=LINK_MIN_SLOWDOWN, restart_cost=0, max_intrusion=1.0)
    if session.environment.node == launch.primary.hostname:
        detector.start()
    else:
        detector.collect_here()
    signal.sigwait({signal.SIGTERM})
    detector.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())

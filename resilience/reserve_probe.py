"""The probe of one node of the reserve: times the test kernel on its idle devices, now and then.

The node's agent starts it (``python -m resilience.reserve_probe``) and ends it when the node is swapped in, so that the
devices are the program's alone. Its readings wait in the state server until somebody wants the node.
"""

from __future__ import annotations

import os
import select
import sys
import time

from collectors.device import Device, local_devices
from collectors.probes import Probe, gemm_probe
from kvstore.environment import LAUNCH
from kvstore.errors import FencedError
from kvstore.fence import current_launch
from kvstore.series import Sample, Series
from kvstore.session import Session, current_session

__all__ = ["LONGEST_INTERVAL_S", "METRIC", "main"]

METRIC = "reserve-probe-time"
# Each time twice as long as before: a node that is wanted early should have more than its first, cold reading.
FIRST_INTERVAL_S = 1.0
LONGEST_INTERVAL_S = 32.0
REPEATS = 3
NICENESS = 10


def main() -> None:
    """Probe until standard input closes."""
    os.nice(NICENESS)  # the devices are idle, but virtual nodes share their processors with the program
    os.environ.setdefault(LAUNCH, "0")  # we are of no launch, and must not be swept away with one
    session = current_session()
    probes = [(device, gemm_probe(device)) for device in local_devices()]
    interval_s = FIRST_INTERVAL_S
    while True:
        _store(session, [_sample(session.environment.node, device, probe) for device, probe in probes])
        if select.select([sys.stdin], [], [], interval_s)[0]:
            return
        interval_s = min(2 * interval_s, LONGEST_INTERVAL_S)


def _sample(host: str, device: Device, probe: Probe) -> Sample:
    tags = {"host": host, "gpu": device.gpu, "model": device.model}
    return Sample(METRIC, time.time(), tuple(probe.seconds() for _ in range(REPEATS)), tags)


def _store(session: Session, samples: list[Sample]) -> None:
    while True:
        launch = current_launch(session.client, session.endpoint) or 0
        try:
            return Series(session.client, session.endpoint, launch).add(samples)
        except FencedError:
            continue  # a relaunch came in between


if __name__ == "__main__":
    main()

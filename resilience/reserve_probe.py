"""The probe of one node of the reserve: times the test kernel on its idle devices, now and then.

The node's agent starts it (``python -m resilience.reserve_probe``) and ends it when the node is swapped in, so that the
devices are the program's alone. Its readings wait in the state server until somebody wants the node.
"""

from __future__ import annotations

import functools
import math
import os
import select
import sys
import time
from collections.abc import Callable

from collectors.device import Device, device_makers
from collectors.probes import WRONG, Probe, gemm_probe
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
    probes = {gpu: _lazily(make) for gpu, make in device_makers().items()}
    interval_s = FIRST_INTERVAL_S
    while True:
        _store(session, [_sample(session.environment.node, gpu, probe) for gpu, probe in probes.items()])
        if select.select([sys.stdin], [], [], interval_s)[0]:
            return
        interval_s = min(2 * interval_s, LONGEST_INTERVAL_S)


def _lazily(make: Callable[[], Device]) -> Callable[[], Probe]:
    """Return what makes a device's probe once; a device that cannot be made now may be there again the next time."""
    return functools.cache(lambda: gemm_probe(make()))


def _sample(host: str, gpu: str, probe_of: Callable[[], Probe]) -> Sample:
    tags = {"host": host, "gpu": gpu}
    try:
        probe = probe_of()
        seconds = tuple(probe.seconds() for _ in range(REPEATS))
        tags |= {"model": probe.device.model}
        fault = probe.fault()
    except RuntimeError as error:  # CuPy's own are of this kind
        seconds, fault = (math.nan,), f"it cannot run a test kernel: {error}"
    return Sample(METRIC, time.time(), seconds, {**tags, WRONG: fault} if fault else tags)


def _store(session: Session, samples: list[Sample]) -> None:
    while True:
        launch = current_launch(session.client, session.endpoint) or 0
        try:
            return Series(session.client, session.endpoint, launch).add(samples)
        except FencedError:
            continue  # a relaunch came in between


if __name__ == "__main__":
    main()

"""The probe of a reserve node: times the test kernel on its idle devices now and then.

The node's agent starts it (``python -m laggard.resilience.agent.reserve_probe``) and ends it when the node is swapped
in, so that the program has the devices to itself. The readings are kept in the state server until the node is needed.
"""

from __future__ import annotations

import functools
import math
import os
import select
import sys
import time
from collections.abc import Callable

from laggard.collectors.cuda_errors import is_of_the_device
from laggard.collectors.device import Device, device_makers
from laggard.collectors.group import ERROR, in_a_line
from laggard.collectors.probe_metrics import RESERVE_PROBE_TIME
from laggard.collectors.probes import WRONG, Probe, gemm_probe
from laggard.kvstore.client.connection import Session, current_session
from laggard.kvstore.client.environment import LAUNCH
from laggard.kvstore.client.fence import current_launch
from laggard.kvstore.errors import FencedError
from laggard.kvstore.series.streams import Sample, Series
from laggard.logs import configure_logging

# Doubled each time, so that a node that is needed early has more than its first reading, taken cold.
FIRST_INTERVAL_S = 1.0
LONGEST_INTERVAL_S = 32.0
REPEATS = 3
NICENESS = 10


def main() -> None:
    """Probe until standard input closes."""
    configure_logging()
    os.nice(NICENESS)  # the devices are idle, but virtual nodes share the program's processors
    os.environ.setdefault(LAUNCH, "0")  # we belong to no launch, and must not be ended as a leftover of one
    session = current_session()
    probes = {gpu: _lazily(make) for gpu, make in device_makers().items()}
    interval_s = FIRST_INTERVAL_S
    while True:
        _store(session, [_sample(session.environment.node, gpu, probe) for gpu, probe in probes.items()])
        if select.select([sys.stdin], [], [], interval_s)[0]:
            return
        interval_s = min(2 * interval_s, LONGEST_INTERVAL_S)


def _lazily(make: Callable[[], Device]) -> Callable[[], Probe]:
    """Return a function that creates a device's probe once; after a failure it tries again."""
    return functools.cache(lambda: gemm_probe(make()))


def _sample(host: str, gpu: str, probe_of: Callable[[], Probe]) -> Sample:
    tags = {"host": host, "gpu": gpu}
    try:
        probe = probe_of()
        seconds = tuple(probe.seconds() for _ in range(REPEATS))
        tags |= {"model": probe.device.model}
        fault = probe.fault()
    except Exception as error:  # noqa: BLE001 - a driver or its library may raise anything
        if not is_of_the_device(error):  # a library that is missing makes no node unfit
            return Sample(RESERVE_PROBE_TIME, time.time(), (math.nan,), {**tags, ERROR: in_a_line(error)})
        seconds, fault = (math.nan,), f"it cannot run a test kernel: {error}"
    return Sample(RESERVE_PROBE_TIME, time.time(), seconds, {**tags, WRONG: fault} if fault else tags)


def _store(session: Session, samples: list[Sample]) -> None:
    while True:
        launch = current_launch(session.client, session.endpoint) or 0
        try:
            return Series(session.client, session.endpoint, launch).add(samples)
        except FencedError:
            continue  # a launch has begun in between


if __name__ == "__main__":
    main()

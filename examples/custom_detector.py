"""A custom collector, a custom detector, and a relaunch that the detector requests.

    laggard --local-nodes=3 --nodes=2 --virtual-gpus=2 --telemetry-level=1 --resilient examples/custom_detector.py

``MyGroup`` collects a reading on each node. ``MyDetector`` collects one on each device and judges them: the node of a
device that copies memory five times as slowly as the others is left out of the next launch. In the first launch this
program itself slows down a device.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from typing import Any

import ray

from laggard import CollectorDetectorGroup, CollectorGroup, Job, NotInJobError, local_device, node_strategy

NUMBERS = 1 << 20
ROUNDS_TO_JUDGE = 3
DEADLINE_S = 100.0


class MyGroup(CollectorGroup):
    """How long each node's disk takes to write a megabyte, in seconds. Only collected: look at it in Grafana."""

    metric_name = "disk-write-time"
    per_gpu = False

    def collector_test(self, args: Any) -> float:
        """Return one reading."""
        begun_s = time.perf_counter()
        with tempfile.TemporaryFile() as file:
            file.write(bytes(args))
            file.flush()
            os.fsync(file.fileno())
        return time.perf_counter() - begun_s


class MyDetector(CollectorDetectorGroup):
    """How long each device takes to copy memory, in seconds on its own clock; the slowest are left out."""

    metric_name = "copy-time"

    def collector_test(self, args: Any) -> float:
        """Return one reading of ``self.device``."""
        numbers = self.device.array_module.ones(args)
        return self.device.timed(lambda: numbers.copy())[1]

    def analyze_data(self, data: dict[tuple[str, str], list[float]], analysis_args: Any) -> tuple[bool, list[str]]:
        """Return whether to relaunch, and without which hosts; ``data`` has the last readings of each (host, gpu)."""
        typical = {device: statistics.median(times) for device, times in data.items() if len(times) >= ROUNDS_TO_JUDGE}
        usual = statistics.median(typical.values()) if typical else 0.0
        slow = sorted({host for (host, _), seconds in typical.items() if seconds > analysis_args * usual})
        return bool(slow), slow


@ray.remote(num_cpus=0)
def copy_forever() -> None:
    """Keep this process's device busy with long copies."""
    device = local_device()
    numbers = device.array_module.ones(20 * NUMBERS)
    while True:
        device.run(lambda: numbers.copy())


def main() -> int:
    """Slow down the last node in the first launch; the second launch runs without it."""
    job = Job.current(local=False)
    hosts = ", ".join(node.hostname for node in job.nodes)
    if not all(node.devices for node in job.nodes) or len(job.nodes) < 2:
        sys.exit("this needs two nodes with devices: run it on GPUs, or with laggard --local-nodes=3 --virtual-gpus=2")
    print(f"launch {job.launch} on {hosts}", flush=True)
    ray.init()
    with MyGroup(1.0, collector_args=1 << 20), MyDetector(1.0, collector_args=NUMBERS, analysis_args=5.0):
        if not job.restarted:
            victim = job.nodes[-1]
            device = {"env_vars": {"CUDA_VISIBLE_DEVICES": victim.devices[0]}}
            load = copy_forever.options(scheduling_strategy=node_strategy(victim), runtime_env=device).remote()
            ray.get(load, timeout=DEADLINE_S)  # until MyDetector has us relaunched
    print("the slow node is gone, and the job goes on")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NotInJobError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)

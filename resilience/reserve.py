"""Which nodes of the reserve are slow, known before one of them is wanted.

Each node of the reserve is probed in the background with the kernel of :class:`detectors.SlowGPUDetector`
(:mod:`resilience.reserve_probe`). When a node is to be swapped in, the newest readings are judged as one cross-section:
among themselves, like with like, since all of them are idle; and beside the detector's readings of the active nodes,
where the program has one. A device that is slow in either, or computes wrongly, makes its node slow.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from collectors.device import VirtualDevice
from collectors.probes import WRONG
from detectors.analysis import SlowGPUAnalysis
from detectors.slow_gpu import GPU_MIN_SLOWDOWN, VIRTUAL_MIN_SLOWDOWN, SlowGPUDetector
from detectors.verdict import Verdict
from kvstore.endpoint import Endpoint
from kvstore.series import Sample, Series
from resilience.cluster import Cluster
from resilience.reserve_probe import LONGEST_INTERVAL_S, METRIC
from resilience.roster import Roster

__all__ = ["Reserve", "slow_in_reserve"]

NAME = "reserve-probe"
COMMAND = (sys.executable, "-m", "resilience.reserve_probe")
OLDEST_S = 4 * LONGEST_INTERVAL_S


class Reserve:
    """Has the nodes of the reserve probed, and tells which are slow.

    Parameters
    ----------
    endpoint
        The job's state server, where the readings are.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._series = Series(endpoint.connect(), endpoint, launch=0)
        self._prepared = False

    def probe(self, cluster: Cluster, roster: Roster) -> None:
        """Probe the nodes of the reserve that have devices, and the active ones no longer; does not wait."""
        if roster.reserve and not self._prepared:
            self._prepared = True
            # the statistics need it, and nobody should wait for its half a second between two launches
            threading.Thread(target=importlib.import_module, args=["scipy.stats"], daemon=True).start()
        for host in roster.active:
            cluster.nodes[host].stop_sidecar(NAME)
        for host in roster.reserve:
            if cluster.nodes[host].record.devices:
                cluster.nodes[host].start_sidecar(NAME, list(COMMAND))

    def slow(self, roster: Roster) -> list[Verdict]:
        """Return a verdict on each slow device of the reserve, by the readings that are there."""
        idle = self._newest(METRIC, roster.reserve)
        busy = self._newest(SlowGPUDetector.metric_name, roster.active) if idle else []
        return slow_in_reserve(idle, busy)

    def _newest(self, metric: str, hosts: Collection[str]) -> list[Sample]:
        after = f"{int((time.time() - OLDEST_S) * 1000)}-0"
        samples = (sample for _, sample in self._series.read(metric, after) if sample.tags["host"] in hosts)
        return list({(sample.tags["host"], sample.tags.get("gpu")): sample for sample in samples}.values())


def slow_in_reserve(idle: Iterable[Sample], busy: Iterable[Sample]) -> list[Verdict]:
    """Judge the devices of the reserve by one reading each; pure.

    Parameters
    ----------
    idle
        Readings of devices in the reserve.
    busy
        Readings of active devices, which the program slows down: they can show that a device is slower still.
    """
    idle = list(idle)
    accused: dict[tuple[str, str | None], Verdict] = {
        (sample.tags["host"], sample.tags["gpu"]): Verdict.of_fault(
            sample.tags["host"], sample.tags["gpu"], sample.tags[WRONG]
        )
        for sample in idle
        if WRONG in sample.tags
    }
    for model, (of_reserve, of_active) in _by_model(idle, busy).items():
        virtual = model == VirtualDevice.model
        analysis = SlowGPUAnalysis(min_slowdown=VIRTUAL_MIN_SLOWDOWN if virtual else GPU_MIN_SLOWDOWN)
        hosts = {sample.tags["host"] for sample in of_reserve}
        for peers in (of_reserve, [*of_reserve, *of_active]):
            readings = {(sample.tags["host"], sample.tags["gpu"]): list(sample.values) for sample in peers}
            for verdict in analysis.check(readings):
                if verdict.action == "restart" and verdict.host in hosts:
                    accused.setdefault((verdict.host, verdict.gpu), verdict)
    return list(accused.values())


def _by_model(
    idle: Iterable[Sample], busy: Iterable[Sample]
) -> Mapping[str, tuple[Sequence[Sample], Sequence[Sample]]]:
    models: dict[str, tuple[list[Sample], list[Sample]]] = {}
    for kind, samples in enumerate((idle, busy)):
        for sample in samples:
            models.setdefault(sample.tags.get("model", ""), ([], []))[kind].append(sample)
    return models

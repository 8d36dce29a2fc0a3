"""Which nodes of the reserve are slow, so that none of them is swapped in.

Each node of the reserve is probed in the background with the kernel of :class:`laggard.detectors.SlowGPUDetector`
(:mod:`laggard.resilience.agent.reserve_probe`). When a node is to be swapped in, the latest readings are judged as one
cross-section: among themselves, by device model, since all of these devices are idle; and together with the detector's
readings of the active nodes, if there are any. A device that is slow in either, or computes wrong results, makes its
node slow.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from laggard.collectors.device import VirtualDevice
from laggard.collectors.probe_metrics import PROBE_TIME, RESERVE_PROBE_TIME
from laggard.collectors.probes import WRONG
from laggard.detectors.analysis.slow_gpu_analysis import SlowGPUAnalysis
from laggard.detectors.statistics.thresholds import GPU_MIN_SLOWDOWN, VIRTUAL_MIN_SLOWDOWN
from laggard.detectors.verdict import Verdict
from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.control import NodeRecord
from laggard.kvstore.series.streams import Sample, Series
from laggard.resilience.agent.reserve_probe import LONGEST_INTERVAL_S
from laggard.resilience.decision.evidence import Finding
from laggard.resilience.decision.roster import Roster
from laggard.resilience.nodes.cluster import Cluster
from laggard.resilience.nodes.node import Node

NAME = "reserve-probe"
COMMAND = (sys.executable, "-P", "-m", "laggard.resilience.agent.reserve_probe")
OLDEST_S = 4 * LONGEST_INTERVAL_S
# The first reading of a device is taken cold: a node that would come back is slow if it still is at its third.
MIN_SLOW_LOOKS = 3


class Reserve:
    """Has the nodes of the reserve probed, and finds the slow ones."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._series = Series(endpoint.connect(), endpoint, launch=0)

    def probe(self, cluster: Cluster, roster: Roster) -> None:
        """Start probing the nodes that are not in use, and stop on the active ones; does not wait."""
        for host in roster.active:
            cluster.nodes[host].tasks.stop_sidecar(NAME)
        for host in (*roster.reserve, *(exclusion.host for exclusion in roster.excluded)):
            if host in cluster.nodes:
                self.probe_node(cluster.nodes[host])

    def probe_node(self, node: Node) -> None:
        """Start probing a node, if it has devices; does not wait."""
        if node.record.devices:
            node.tasks.start_sidecar(NAME, COMMAND)

    def faults_of(self, node: NodeRecord, roster: Roster, after_s: float) -> tuple[Finding, ...] | None:
        """Return what speaks against a node, from a reading of each of its devices later than a moment in Unix time."""
        newer = self._since(RESERVE_PROBE_TIME, {node.hostname}, after_s)
        looks = Counter(sample.tags["gpu"] for sample in newer)
        if len(looks) < len(node.devices):
            return None
        idle = [*_newest(newer), *self._newest(RESERVE_PROBE_TIME, roster.reserve)]
        found = slow_in_reserve(idle, self._newest(PROBE_TIME, roster.active))
        own = [verdict for verdict in found if verdict.host == node.hostname]
        if min(looks.values()) < MIN_SLOW_LOOKS and not any(verdict.severity == "faulty" for verdict in own):
            return None if own else ()
        return tuple(Finding("slow", slow=verdict.evidence) for verdict in own)

    def find_slow(self, roster: Roster) -> list[Verdict]:
        """Return a verdict on each slow device of the reserve, from the readings so far."""
        idle = self._newest(RESERVE_PROBE_TIME, roster.reserve)
        busy = self._newest(PROBE_TIME, roster.active) if idle else []
        return slow_in_reserve(idle, busy)

    def _newest(self, metric: str, hosts: Collection[str]) -> list[Sample]:
        return _newest(self._since(metric, hosts, time.time() - OLDEST_S))

    def _since(self, metric: str, hosts: Collection[str], after_s: float) -> list[Sample]:
        read = self._series.read(metric, f"{int(after_s * 1000)}-0")
        samples = [sample for _, sample in read if isinstance(sample, Sample)]
        return [sample for sample in samples if sample.tags["host"] in hosts and "gpu" in sample.tags]


def _newest(samples: Iterable[Sample]) -> list[Sample]:
    return list({(sample.tags["host"], sample.tags.get("gpu")): sample for sample in samples}.values())


def slow_in_reserve(idle: Iterable[Sample], busy: Iterable[Sample]) -> list[Verdict]:
    """Return a verdict on each slow device of the reserve, from one reading per device. Pure."""
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

"""What times the copies between the GPUs of a node, round by round, and says what their links have counted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

from laggard.collectors.causes import RULES
from laggard.collectors.device import GpuDevice
from laggard.collectors.group import CollectorGroup, NodeCollector
from laggard.collectors.links.nvlinks import NVLINK, NvLinks, errors_of_links
from laggard.collectors.links.peer_copies import PeerCopies, PeerRound, gpus_here
from laggard.collectors.links.reading import LinkReading
from laggard.collectors.links.schedule import rounds_of
from laggard.collectors.probe_schedule import Intrusion
from laggard.collectors.probing import symptom_reader
from laggard.collectors.ray_actors import NodeActors
from laggard.collectors.symptoms import SymptomTracker
from laggard.kvstore.control import NodeRecord
from laggard.telemetry.sending.sender import Telemetry

__all__ = ["PCIE", "PEER_LINK_TIME", "NodePeers", "PeerLinkCollector", "PeerReport"]


PEER_LINK_TIME = "peer-links"
"""The metric under which a node's readings are stored: one sample a round."""
COPY_TIME = "link.copy_s"
"""Metric for people, with the tags ``host`` and ``gpus``: ``0-1`` is a copy from GPU 0 to GPU 1."""
PARTNERS = 3
PCIE = "PCIe"
_REPORT = "report"
_NO_PAIR_S = 0.0
_SENTENCES = {rule.name: rule.sentence for rule in RULES}

Causes = Mapping[str, Mapping[str, str]]
"""By GPU and kind of link, NVLink or PCIe: what may make it slow, in a sentence."""


@dataclass(frozen=True, slots=True)
class PeerReport:
    """What a node says after a round, as the tags of its sample.

    Attributes
    ----------
    readings
        One for each direction of each pair that was measured.
    causes
        What the links of the GPUs have counted meanwhile.
    """

    readings: Sequence[LinkReading] = ()
    causes: Causes = field(default_factory=dict)

    def tags(self) -> dict[str, str]:
        """Return the tags of the sample."""
        return {_REPORT: json.dumps([[asdict(each) for each in self.readings], self.causes])}

    @classmethod
    def of_tags(cls, tags: Mapping[str, str]) -> PeerReport:
        """Read what :meth:`tags` returned; a node without a pair of GPUs has nothing to say."""
        readings, causes = json.loads(tags.get(_REPORT, "[[], {}]"))
        return cls([LinkReading(**each) for each in readings], causes)


class NodePeers:
    """The pairs of a node's GPUs, and what their links count.

    Parameters
    ----------
    devices
        The GPUs, two or more.
    """

    def __init__(self, devices: Sequence[GpuDevice]) -> None:
        self._copies = PeerCopies(devices)
        self._rounds = rounds_of([device.gpu for device in devices], "peers", partners=PARTNERS)
        self._counters = {device.gpu: _Counters(device) for device in devices}
        self._number = 0

    def run(self) -> tuple[PeerRound, PeerReport]:
        """Measure the pairs whose turn it is."""
        self._number += 1
        found = self._copies.run(self._number, chain.from_iterable(next(self._rounds)))
        on_bus = {gpu for each in found.readings if NVLINK not in each.path for gpu in (each.sender, each.receiver)}
        causes = {gpu: counters.causes(bus_in_use=gpu in on_bus) for gpu, counters in self._counters.items()}
        return found, PeerReport(found.readings, {gpu: said for gpu, said in causes.items() if said})


class _Counters:
    """What the driver says of one GPU's links from round to round."""

    def __init__(self, device: GpuDevice) -> None:
        reader = symptom_reader(device)
        self._tracker = None if reader is None else SymptomTracker(reader, lambda _: True)
        self._links = NvLinks(device.bus_address)
        self._errors = self._links.errors()

    def causes(self, *, bus_in_use: bool) -> dict[str, str]:
        """Return what may make its links slow."""
        if self._tracker is None:
            return {}
        symptoms = self._tracker.take(bus_in_use=bus_in_use)
        before, self._errors = self._errors, self._links.errors()
        found = {
            NVLINK: errors_of_links(before, self._errors) or _SENTENCES[NVLINK](symptoms),
            PCIE: _SENTENCES[PCIE](symptoms),
        }
        return {kind: sentence for kind, sentence in found.items() if sentence}


class PeerLinkCollector(CollectorGroup):
    """Copies between the GPUs of each node; nothing on nodes with fewer than two, or without CuPy.

    Parameters
    ----------
    collection_rate
        Seconds from one round to the next.
    max_intrusion
        The largest share of the time that the copies may take.
    """

    metric_name = PEER_LINK_TIME
    per_gpu = False
    _node: NodePeers | None = None
    _report = PeerReport()

    def __init__(self, collection_rate: float, max_intrusion: float) -> None:
        super().__init__(collection_rate)
        self.max_intrusion = max_intrusion
        self.intrusion = Intrusion(max_intrusion)

    def collector_test(self, args: Any) -> float:
        """Run one round; return the seconds of its fastest copy, 0 if there is no pair."""
        del args
        if self._node is None:
            devices = gpus_here()
            if len(devices) < 2:
                return _NO_PAIR_S
            self._node = NodePeers(devices)
        found, self._report = self._node.run()
        self.intrusion.note(PEER_LINK_TIME, [found.cost_s])
        _tell_people(found.readings)
        return min(reading.duration_s for reading in found.readings)

    def _place(self, nodes: Sequence[NodeRecord]) -> NodeActors | NodeCollector | None:
        return super()._place([node for node in nodes if len(node.devices) > 1])

    def stride(self) -> int:
        """Return how many intervals apart rounds must be, to keep to ``max_intrusion``."""
        return self.intrusion.stride(PEER_LINK_TIME, self.collection_rate)

    def sample_tags(self) -> Mapping[str, str]:
        """Return the report of the round."""
        return self._report.tags()


def _tell_people(readings: Iterable[LinkReading]) -> None:
    telemetry = Telemetry()
    for each in readings:
        telemetry.add_data(COPY_TIME, each.duration_s, tagk="gpus", tagv=f"{each.sender}-{each.receiver}")

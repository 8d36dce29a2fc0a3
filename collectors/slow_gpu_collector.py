"""What :class:`laggard.detectors.SlowGPUDetector` sends to the nodes: the probes of each device, once per round."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from laggard.collectors.group import CollectorGroup
from laggard.collectors.probe_metrics import PROBE_TIME, metric_of_probe
from laggard.collectors.probes import GEMM_PROBE, PROBE_NAMES
from laggard.collectors.probing import Probing


def known_probes(names: Collection[str]) -> tuple[str, ...]:
    """Return the probes with these names, in the order in which they take turns."""
    if unknown := set(names) - set(PROBE_NAMES):
        raise ValueError(f"unknown probe {min(unknown)!r}: use one of {', '.join(PROBE_NAMES)}")
    return tuple(probe for probe in PROBE_NAMES if probe in names and probe != GEMM_PROBE)


class SlowGPUCollector(CollectorGroup):
    """Runs the main test on each device in every round, and one of the other probes in turn."""

    def __init__(
        self,
        collection_rate: float = 3.0,
        *,
        probes_in_turn: Collection[str] = (),
        max_intrusion: float = 1.0,
        metric_name: str = PROBE_TIME,
        repeats: int = 3,
        own_test: Callable[[Any], float] | None = None,
    ) -> None:
        super().__init__(collection_rate)
        self.probes_in_turn = known_probes(probes_in_turn)  # names of the other probes
        self.max_intrusion = max_intrusion  # the largest share of a device's time that the probes may take
        self.metric_name = metric_name
        self.repeats = repeats
        self.own_test = own_test  # replaces the matrix product as the main test
        self.probing: dict[str, Probing] = {}  # by device; filled by the process that runs the tests

    def collector_test(self, args: Any) -> float:
        """Run the main test once; return its seconds."""
        return self.product_seconds() if self.own_test is None else self.own_test(args)

    def product_seconds(self) -> float:
        """Run the matrix product once; return its seconds on the device's clock."""
        return self._probing_here().main_seconds()

    def read(self, round_number: int) -> Mapping[str, Sequence[float]]:
        """Return the main test's readings, and those of the probe whose turn it is."""
        probing = self._probing_here()
        readings = dict(super().read(round_number))
        probing.end_main(readings[self.metric_name])
        if other := probing.other(round_number // self.stride(), self.repeats):
            probe, seconds = other
            readings[metric_of_probe(self.metric_name, probe)] = seconds
        return readings

    def stride(self) -> int:
        """Return how many intervals apart this device's rounds must be, to keep to ``max_intrusion``."""
        return self._probing_here().stride(self.collection_rate)

    def sample_tags(self) -> Mapping[str, str]:
        """Return what the driver has reported since the last sample that may explain a slow reading."""
        return self._probing_here().tags()

    def _probing_here(self) -> Probing:
        """Return the probes of the device under test."""
        gpu = self.device.gpu
        if gpu not in self.probing:
            self.probing[gpu] = Probing(self.device, self.probes_in_turn, self.max_intrusion)
        return self.probing[gpu]

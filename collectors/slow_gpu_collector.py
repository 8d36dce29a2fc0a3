"""What :class:`laggard.detectors.SlowGPUDetector` sends to the nodes: the test of each device, once per round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from laggard.collectors.group import CollectorGroup
from laggard.collectors.probe_metrics import PROBE_TIME
from laggard.collectors.probing import Probing


class SlowGPU(CollectorGroup):
    """Runs a matrix product on each device in every round, or the detector's own test."""

    def __init__(
        self,
        collection_rate: float = 3.0,
        *,
        max_intrusion: float = 1.0,
        metric_name: str = PROBE_TIME,
        repeats: int = 3,
        own_test: Callable[[Any], float] | None = None,
    ) -> None:
        super().__init__(collection_rate)
        self.max_intrusion = max_intrusion  # the largest share of a device's time that the test may take
        self.metric_name = metric_name
        self.repeats = repeats
        self.own_test = own_test  # replaces the matrix product
        self.probing: dict[str, Probing] = {}  # by device; filled by the process that runs the tests

    def collector_test(self, args: Any) -> float:
        """Run the test once; return its seconds."""
        return self.product_seconds() if self.own_test is None else self.own_test(args)

    def product_seconds(self) -> float:
        """Run the matrix product once; return its seconds on the device's clock."""
        return self._probing_here().seconds()

    def read(self) -> list[float]:
        """Return the readings of a round."""
        seconds = super().read()
        self._probing_here().end_round(seconds)
        return seconds

    def stride(self) -> int:
        """Return how many intervals apart this device's rounds must be, to keep to ``max_intrusion``."""
        return self._probing_here().intrusion.stride(self.collection_rate)

    def sample_tags(self) -> Mapping[str, str]:
        """Return what the driver has reported since the last sample that may explain a slow reading."""
        return self._probing_here().tags()

    def _probing_here(self) -> Probing:
        """Return the probe of the device under test."""
        gpu = self.device.gpu
        if gpu not in self.probing:
            self.probing[gpu] = Probing(self.device, self.max_intrusion)
        return self.probing[gpu]

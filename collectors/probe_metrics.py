"""The metrics in which probes store their times: names only, for whoever reads them without probing."""

from __future__ import annotations

PROBE_TIME = "gpu-probe-time"
"""The main test's times on devices in use."""
RESERVE_PROBE_TIME = "reserve-probe-time"
"""Those on devices in reserve; the kernel is the same."""
PROBE_SEPARATOR = "."
"""Between a detector's metric and the name of the probe, in the metrics of the probes that run in turn."""


def metric_of_probe(metric_name: str, probe: str) -> str:
    """Return the metric of a probe that runs in turn."""
    return f"{metric_name}{PROBE_SEPARATOR}{probe}"

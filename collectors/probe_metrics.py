"""The metrics in which probes store their times: names only, for whoever reads them without probing."""

from __future__ import annotations

PROBE_TIME = "gpu-probe-time"
"""The test's times on devices in use."""
RESERVE_PROBE_TIME = "reserve-probe-time"
"""Those on devices in reserve; the kernel is the same."""

"""What a launch's detector beside the program is told: its only argument, as one line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Watched = Literal["slow-gpu", "sections", "slow-link"]
"""What ``--detect`` can watch for."""


@dataclass(frozen=True, slots=True)
class Watch:
    """What to watch for."""

    interval_s: float  # from one round of probes to the next
    # Whether the program runs the probes itself. Then only the primary runs a process, which judges the readings.
    inline_probes: bool = False
    groups: str | None = None  # file with the labels of ranks and devices; `None`: there are none
    # What is watched; for `sections`, only the program's own timings are compared, and nothing is probed
    watched: tuple[Watched, ...] = ("slow-gpu",)
    restart_cost_s: float | None = None  # what a restart costs; `None`: as measured
    link_interface: str = ""  # the network of which links are probed; empty: that of the nodes' addresses

"""What each launch's time was spent on, as bars of a picture: pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from laggard.resilience.record import wording
from laggard.resilience.record.effective_time import SHOWN_FROM_S, EffectiveTime
from laggard.resilience.record.timeline import Timeline
from laggard.resilience.text import duration

WIDTH = 1000.0
PART_ORDER: tuple[str, ...] = (
    "relaunch_s",
    "waiting_s",
    "start_s",
    "repeated_s",
    "effective_s",
    "slow_s",
    "unknown_s",
    "unsaved_s",
    "lost_s",
)
"""In the order in which they come within a launch."""


@dataclass(frozen=True, slots=True)
class BarPart:
    """A part of a bar: what it is of, where it begins and how wide it is, of ``WIDTH``, and in words."""

    name: str
    left: float
    width: float
    text: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A launch's bar; ``effective`` says how much of it became progress, and is empty if that is not known."""

    launch: int
    parts: tuple[BarPart, ...]
    effective: str

    @property
    def text(self) -> str:
        """All of it in words."""
        return ", ".join(part.text for part in self.parts)


def time_bars(timeline: Timeline, times: EffectiveTime) -> list[Bar]:
    """Return a bar for each launch and the relaunch before it; the longest fills the width."""
    longest_s = max((parts.total_s for parts in times.launches), default=0.0) or 1.0
    bars = []
    for launch, parts in zip(timeline.launches, times.launches, strict=True):
        seconds: Mapping[str, float] = dict(parts.by_name())
        drawn, left = [], 0.0
        for name in PART_ORDER:
            width = seconds.get(name, 0.0) / longest_s * WIDTH
            if seconds.get(name, 0.0) >= SHOWN_FROM_S:
                drawn.append(BarPart(name, left, width, f"{wording.PART_NAMES[name]} {duration(seconds[name])}"))
            left += width
        effective = "" if times.ratio is None else f"{duration(parts.effective_s)} effective"
        bars.append(Bar(launch.number, tuple(drawn), effective))
    return bars

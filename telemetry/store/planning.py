"""Which source answers which part of a time range: the samples themselves, or one of the tiers of summaries.

Every sample is in all sources, and a source is used only for times of which it still has everything. So each moment has
exactly one source, and where two meet is a boundary of both: nothing is counted twice, and nothing is missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from laggard.telemetry.query.times import SECOND_US
from laggard.telemetry.store.summaries import EXACT

SAMPLES = 1
"""The samples themselves, as a width of buckets in microseconds."""
SEAM_US = 60 * SECOND_US
"""Sources meet at multiples of this, the width of the coarsest tier."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A source."""

    width_us: int  # width of its buckets; 1: samples
    complete_from_us: int  # from this time on it has everything that there was


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a range: its source, its begin (included) and end (not included), and whether the answer is exact."""

    width_us: int
    begin_us: int
    end_us: int
    exact: bool


@dataclass(frozen=True, slots=True)
class Grid:
    """What is asked for."""

    begin_us: int  # the range, without its end
    end_us: int
    step_us: int  # all boundaries of buckets inside the range are multiples of this
    function: str  # combines the samples of a bucket

    def is_exact(self, width_us: int) -> bool:
        """Return whether buckets of this width give the same as the samples themselves."""
        return width_us == SAMPLES or (self.function in EXACT and self.step_us % width_us == 0)


def plan(grid: Grid, origins: Sequence[Origin]) -> list[Segment]:
    """Divide a range among the sources, from its end to its begin."""
    # Of those that are complete and exact, the coarsest is read; if none is exact, the finest. Where only a coarse
    # source is left, the range is widened to its whole buckets.
    segments: list[Segment] = []
    end_us = grid.end_us
    while end_us > grid.begin_us:
        segment = _last_segment(grid, origins, end_us)
        if segments and (segment.width_us, segment.exact) == (segments[-1].width_us, segments[-1].exact):
            segment = replace(segment, end_us=segments.pop().end_us)  # a source is read once
        segments.append(segment)
        end_us = segment.begin_us
    return segments


def _last_segment(grid: Grid, origins: Sequence[Origin], end_us: int) -> Segment:
    complete = [(each, begin_us) for each in origins if (begin_us := _usable_from(each, grid.begin_us)) < end_us]
    limit_us = grid.begin_us
    for origin, usable_us in reversed(complete):
        width_us = origin.width_us
        if not grid.is_exact(width_us):
            continue
        begin_us = max(_ceiling(usable_us, width_us), limit_us)
        if end_us % width_us == 0 and begin_us < end_us:
            return Segment(width_us, begin_us, end_us, exact=True)
        # A coarser source goes on where one of its buckets ends.
        if _ceiling(usable_us, width_us) < (boundary_us := end_us - end_us % width_us):
            limit_us = max(limit_us, boundary_us)
    if complete:
        finest, begin_us = complete[0]
    else:
        finest, begin_us = min(origins, key=lambda each: each.complete_from_us), grid.begin_us
    # If it is exact, then only an end of the range is inside a bucket: that bucket is taken as a whole.
    return Segment(finest.width_us, max(begin_us, limit_us), end_us, grid.is_exact(finest.width_us))


def _usable_from(origin: Origin, begin_us: int) -> int:
    return begin_us if origin.complete_from_us <= begin_us else _ceiling(origin.complete_from_us, SEAM_US)


def _ceiling(time_us: int, width_us: int) -> int:
    return -(-time_us // width_us) * width_us

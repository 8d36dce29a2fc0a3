"""Episode: since when a device has been slow, and what that costs the job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Episode:
    """A time in which a device is slow, from its first slow round on; single rounds may be as fast as ever."""

    since_s: float  # Unix time of the first slow round; `NaN` if unknown
    # The newest reading over its own past or over that of its typical peer now, whichever is less; over its typical
    # peer's alone if its peers accuse it as well
    slowdown: float
    share_lost: float  # mean share of the job's time that its last rounds cost, eight at most
    is_usual: bool = False  # whether those that ended by themselves let expect that one gets so long
    costly_part: float = 1.0  # the part of it to which that applies: before, it may have been much less slow

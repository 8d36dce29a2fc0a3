"""Episode: since when a device has been slow, and what that costs the job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Episode:
    """A time in which a device is slow, from its first slow round on; single rounds may be as fast as ever.

    Attributes
    ----------
    since_s
        Unix time of the first slow round; ``NaN`` if unknown.
    slowdown
        The newest reading over its own past or over that of its typical peer now, whichever is less; over its typical
        peer's alone if its peers accuse it as well.
    share_lost
        Mean share of the job's time that its last rounds cost, eight at most.
    costly_part
        The part of it to which that applies: before, it may have been much less slow.
    """

    since_s: float
    slowdown: float
    share_lost: float
    costly_part: float = 1.0

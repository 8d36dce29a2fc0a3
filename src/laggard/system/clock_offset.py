"""How far one clock is from another, measured by the round trip of a ping. Pure."""

from __future__ import annotations

from dataclasses import dataclass

# A clock that is further away than this is worth a word: the times in its node's logs mislead.
MUCH_S = 1.0


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """The offset of a clock."""

    offset_s: float  # by how many seconds it is ahead of the primary's
    uncertainty_s: float  # by how much that may be wrong: half of the round trip

    @classmethod
    def of_ping(cls, sent_s: float, answered_s: float, received_s: float) -> ClockOffset:
        """Return the offset from when a ping was sent and received, by our clock, and answered, by the other one."""
        uncertainty_s = max(0.0, (received_s - sent_s) / 2)
        return cls(answered_s - (sent_s + uncertainty_s), uncertainty_s)

    @property
    def correction_s(self) -> float:
        """What to subtract from the clock's times; zero for an offset that may be none at all."""
        return self.offset_s if abs(self.offset_s) > self.uncertainty_s else 0.0

    @property
    def is_much(self) -> bool:
        """Whether the clock is wrong by more than a second."""
        return abs(self.offset_s) - self.uncertainty_s > MUCH_S

"""What is known of a node from its answers to one small question, asked again and again: pure, times are passed in.

A node that computes a large answer still answers this question at once; one that hangs does not. How long to wait for
it follows the times that its answers took, as TCP waits for acknowledgements (RFC 6298).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

LEAST_PATIENCE_S = 0.15
# A node that was asked so recently is not asked again by those who wonder whether it is there.
RECENTLY_S = 0.05
RECENT = 8


@dataclass(frozen=True, slots=True)
class Pong:
    """What a node says of itself."""

    asked_s: float  # when it was asked, on the asker's monotonic clock: the node returns what it was sent
    clock_s: float  # Unix time on the node
    dropped: int  # how many samples its store refused or dropped early for lack of room

    @classmethod
    def of(cls, answer: Any) -> Pong:
        """Read an answer."""
        try:
            return cls(float(answer["asked_s"]), float(answer["clock_s"]), int(answer["dropped"]))
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"not the answer to a ping: {error!r}") from error


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """How a node's telemetry is, seen from the primary."""

    up: bool  # whether it listens and answers
    lag_s: float  # how long its last answer took, in seconds; if it owes one, how long that has been so
    clock_skew_s: float  # by how much its clock is ahead of the primary's, in seconds; 0 until it has answered
    dropped: int  # how many samples its store refused or dropped early for lack of room


@dataclass(frozen=True, slots=True)
class Ping:
    """One node's answers so far."""

    listens: bool = False  # whether it received the last question
    asked_s: float = float("-inf")  # when it was last asked, on the asker's monotonic clock
    waiting_since_s: float | None = None  # when it was asked what it has not answered yet; None if it has answered
    # When it was last asked while it owed nothing: how long only such answers take is of the node, not of a hang
    timed_s: float = float("-inf")
    # The last answers that came: how long each took, and by how much the node's clock was ahead, in seconds
    trips: tuple[tuple[float, float], ...] = field(default=())
    smooth_s: float = 0.0  # how long an answer takes, and how much that varies
    spread_s: float = 0.0
    dropped: int = 0  # from its last answer

    def is_due(self, now_s: float) -> bool:
        """Return whether asking it now would tell whether it is there: it owes nothing, and was not just asked."""
        return self.waiting_since_s is None and now_s - self.asked_s >= RECENTLY_S

    def ask(self, now_s: float) -> Ping:
        """Record a question that is about to be sent."""
        if self.waiting_since_s is not None:
            return replace(self, asked_s=now_s)
        return replace(self, asked_s=now_s, timed_s=now_s, waiting_since_s=now_s)

    def sent(self, *, received: bool) -> Ping:
        """Record whether the node received the question."""
        return replace(self, listens=received, waiting_since_s=self.waiting_since_s if received else None)

    def take(self, answer: Pong, now_s: float, unix_s: float, longest_s: float) -> Ping:
        """Record an answer that came now, at Unix time ``unix_s`` here."""
        # Times after a hang do not count: those of questions that were owed for `longest_s`, or asked meanwhile.
        took_s = now_s - answer.asked_s
        if not took_s >= 0:
            return self  # to nothing that we have asked
        owed_s = None if answer.asked_s >= self.asked_s else self.asked_s
        answered = replace(self, listens=True, waiting_since_s=owed_s, dropped=answer.dropped)
        if answer.asked_s != self.timed_s or took_s > longest_s:
            return answered
        first = not self.trips
        return replace(
            answered,
            trips=(*self.trips[1 - RECENT :], (took_s, answer.clock_s - (unix_s - took_s / 2))),
            smooth_s=took_s if first else self.smooth_s + (took_s - self.smooth_s) / 8,
            spread_s=took_s / 2 if first else self.spread_s + (abs(took_s - self.smooth_s) - self.spread_s) / 4,
        )

    def patience_s(self, longest_s: float) -> float:
        """Return how long an answer may take before nobody should wait for it."""
        if not self.trips:
            return longest_s
        return min(longest_s, max(LEAST_PATIENCE_S, self.smooth_s + 4 * self.spread_s))

    def lag_s(self, now_s: float) -> float:
        """Return how long its last answer took; if it owes one, how long that has been so."""
        if self.waiting_since_s is not None:
            return max(0.0, now_s - self.waiting_since_s)
        return self.trips[-1][0] if self.trips else 0.0

    def is_late(self, now_s: float, longest_s: float) -> bool:
        """Return whether it owes an answer for longer than its answers usually take."""
        return self.has_waited(self.patience_s(longest_s), now_s)

    def has_waited(self, limit_s: float, now_s: float) -> bool:
        """Return whether it owes an answer for longer than a limit."""
        return self.waiting_since_s is not None and now_s - self.waiting_since_s > limit_s

    def health(self, now_s: float, longest_s: float) -> NodeHealth:
        """Return how the node is."""
        # The quickest of the last answers tells its clock most precisely.
        skew_s = min(self.trips)[1] if self.trips else 0.0
        up = self.listens and not self.has_waited(longest_s, now_s)
        return NodeHealth(up, round(self.lag_s(now_s), 4), round(skew_s, 4), self.dropped)

"""When does a program hang? Pure: the time and the signs of life are passed in.

There are two kinds of signs. The program's own: a commit to State, or a new step reported with ``Job.progress``. And
how its ranks look from outside (:class:`RankLife`): processor time, bytes read and written, and the kernel's word on
what they do. A program that gives no sign of its own is judged from outside alone.

With ``--hang-timeout SECONDS`` silence of that length is a hang. With ``--hang-timeout auto`` the timeout is derived
from the launch itself: ten times the longest silence so far, and at least `MIN_AUTO_S` for the program's own signs
(from the fifth on), `MIN_OUTSIDE_S` for all ranks together, and `MIN_RANK_S` for a single rank. Silence of the
program's own signs is no hang while its ranks are seen to work, as in a validation, before `MAX_WORK_S`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

HangTimeout = float | Literal["auto"]
"""Seconds, or ``auto``: derived from the launch itself."""

MIN_SIGNS = 5  # fewer say nothing about the longest silence
MIN_AUTO_S = 60.0  # a launch that has shown short silences only may still save or compile
AUTO_FACTOR = 10.0  # times the longest silence so far
# The program may wait for a file system or a checkpoint, in silence, before we have seen it do so.
MIN_OUTSIDE_S = 180.0
# One rank may evaluate or save while the others wait. ByteRobust (SOSP'25) too looks after ten minutes without traffic.
MIN_RANK_S = 600.0
# Ranks that spin for ever look as if they worked. An hour is twice as long as Gloo waits, and longer than most phases
# between two steps; a false relaunch costs what was done in it, a late one the hour.
MAX_WORK_S = 3600.0
SEEN_S = 30.0  # a rank that was active so recently is seen to work
# Nothing that goes on leaves a process stopped by a signal.
MIN_STOPPED_S = 60.0
# Below this a process only waits: threads that watch over a library's connections take up to half a percent.
ACTIVE_SHARE = 0.02
ACTIVE_BYTES_PER_S = 4096.0


@dataclass(frozen=True, slots=True)
class Counters:
    """What the kernel counts for a rank."""

    cpu_s: float  # processor time of the rank and its descendants, in seconds
    own_bytes: int  # Bytes that its main thread has read and written
    children_bytes: int = 0  # Bytes that its descendants have read and written
    # How often its main thread has waited and gone on; only of a program without ranks, which may do little but that
    wake_ups: int = 0


class LifeWatch:
    """How long a rank has been silent, and its longest silence before."""

    def __init__(self, counters: Counters, now_s: float) -> None:
        self._counters = counters  # the rank's counters now
        self._looked_s = self._active_s = now_s
        self.longest_s = 0.0  # its longest silence before the present one, in seconds

    def look(self, counters: Counters, now_s: float, *, device_active: bool | None = None) -> float:
        """Take the rank's counters; return for how many seconds it has been silent."""
        before, passed_s = self._counters, now_s - self._looked_s
        self._counters, self._looked_s = counters, now_s
        busy = abs(counters.cpu_s - before.cpu_s) >= ACTIVE_SHARE * passed_s if device_active is None else device_active
        moved = abs(counters.children_bytes - before.children_bytes) >= ACTIVE_BYTES_PER_S * passed_s
        went_on = counters.own_bytes != before.own_bytes or counters.wake_ups != before.wake_ups
        if busy or moved or went_on:
            self.longest_s = max(self.longest_s, now_s - passed_s - self._active_s)
            self._active_s = now_s
        return now_s - self._active_s


@dataclass(frozen=True, slots=True)
class RankLife:
    """How a rank looks from outside."""

    host: str  # its node
    rank: int | None  # its number; None for a program without ranks
    state: str  # the kernel's letter: R running, S sleeping, D waiting in the kernel, T stopped
    silent_s: float  # for how many seconds it has been silent, and its longest silence before
    longest_s: float
    by_device: bool = False  # whether GPUs say so; a processor is also busy in a rank that spins while it waits

    @property
    def is_seen(self) -> bool:
        """Whether it is seen to work."""
        return self.silent_s <= SEEN_S


@dataclass(frozen=True, slots=True)
class Silent:
    """Who has shown no sign of life: a rank, the program without ranks on a node, or, without a node, any rank."""

    host: str = ""
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Why a program may hang."""

    silent_s: float  # for how many seconds there was silence
    silent: Silent | None = None  # who was silent; None: the program gave no sign of its own
    certain: bool = True  # whether it hangs whatever its stacks show


class HangWatch:
    """Watches one launch for a hang."""

    def __init__(self, timeout: HangTimeout, signs: object, now_s: float) -> None:
        self._timeout = timeout  # how long the program may be silent
        self._signs = signs  # its own signs of life so far; all that matters is whether they change
        self._last_s = now_s
        self._count = 0
        self._longest_s = 0.0
        self._together_s = self._longest_together_s = 0.0
        self._is_watched = False  # from outside
        self._quiet_until_s = now_s  # no suspicion before this

    def check(self, signs: object, ranks: Sequence[RankLife], now_s: float) -> Suspicion | None:
        """Return why the program may hang, if it does."""
        # If the program is left running, the same suspicion comes again when the silence is twice as long.
        self._take(signs, ranks, now_s)
        if now_s < self._quiet_until_s:
            return None
        suspicion = self._of_own_signs(ranks, now_s) or self._of_ranks(ranks, now_s)
        if suspicion is not None:
            self._quiet_until_s = now_s + suspicion.silent_s  # and then again, if it still is silent
        return suspicion

    def timeout_s(self) -> float | None:
        """Return how long the program's own signs may fail to come; None while that is not known."""
        if self._timeout != "auto":
            return self._timeout
        return max(MIN_AUTO_S, AUTO_FACTOR * self._longest_s) if self._count >= MIN_SIGNS else None

    def _take(self, signs: object, ranks: Sequence[RankLife], now_s: float) -> None:
        if signs != self._signs:
            if self._count > 0:  # until its first sign it was starting
                self._longest_s = max(self._longest_s, now_s - self._last_s)
            self._signs, self._last_s, self._count = signs, now_s, self._count + 1
        self._is_watched |= bool(ranks)
        together_s = min((each.silent_s for each in ranks), default=0.0)
        if together_s < self._together_s:
            self._longest_together_s = max(self._longest_together_s, self._together_s)
        self._together_s = together_s

    def _of_own_signs(self, ranks: Sequence[RankLife], now_s: float) -> Suspicion | None:
        timeout_s, silent_s = self.timeout_s(), now_s - self._last_s
        if timeout_s is None or silent_s <= timeout_s:
            return None
        if self._count == 0 and self._is_watched:  # it may never give a sign of its own
            return None
        if self._timeout != "auto":
            return Suspicion(silent_s)
        if silent_s <= _least_by_work_s(ranks):
            return None
        return Suspicion(silent_s, certain=silent_s > max(MAX_WORK_S, timeout_s))

    def _of_ranks(self, ranks: Sequence[RankLife], now_s: float) -> Suspicion | None:
        gives_signs = self._count > 0 and now_s - self._last_s <= (self.timeout_s() or MIN_AUTO_S)
        certain = self._timeout != "auto"
        for each in ranks:
            if each.state == "T" and each.silent_s > self._least_s(MIN_STOPPED_S):
                return _of_rank(each, certain=True)
        together_s = self._least_s(max(MIN_OUTSIDE_S, AUTO_FACTOR * self._longest_together_s))
        if ranks and not gives_signs and self._together_s > together_s:
            return Suspicion(self._together_s, Silent(), certain)
        for each in sorted(ranks, key=lambda rank: -rank.silent_s):
            # While the program gives signs of its own, a rank may be silent because it has nothing to do.
            least_s = self._least_s(MIN_RANK_S if gives_signs else max(MIN_RANK_S, AUTO_FACTOR * each.longest_s))
            if each.rank is not None and each.silent_s > max(least_s, MIN_RANK_S if gives_signs else 0.0):
                return _of_rank(each, certain=certain and not gives_signs)
        return None

    def _least_s(self, derived_s: float) -> float:
        return self._timeout if self._timeout != "auto" else derived_s


def _least_by_work_s(ranks: Sequence[RankLife]) -> float:
    """Return how long the program's own signs may fail to come, given how its ranks look."""
    working = sum(each.is_seen for each in ranks)
    if 2 * working <= len(ranks):
        return 0.0
    return MAX_WORK_S if any(each.by_device for each in ranks) else MIN_RANK_S


def _of_rank(life: RankLife, *, certain: bool) -> Suspicion:
    return Suspicion(life.silent_s, Silent(life.host, life.rank), certain)

"""Incidents: what each time that a device was slow has lost, and whether it comes again. Reads no clock.

An incident goes with the device, or with its place in the launch (a program's rank usually does): only a relaunch that
puts another device in the place can tell. So there are two kinds of memory. A history for each device, found again by
its UUID, has the incidents that ended by themselves. And for each place it is kept for which device a restart was asked
for: if another one is slow there in the same way, it is the program's own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from laggard.detectors.economics.episode import Episode
from laggard.detectors.economics.restart_cost import share_lost
from laggard.detectors.economics.restart_decision import PHASE_MARGIN, Decision, Incident, Past, Tradeoff, decide
from laggard.detectors.evidence import Reason, Subject, WellAgain
from laggard.records import plain, record_of

_REMEMBERED = 8  # lengths of incidents; also over how many rounds a slowdown is smoothed
_SLOW_SHARE = 0.5  # of the incident's slowdown, in logs: a round with less is not slow
_WELL_S = 600.0  # for so long, and a device that was slow at times is well again
_ALIKE = 2.0  # slowdowns, in logs, that differ by no more than this factor
_TOLD_S = 86_400.0  # for so long, what comes again is not told of once more
_LATE_S = 30.0  # a restart that was announced may be so late before it is said that it does not come yet
# Of one that is as those that ended let expect, the first word is that it is over, unless it lasts for longer than an
# evaluation of 90 s, and a checkpoint soon after it
_HELD_S = 150.0


@dataclass(slots=True)
class _Open:
    """An incident that is not over."""

    subject: Subject
    identity: str
    place: str
    at_s: float
    slowdown: float
    slow_s: float
    lost_s: float
    at_times: bool
    began_s: float
    last_slow_s: float
    is_usual: bool = False  # those that ended let expect that one gets so long
    is_told: bool = False
    announced_s: float | None = None  # for when a restart was announced
    is_asked: bool = False
    stays: bool = False  # it would not be left out if there were a restart now
    holds_up: bool = True  # the job waits for it


@dataclass(slots=True)
class _History:
    """The incidents of a device that ended by themselves."""

    since_s: float
    lengths_s: tuple[float, ...] = ()
    n_passed: int = 0
    lost_s: float = 0.0
    n_asked: int = 0


@dataclass(frozen=True, slots=True)
class _Told:
    """An incident of any device that was told of and has ended."""

    at_s: float
    slow_s: float
    slowdown: float


@dataclass(frozen=True, slots=True)
class _Asked:
    """A restart that was asked for, for a device in some place."""

    subject: Subject
    identity: str
    slowdown: float
    longest_s: float  # the longest of its incidents that ended by themselves; 0: it was for one that did not


def _are_alike(lengths_s: Collection[float]) -> bool:
    """Return whether most incidents were about as long as the longest, as phases of a program are, and faults not."""
    long = sum(PHASE_MARGIN * length_s >= max(lengths_s) for length_s in lengths_s)
    return 2 * long >= len(lengths_s) > 0


def key_of(subject: Subject) -> str:
    """Return a name of a subject that serves as a key."""
    host, part = subject
    return host if part is None else f"{host} {part}"


class Incidents:
    """The incidents of all devices, present and past.

    A job waits for its slowest device.  So what a device loses is counted from the pace of the slowest of those that
    would stay if there were a restart now; those that would be left out together lose what each would lose alone.
    """

    def __init__(self) -> None:
        self._open: dict[Subject, _Open] = {}
        self._histories: dict[str, _History] = {}
        self._asked: dict[str, list[_Asked]] = {}  # by place
        self._programs_own: dict[str, float] = {}  # by place, the longest incident
        self._told: list[_Told] = []

    @property
    def open(self) -> tuple[Subject, ...]:
        """The devices and nodes that are slow."""
        return tuple(self._open)

    def begin(
        self,
        subject: Subject,
        slowdown: float,
        episode: Episode,
        now_s: float,
        *,
        identity: str,
        place: str,
        at_times: bool = False,
    ) -> None:
        """Begin an incident with the episode that is its evidence; one that is open goes on."""
        if subject in self._open:
            self._open[subject].slowdown = slowdown
            self._open[subject].at_times &= at_times
            return
        slow_s = max(0.0, now_s - episode.since_s) if math.isfinite(episode.since_s) else 0.0
        slow_s *= episode.costly_part
        lost_s = episode.share_lost * slow_s
        host, gpu = subject
        parts = [] if gpu is not None else [each for each in self._open if each[0] == host]
        for each in (self._open.pop(part) for part in parts):
            slow_s, lost_s = max(slow_s, each.slow_s), max(lost_s, each.lost_s)
        self._open[subject] = _Open(
            subject,
            identity,
            place,
            now_s,
            slowdown,
            slow_s,
            lost_s,
            at_times=at_times,
            began_s=now_s - slow_s,
            last_slow_s=now_s,
            is_usual=episode.is_usual,
        )

    def advance(
        self, slowdowns: Mapping[Subject, float | None], now_s: float, usual: Collection[Subject] = ()
    ) -> dict[Subject, WellAgain]:
        """Add a round; return the incidents that are over."""
        shares = {
            subject: share_lost(slowdown)
            for subject, each in self._open.items()
            if (slowdown := slowdowns.get(subject)) is not None
            and math.log(slowdown) > _SLOW_SHARE * math.log(each.slowdown)
        }
        waited_for = [subject for subject in shares if self._open[subject].stays and self._open[subject].holds_up]
        staying = max((shares[subject] for subject in waited_for), default=0.0)
        for subject, each in self._open.items():
            elapsed_s, each.at_s = max(0.0, now_s - each.at_s), now_s
            each.is_usual = subject in usual
            if subject in shares:
                each.slow_s += elapsed_s
                each.last_slow_s = now_s
                each.lost_s += max(0.0, shares[subject] - (0.0 if each.stays else staying)) * elapsed_s
                each.slowdown += (1 / (1 - shares[subject]) - each.slowdown) / _REMEMBERED
        over = [
            subject
            for subject, each in self._open.items()
            if slowdowns.get(subject, 1.0) is None and not (each.at_times and now_s - each.last_slow_s < _WELL_S)
        ]
        return {subject: self._end(self._open.pop(subject), now_s) for subject in over}

    def tell(self, subject: Subject, now_s: float, *, is_new: bool, must: bool, in_s: float = math.inf) -> bool:
        """Return whether to tell of an open incident; ``is_new``: there is a new verdict, ``must``: a restart is due.

        What is as those before it that were told of and ended, in this job, is not told of again for a day. A restart
        that was announced, and is due only ``in_s`` seconds from now, is. Of what is usual it is told once it is over.
        """
        each = self._open[subject]
        is_late = not must and each.announced_s is not None and now_s - each.announced_s > _LATE_S
        is_held = each.is_usual and each.slow_s < _HELD_S and not must
        is_told = (is_new or is_late) if each.is_told else not is_held and self._is_news(each, now_s, must=must)
        if is_told or must:
            each.announced_s = None if must or math.isinf(in_s) else now_s + in_s
        return is_told

    def _is_news(self, each: _Open, now_s: float, *, must: bool) -> bool:
        self._told = [before for before in self._told if now_s - before.at_s < _TOLD_S]
        is_as_before = any(
            each.slow_s <= PHASE_MARGIN * before.slow_s
            and math.log(each.slowdown) <= _ALIKE * math.log(before.slowdown)
            for before in self._told
        )
        each.is_told = must or not is_as_before
        return each.is_told

    def incident(self, subject: Subject) -> Incident:
        """Return the open incident of a device."""
        each = self._open[subject]
        span_s = max(0.0, each.at_s - each.began_s) if each.at_times else 0.0
        return Incident(
            slowdown=each.slowdown,
            slow_s=each.slow_s,
            lost_s=each.lost_s,
            span_s=span_s,
            at_times=each.at_times,
            is_usual=each.is_usual,
        )

    def decide(
        self,
        subject: Subject,
        tradeoff: Tradeoff,
        now_s: float,
        why_not: Reason | None = None,
        *,
        holds_up: bool = True,
    ) -> Decision:
        """Return whether to restart for an open incident: not twice, and not if there is a reason not to."""
        # `holds_up`: whether the job waits for the device.
        each = self._open[subject]
        if each.is_asked:
            why_not = Reason("asked before")
        past = self._past(each, now_s)
        decision = decide(self.incident(subject), past, tradeoff)
        if why_not is not None:
            decision = Decision(restart=False, in_s=math.inf, why=why_not)
        each.stays = math.isinf(decision.in_s) or (past.expects_end and not decision.restart)
        each.holds_up = holds_up
        if decision.restart:
            self._note_asked(each, past)
        return decision

    def ask_again(self, subject: Subject) -> None:
        """Let a restart be asked for once more."""
        self._open[subject].is_asked = False

    def join(self, subject: Subject, tradeoff: Tradeoff, now_s: float) -> bool:
        """Return whether to leave out a device in a restart that is made for another: if it is half-way to its own."""
        each = self._open[subject]
        if each.stays or each.is_asked:
            return False
        past, incident = self._past(each, now_s), self.incident(subject)
        joins = decide(replace(incident, lost_s=2 * incident.lost_s), past, tradeoff).restart
        if joins:
            self._note_asked(each, past)
        return joins

    def forget_hosts(self, present: Collection[str], now_s: float) -> None:
        """Drop the open incidents of all hosts but those that are present; these go on from now."""
        self._open = {subject: each for subject, each in self._open.items() if subject[0] in present}
        for each in self._open.values():
            each.at_s = now_s
            each.is_asked = False  # if a restart was asked for, it was not made

    def _past(self, each: _Open, now_s: float) -> Past:
        history = self._histories.get(each.identity, _History(now_s))
        before = self._before(each)
        known_s = self._programs_own.get(each.place, 0.0)
        return Past(
            n_passed=history.n_passed,
            longest_s=max([known_s, *history.lengths_s, *(one.longest_s for one in before)]),
            are_alike=_are_alike(history.lengths_s),
            lost_s=history.lost_s,
            span_s=max(0.0, now_s - history.since_s),
            n_asked=history.n_asked,
            n_in_vain=sum(not one.longest_s for one in before),
            is_programs_own=each.place in self._programs_own or any(one.longest_s for one in before),
        )

    def _before(self, each: _Open) -> list[_Asked]:
        """Return the restarts for other devices in the same place that were slow in the same way."""
        size = math.log(each.slowdown)
        return [
            one
            for one in self._asked.get(each.place, [])
            if one.identity != each.identity and 1 / _ALIKE <= size / math.log(one.slowdown) <= _ALIKE
        ]

    def _note_asked(self, each: _Open, past: Past) -> None:
        each.is_asked = True
        if past.n_passed:
            self._histories[each.identity].n_asked += 1
        longest_s = 0.0 if each.slow_s > PHASE_MARGIN * past.longest_s else past.longest_s
        if each.slowdown > 1:
            self._asked.setdefault(each.place, []).append(_Asked(each.subject, each.identity, each.slowdown, longest_s))

    def _end(self, each: _Open, now_s: float) -> WellAgain:
        history = self._histories.setdefault(each.identity, _History(now_s - each.slow_s))
        history.lengths_s = (*history.lengths_s, each.slow_s)[-_REMEMBERED:]
        history.n_passed += 1
        history.lost_s += each.lost_s
        if each.is_told or self._is_news(each, now_s, must=False):
            self._told.append(_Told(now_s, each.slow_s, each.slowdown))
        instead_of = self._recognise(each)
        expected = self._past(each, now_s).expects_end
        is_news = each.is_told
        return WellAgain(each.slow_s, each.lost_s, history.n_passed, history.lost_s, expected, instead_of, is_news)

    def _recognise(self, each: _Open) -> Subject | None:
        """Note if an incident that ended is the program's own; return the device that had it before if that is new."""
        passing = [one for one in self._before(each) if one.longest_s]
        known_s = self._programs_own.get(each.place, max((one.longest_s for one in passing), default=0.0))
        if not known_s or each.slow_s > PHASE_MARGIN * known_s:
            return None
        is_new = each.place not in self._programs_own
        self._programs_own[each.place] = max(known_s, each.slow_s)
        return passing[-1].subject if is_new else None

    # -- state ---------------------------------------------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Return everything that is remembered, as plain values."""
        return {
            "open": [plain(each) for each in self._open.values()],
            "histories": plain(self._histories),
            "asked": plain(self._asked),
            "programs_own": dict(self._programs_own),
            "told": plain(self._told),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return what :meth:`to_state` returned."""
        incidents = cls()
        incidents._open = {each.subject: each for each in (record_of(_Open, kept) for kept in state["open"])}
        incidents._histories = {name: record_of(_History, kept) for name, kept in state["histories"].items()}
        incidents._asked = {place: [record_of(_Asked, each) for each in kept] for place, kept in state["asked"].items()}
        incidents._programs_own = dict(state["programs_own"])
        incidents._told = [record_of(_Told, each) for each in state["told"]]
        return incidents

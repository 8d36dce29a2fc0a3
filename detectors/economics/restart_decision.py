"""Whether to restart for a slow device, now or later. Pure: a table of numbers in, a decision out.

That a device is slow is settled (``detectors/statistics/``); here it is asked whether a restart is worth it.
How long an incident will last is not known, but most are over soon and some last for hours, so one that has lasted long
is likely to go on for long. Hence the job waits until it has lost 45 % of what a restart costs. At worst that loses 3.2
times as much as one who knows (twice, if it waited for all of the cost), and on average less, above all if the cost is
less than it is taken for: 45 % is the best there is if it may be five times less. A cost that is only stated counts
half, since a restart that was not needed shows what restarts cost, and one that is waited for does not.

Incidents that end by themselves are phases of the program (checkpoints, evaluations) or an intermittent fault. No
restart ends a phase, since it goes with the device's place in the launch (its rank), so one that lasts no longer than
those before it is waited for. An intermittent fault goes with the device; each of its incidents may be too short to pay
for a restart, so their losses are summed up, and one restart is made to find out: at half of what one incident may
lose, since who comes again goes on coming, but only at a pace that pays. For a phase it costs ``1 / k`` more than to
stay if the rest of the job, or a day, loses ``k`` times the cost, and to stay costs ``k`` times as much with a fault:
both are equal at 1.6. Phases lose little of the time, though, so at less than 2 % of it they are likelier, and ``k``
is 3.4.

With no node in reserve, a restart also costs what the job does without the node for the day for which it is away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from laggard.detectors.economics.restart_cost import LEAST_COST_S, RestartCost, share_lost
from laggard.detectors.evidence import Reason

PHASES_FROM = 3  # incidents that have ended by themselves, after which another one is expected to
PHASE_MARGIN = 1.5  # times the longest of them
_LOST = 0.45  # of the cost: what one incident may lose
_SEEN_BEFORE = 0.5  # of that: what those that ended by themselves may lose together with the present one
_STATED = 0.5  # how much of a cost counts that is only stated
_LEAST_LOST_S = 32.0  # what may be lost at least, or the cost if that is less: a burst of a minute at twice the time
_AHEAD, _AHEAD_OF_PHASES = 1.6, 3.4  # times the cost: what these must be about to lose in the rest of the job
_PHASES_LOSE, _BEFORE_S = 0.02, 900.0  # of the time, and of 15 min before it: what phases lose at most
_ALIKE_LOSE = 0.01  # the same of incidents that are alike: these are phases unless they lose more
_FEW = 2  # nodes in reserve, of which none is given to find out about what may be phases
_DAY_S = 86_400.0  # a node that is left out is away for so long (`--quarantine`), and a job is taken to go on for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Tradeoff:
    """What a restart costs at this moment, and what there is to gain."""

    cost: RestartCost  # the cost, and the remaining time if it is known
    n_nodes: int = 0  # nodes in use; 0: not known
    n_reserve: int | None = None  # nodes in reserve; `None`: not known
    # The smallest slowdown that matters: a healthy device may differ so much from its typical peer
    min_slowdown: float = 1.0
    is_stated: bool = False  # whether no launch has shown the cost yet

    @property
    def patience(self) -> float:
        """The part of the cost that may be lost before a restart."""
        return _LOST * (_STATED if self.is_stated else 1.0)

    @property
    def missed_s(self) -> float:
        """What the job loses by the node that a restart takes from it if none is in reserve."""
        if self.n_reserve != 0 or self.n_nodes < 2:
            return 0.0
        return min(_DAY_S, _DAY_S if self.cost.remaining_s is None else self.cost.remaining_s) / self.n_nodes

    @property
    def whole(self) -> RestartCost:
        """The cost with that of the missing node."""
        return RestartCost(self.cost.cost_s + self.missed_s, self.cost.remaining_s)

    def shrinking_loses(self, slowdown: float) -> bool:
        """Return whether a restart would go on with one node less, and that would be slower than to stay."""
        return self.n_reserve == 0 and self.n_nodes > 1 and slowdown * (self.n_nodes - 1) <= self.n_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A device's present slowness: how slow it is, for how long it has been so, and what the job has lost by it."""

    slowdown: float
    slow_s: float
    lost_s: float
    span_s: float = 0.0  # time since it began
    at_times: bool = False  # whether it is slow again and again, and well in between
    is_usual: bool = False  # whether incidents of this job get so long, going by those that ended by themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What is known of earlier incidents of the device, and of its place in the launch."""

    n_passed: int = 0  # incidents that ended by themselves
    longest_s: float = 0.0  # the longest of the last of them
    are_alike: bool = False  # whether most of the last ones were about as long as the longest
    lost_s: float = 0.0  # what they lost in sum
    span_s: float = 0.0  # time since the first of them
    n_asked: int = 0  # restarts that were asked for because of them
    # Restarts that were made for other devices in the same place, and after which this one is slow in the same way
    n_in_vain: int = 0
    # Whether such incidents came again on another device in the same place: they are phases of the program
    is_programs_own: bool = False

    @property
    def expects_end(self) -> bool:
        """Whether the present incident is expected to end by itself, like those before it."""
        return self.is_programs_own or self.n_passed >= PHASES_FROM


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to restart."""

    restart: bool
    in_s: float  # how long until then if the incident goes on as it is, in seconds; infinite: never
    why: Reason | None = None  # why it is not a matter of time alone; `None` if it is


def decide(incident: Incident, past: Past, tradeoff: Tradeoff) -> Decision:
    """Decide whether to restart without a device that is slow."""
    cost, slowdown = tradeoff.whole, incident.slowdown
    if not tradeoff.cost.cost_s and not incident.at_times:
        return Decision(restart=True, in_s=0.0)
    if tradeoff.shrinking_loses(slowdown):
        return _never(Reason("no reserve", (tradeoff.n_nodes, tradeoff.n_nodes - 1)))
    if not cost.can_pay(slowdown):
        return _never(Reason("too little time left", (cost.remaining_s or 0.0,)))
    share = share_lost(slowdown)
    if share <= 0:
        return _never(Reason("as fast as ever"))
    if slowdown < tradeoff.min_slowdown:
        return _never(Reason("as slow as peers"))
    alone_s, why = (math.inf, None) if incident.at_times else _alone_in_s(incident, past, tradeoff, share)
    together_s = _together_in_s(incident, past, tradeoff, share)
    if together_s < alone_s:
        alone_s, why = together_s, Reason("lost much together")
    if alone_s > 0 and tradeoff.missed_s and why is None:
        why = Reason("a node less", (tradeoff.missed_s,))
    return Decision(alone_s <= 0, alone_s, why)


def _alone_in_s(incident: Incident, past: Past, tradeoff: Tradeoff, share: float) -> tuple[float, Reason | None]:
    """Return how long until the present incident alone is reason enough, and why not earlier."""
    if incident.is_usual:
        return math.inf, Reason("others ended")
    cost_s = tradeoff.whole.cost_s
    may_lose_s = max(tradeoff.patience * cost_s, min(_LEAST_LOST_S, cost_s)) * 2.0**past.n_in_vain
    due_s = max(0.0, (may_lose_s - incident.lost_s) / share)
    ends_s = PHASE_MARGIN * past.longest_s - incident.slow_s
    if past.expects_end and ends_s > due_s:
        return ends_s, Reason("a phase")
    if past.n_in_vain:
        return due_s, Reason("last one in vain")
    return due_s, None if due_s else Reason("likely to lose more")


def _together_in_s(incident: Incident, past: Past, tradeoff: Tradeoff, share: float) -> float:
    """Return how long until the losses of all incidents together are reason enough."""
    if past.is_programs_own or not (past.n_passed or incident.at_times):
        return math.inf
    cost_s = max(LEAST_COST_S, tradeoff.whole.cost_s) * 2.0 ** (past.n_asked + past.n_in_vain)
    lost_s, span_s = past.lost_s + incident.lost_s, max(1.0, past.span_s, incident.span_s)
    least_s = max(_LEAST_LOST_S, _least_together_s(incident, past, tradeoff, cost_s, span_s))
    if incident.at_times:
        share = max(lost_s / span_s, 1e-6)  # of the time, slow or not
    return max(0.0, (least_s - lost_s) / share)


def _least_together_s(incident: Incident, past: Past, tradeoff: Tradeoff, cost_s: float, span_s: float) -> float:
    """Return what incidents must have lost in some time for a restart to pay: as faults do, or as phases may."""
    remaining_s = tradeoff.cost.remaining_s
    part = span_s / (max(_DAY_S, span_s) if remaining_s is None else max(1.0, remaining_s))
    may_lose_s = tradeoff.patience * cost_s
    at_faults_pace_s = max(_PHASES_LOSE * (span_s + _BEFORE_S), _AHEAD * may_lose_s / _LOST * part)
    least_s = max(may_lose_s * (_SEEN_BEFORE if past.n_passed else 1.0), at_faults_pace_s)
    if tradeoff.n_reserve is None or tradeoff.n_reserve > _FEW:
        least_s = min(least_s, max(may_lose_s, _AHEAD_OF_PHASES * cost_s * part))
    healthy_lose = _PHASES_LOSE if incident.is_usual else _ALIKE_LOSE if past.are_alike else 0.0
    return max(least_s, healthy_lose * (span_s + _BEFORE_S))


def _never(why: Reason) -> Decision:
    return Decision(restart=False, in_s=math.inf, why=why)

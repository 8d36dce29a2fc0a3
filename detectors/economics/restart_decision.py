"""Whether to restart for a slow device, now or later. Pure: a table of numbers in, a decision out.

That a device is slow is settled (``detectors/statistics/``); here it is asked whether a restart is worth it.
How long an incident will last is not known, but most are over soon and some last for hours, so one that has lasted long
is likely to go on for long. Hence the job waits until it has lost two thirds of what a restart costs. At worst that
loses two and a half times as much as one who knows (twice, if it waited for all of the cost), and on average less.

Incidents that end by themselves are phases of the program (checkpoints, evaluations) or an intermittent fault. No
restart ends a phase, since it goes with the device's place in the launch (its rank), so one that lasts no longer than
those before it is waited for. An intermittent fault goes with the device; each of its incidents may be too short to pay
for a restart, so their losses are summed up, and at three times the cost one restart is made to find out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from laggard.detectors.economics.restart_cost import RestartCost, share_lost
from laggard.detectors.evidence import Reason

PHASES_FROM = 3  # incidents that have ended by themselves, after which another one is expected to
PHASE_MARGIN = 1.5  # times the longest of them
_ALONE = 2 / 3  # of the cost: what one incident may lose
_TOGETHER = 3.0  # times the cost: what incidents that ended by themselves may lose together
_LEAST_TOGETHER_S = 30.0  # what a restart to find out is taken to cost at least
_UNMEASURED_S = 600.0  # what a restart to find out is taken to cost at least as long as no cost was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Tradeoff:
    """What a restart costs at this moment, and what there is to gain."""

    cost: RestartCost  # the cost, and the remaining time if it is known
    is_measured: bool = True  # whether the cost was measured or given, and not just assumed
    n_nodes: int = 0  # nodes in use; 0: not known
    n_reserve: int | None = None  # nodes in reserve; `None`: not known
    # The smallest slowdown that matters: a healthy device may differ so much from its typical peer
    min_slowdown: float = 1.0

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What is known of earlier incidents of the device, and of its place in the launch."""

    n_passed: int = 0  # incidents that ended by themselves
    longest_s: float = 0.0  # the longest of the last of them
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
    cost_s, slowdown = tradeoff.cost.cost_s, incident.slowdown
    if not cost_s and not incident.at_times:
        return Decision(restart=True, in_s=0.0)
    if tradeoff.shrinking_loses(slowdown):
        return _never(Reason("no reserve", (tradeoff.n_nodes, tradeoff.n_nodes - 1)))
    if not tradeoff.cost.can_pay(slowdown):
        return _never(Reason("too little time left", (tradeoff.cost.remaining_s or 0.0,)))
    share = share_lost(slowdown)
    if share <= 0:
        return _never(Reason("as fast as ever"))
    if slowdown < tradeoff.min_slowdown:
        return _never(Reason("as slow as peers"))
    alone_s, why = (math.inf, None) if incident.at_times else _alone_in_s(incident, past, cost_s, share)
    together_s = _together_in_s(incident, past, tradeoff, share)
    if together_s < alone_s:
        alone_s, why = together_s, Reason("lost much together")
    return Decision(alone_s <= 0, alone_s, why)


def _alone_in_s(incident: Incident, past: Past, cost_s: float, share: float) -> tuple[float, Reason | None]:
    """Return how long until the present incident alone is reason enough, and why not earlier."""
    due_s = max(0.0, (_ALONE * cost_s * 2.0**past.n_in_vain - incident.lost_s) / share)
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
    cost_s = max(_LEAST_TOGETHER_S if tradeoff.is_measured else _UNMEASURED_S, tradeoff.cost.cost_s)
    lost_s, remaining_s = past.lost_s + incident.lost_s, tradeoff.cost.remaining_s
    span_s = max(past.span_s, incident.span_s)
    if remaining_s is not None and lost_s * remaining_s < cost_s * span_s:
        return math.inf  # at this rate the rest of the job will not lose as much
    if incident.at_times:
        share = max(lost_s / max(span_s, 1.0), 1e-6)  # of the time, slow or not
    return max(0.0, (_TOGETHER * cost_s * 2.0 ** (past.n_asked + past.n_in_vain) - lost_s) / share)


def _never(why: Reason) -> Decision:
    return Decision(restart=False, in_s=math.inf, why=why)

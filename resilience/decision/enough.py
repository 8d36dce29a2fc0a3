"""Whether there are enough nodes, and which to go on with: what every decision of the policy rests on. Pure."""

from __future__ import annotations

from laggard.resilience.decision.events import JobStatus, Settings
from laggard.resilience.decision.reasons import Fact
from laggard.resilience.decision.roster import Roster


def without(settings: Settings, roster: Roster, hosts: frozenset[str], now_s: float, *, lost: bool = False) -> Roster:
    """Return the roster without some hosts; the primary's devices are used again if the others are too few."""
    after = roster.without(hosts, settings.nodes, now_s, lost=lost)
    if is_enough(settings, after):
        return after
    again = after.readmitting(after.primary).without(frozenset(), settings.nodes, now_s)
    return again if is_enough(settings, again) else after


def is_enough(settings: Settings, roster: Roster) -> bool:
    """Return whether the nodes in use can run the program."""
    return roster.can_run and len(roster.active) >= _needed(settings)


def _needed(settings: Settings) -> int:
    return 1 if settings.exhaust_resources else settings.nodes


def too_few(settings: Settings, status: JobStatus) -> Fact | None:
    """Return why the nodes in use are too few, or None if they are enough."""
    roster = status.roster
    if is_enough(settings, roster):
        return None
    left = len(roster.active)
    if left >= _needed(settings):
        return Fact("devices too few", roster.active)
    if settings.exhaust_resources:
        return Fact("primary cannot run", (roster.primary,))
    return Fact("nodes too few", number=left, of=settings.nodes)


def may_wait(settings: Settings, status: JobStatus) -> bool:
    """Return whether there would be enough nodes if the lost ones returned."""
    n_hoped = len(status.roster.active) + len(status.roster.lost_hosts)
    return settings.wait_for_nodes_s > 0 and n_hoped >= _needed(settings)

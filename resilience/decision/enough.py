"""Whether there are enough nodes, and which to go on with: what every decision of the policy rests on. Pure."""

from __future__ import annotations

from laggard.resilience.decision.events import JobStatus, Settings
from laggard.resilience.decision.roster import Roster
from laggard.resilience.text import abbreviated

__all__ = ["is_enough", "may_wait", "too_few", "without"]


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


def too_few(settings: Settings, status: JobStatus) -> str | None:
    """Return why the nodes in use are too few, or None if they are enough."""
    roster = status.roster
    if is_enough(settings, roster):
        return None
    left = len(roster.active)
    if left >= _needed(settings):
        return f"no node with devices is left: {abbreviated(roster.active)} cannot run the program"
    if settings.exhaust_resources:
        return (
            f"no node is left to run the program: the primary, {roster.primary}, has no processors and no GPUs for it"
        )
    good = "1 good node is" if left == 1 else f"{left} good nodes are"
    return f"{good} left for --nodes={settings.nodes}; --exhaust-resources would go on with fewer"


def may_wait(settings: Settings, status: JobStatus) -> bool:
    """Return whether there would be enough nodes if the lost ones returned."""
    n_hoped = len(status.roster.active) + len(status.roster.lost_hosts)
    return settings.wait_for_nodes_s > 0 and n_hoped >= _needed(settings)

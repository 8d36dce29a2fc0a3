"""Which node has which ranks: by chance for suspects, so that failures become an experiment. Pure.

A suspect changes places with another node, drawn among those that it may change with, or, once it has, stays where it
is with the same chance. A failure that follows it speaks
against the node, one that stays with the rank for the program; the ledger counts both. Whole nodes move, so what runs
within a node stays together. Where the rank's device is known, it changes places with another one of its node first:
that moves no data. Without suspects ranks are where the scheduler's order puts them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from laggard.resilience.decision.roster import Roster

MOST_MOVED = 3  # suspects in one relaunch: each moves the shards of two nodes

Below = Callable[[int], int]
"""Draws a whole number from 0 up to, but not including, the given one."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The nodes of a launch in the order of their ranks."""

    order: tuple[str, ...] = ()  # empty: the scheduler's order
    drawn: Mapping[str, int] = field(default_factory=dict)  # of each node that was moved: among how many places
    # Of each node whose devices are not in their own order: that order, and of those that have just changed: among how
    # many places
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    devices_drawn: Mapping[str, int] = field(default_factory=dict)

    def kept(self) -> Placement:
        """Return the same placement for another launch, for which nothing was drawn."""
        return replace(self, drawn={}, devices_drawn={})

    def of(self, active: Sequence[str]) -> tuple[str, ...]:
        """Return the active nodes in this order, with those that it does not have in the places that are free."""
        newcomers = iter([host for host in active if host not in self.order])
        kept = [host if host in active else next(newcomers, "") for host in self.order]
        return tuple(host for host in (*kept, *newcomers) if host)


SCHEDULERS = Placement()


def draw(
    roster: Roster, placement: Placement, suspects: Sequence[str], leaves: Mapping[str, str], below: Below
) -> tuple[Roster, Placement]:
    """Return who is active and in which order once suspects, the most suspect first, have changed places."""
    order, drawn, moved = list(placement.of(roster.active)), dict[str, int](), set[str]()
    for suspect in [host for host in suspects if host in order][:MOST_MOVED]:
        others = [] if suspect in moved else [host for host in _partners(roster, order, suspect) if host not in moved]
        near = [host for host in others if leaves.get(host, "") == leaves.get(suspect, "")] or others
        if not near:
            continue
        # A suspect moves at first, which tells it from its rank at once. Later it may stay as well, which proves more;
        # and between two places one that always moved would prove nothing against a program that alternates.
        choices = near if len(near) > 1 and suspect not in placement.drawn else [suspect, *near]
        partner = choices[below(len(choices))]
        drawn[suspect] = len(choices)
        moved |= {suspect, partner}
        if partner in order:
            here, there = order.index(suspect), order.index(partner)
            order[here], order[there] = partner, suspect
        else:
            order[order.index(suspect)] = partner
            roster = roster.swapping(suspect, partner)
    return roster, replace(placement, order=tuple(order), drawn=drawn)


def draw_devices(
    placement: Placement, suspects: Mapping[str, str], devices: Mapping[str, Sequence[str]], below: Below
) -> Placement:
    """Return the placement once the suspect device of each node has changed places with another one there."""
    orders, drawn = dict(placement.devices), dict[str, int]()
    for host, device in suspects.items():
        order = list(orders.get(host, devices.get(host, ())))
        choices = [name for name in order if name != device]
        if device not in order or not choices:
            continue
        choices = choices if len(choices) > 1 and host not in placement.devices_drawn else [device, *choices]
        here, there = order.index(device), order.index(choices[below(len(choices))])
        order[here], order[there] = order[there], order[here]
        orders[host], drawn[host] = tuple(order), len(choices)
    return replace(placement, devices=orders, devices_drawn=drawn)


def _partners(roster: Roster, order: Sequence[str], suspect: str) -> list[str]:
    """Return the nodes that a suspect may change with; the primary stays in use."""
    has_devices = suspect in roster.with_devices
    reserve = [] if suspect == roster.primary else roster.reserve
    return [
        *(host for host in order if host != suspect),
        *(host for host in reserve if (host in roster.with_devices) == has_devices),
    ]

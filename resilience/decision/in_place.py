"""Whether lost ranks are replaced while the others keep their processes, and what all go on from. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from laggard.kvstore.membership import Formation, Ready
from laggard.resilience.decision.events import JobStatus, ProgramHung

Before = Literal["not asked for", "cannot stay", "not begun", "has ended", "too many lost", "tried enough", "too often"]
During = Literal["not ready", "not formed", "not paused", "has ended", "lost again", "node lost", "new process failed"]
NoStep = Literal["no common step", "same step"]
Obstacle = Literal[Before, During, NoStep]
"""What speaks for a relaunch: before ranks are replaced, while they are, and once it is known what each has."""
# Within one replacement, ranks may be lost again so many times.
MOST_TRIES = 3


@dataclass(frozen=True, slots=True)
class Loss:
    """What is known when ranks have ended while others run."""

    n_ranks: int
    lost: Mapping[int, int | None]  # the exit code of each of these; None: it is to be ended
    offered: frozenset[int]  # the ranks that can stay
    why_not: str = ""  # why a rank cannot, in the words of what it runs; empty: none said so
    n_tries: int = 0  # how often ranks were lost in this replacement before
    n_last_hour: int = 0  # how many replacements the last hour had
    most_per_hour: int = 60  # how many an hour may have; 0: nothing is ever relaunched or replaced


def obstacle(loss: Loss) -> Before | None:
    """Return what speaks for a relaunch instead; None: nothing."""
    if loss.why_not and loss.most_per_hour > 0:
        return "cannot stay"
    if not loss.offered or loss.most_per_hour == 0:
        return "not asked for"
    if 0 in loss.lost.values():
        return "has ended"
    if 2 * len(loss.lost) > loss.n_ranks:
        return "too many lost"
    if not {*range(loss.n_ranks)} - loss.lost.keys() <= loss.offered:
        return "not begun"
    if loss.n_tries >= MOST_TRIES:
        return "tried enough"
    return "too often" if loss.n_last_hour >= loss.most_per_hour else None


def in_place(before: JobStatus, after: JobStatus) -> JobStatus:
    """Return a status with the nodes that come in at the places of those that leave; all others keep theirs."""
    return replace(after, placement=replace(after.placement, order=before.placed.active))


def moves(before: JobStatus, after: JobStatus, devices: Mapping[str, Sequence[str]]) -> Mapping[str, str]:
    """Return which node takes the place of which; empty: of none, or ranks have other numbers than before.

    Parameters
    ----------
    before, after
        The job's status now, and then, as of `in_place`.
    devices
        The devices of each node, each of which has a rank.
    """
    old, new = before.placed.active, after.placed.active
    found = {out: into for out, into in zip(old, new, strict=False) if out != into}
    is_alike = all(len(devices.get(out, ())) == len(devices.get(into, ())) for out, into in found.items())
    return found if len(old) == len(new) and is_alike and {*new}.isdisjoint(found) else {}


def with_spare(status: JobStatus, hosts: Collection[str], spare: str) -> JobStatus:
    """Return the status in which a node on which processes stand by takes the place of one with lost ranks.

    Parameters
    ----------
    status
        The job's status now.
    hosts
        The nodes that have lost ranks: the status stays as it is unless that is a single one, and not the primary.
    spare
        The node on which processes stand by; empty: there is none.
    """
    roster = status.roster
    if len(hosts) != 1 or roster.primary in hosts or spare not in roster.reserve[:1]:
        return status
    return in_place(status, replace(status, roster=roster.swapping(next(iter(hosts)), spare)))


def hung_rank(hang: ProgramHung) -> int | None:
    """Return the rank that all others wait for; None if that is not a single one, or not known."""
    last = hang.stacks.standings[-1] if hang.stacks and hang.stacks.standings else None
    return last.rank if last is not None and last.n_ranks == 1 and last.host == hang.suspect else None


def formation(
    launch: int, ready: Mapping[int, Ready], failed_at: int | None, handed_over: Collection[tuple[int, int]]
) -> Formation | NoStep:
    """Return what all ranks of a launch go on from, or what speaks for a relaunch.

    Parameters
    ----------
    launch
        The launch.
    ready
        What each rank has, by its number.
    failed_at
        The step at which ranks were replaced last, if these were lost in the same way.
    handed_over
        The ranks and steps of which it is stored what was the rank's own, beside those that are said in `ready`.
    """
    stored = {*handed_over, *(each for said in ready.values() for each in said.handed_over)}
    holders = [rank for rank, each in sorted(ready.items()) if each.have]
    own = {rank: {*each.own, *(step for whose, step in stored if whose == rank)} for rank, each in ready.items()}
    common = set.intersection(*(own[rank] & {*(each.have or own[rank])} for rank, each in ready.items()))
    if not holders or not common:
        return "no common step"
    step = max(common)
    if step == failed_at:  # it may be the step that ends ranks
        return "same step"
    alike = {rank: each.alike or holders for rank, each in ready.items() if not each.have}
    sources = {str(rank): next((each for each in holders if each in found), -1) for rank, found in alike.items()}
    if -1 in sources.values():
        return "no common step"
    return Formation(launch, tuple(ready[rank].handle for rank in sorted(ready)), step, sources)

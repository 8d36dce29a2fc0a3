"""Controllers that are broken on purpose, each with a kind of schedule in which it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from laggard.kvstore.client.retry import RetryPolicy
from laggard.kvstore.errors import StateUnavailableError
from laggard.kvstore.state.mapping import State
from laggard.resilience.agent import agent
from laggard.resilience.controller import controller
from laggard.resilience.controller.launches import Launches
from laggard.resilience.controller.records import Records
from laggard.resilience.decision import beginning, policy, rules
from laggard.resilience.decision.case import Case
from laggard.resilience.decision.events import Settings
from laggard.resilience.decision.roster import Roster
from laggard.resilience.nodes.cluster import Cluster
from laggard.resilience.nodes.ranks import Ranks
from tests.simulation.allocation import Allocation
from tests.simulation.faults import Fault
from tests.simulation.job import Plan
from tests.simulation.programs import Habits
from tests.simulation.schedules import Schedule

__all__ = ["MUTANTS", "Mutant", "simple_schedule"]


@dataclass(frozen=True)
class Mutant:
    """A broken controller.

    Attributes
    ----------
    breaks
        Breaks it, for the time of a ``with`` block.
    schedule
        What shows it.
    complaint
        How the judge complains, as a regular expression.
    """

    breaks: Callable[[], AbstractContextManager[None]]
    schedule: Schedule
    complaint: str


def simple_schedule(*faults: tuple[str, float, float | None], **changed: Any) -> Schedule:
    """Return a schedule of a small job on three nodes.

    Parameters
    ----------
    faults
        Name, seconds after the one before it, and length of each fault.
    changed
        Fields of the plan, its settings or its habits that are not as usual.
    """
    settings = Settings(nodes=2, resilient=True, exhaust_resources=True, backoff_s=0.5, give_up_after_s=60.0)
    plan = Plan(("n1", "n2", "n3"), settings, Habits())
    for name, value in changed.items():
        if name in Habits.__dataclass_fields__:
            plan = replace(plan, habits=replace(plan.habits, **{name: value}))
        elif name in Settings.__dataclass_fields__:
            plan = replace(plan, settings=replace(plan.settings, **{name: value}))
        else:
            plan = replace(plan, **{name: value})
    struck = tuple(Fault(name, after_s, 0, length_s, 1) for name, after_s, length_s in faults)
    return Schedule(plan, struck)


@contextmanager
def _replaced(*replacements: tuple[Any, str, Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for target, name, value in replacements:
            stack.enter_context(patch.object(target, name, value))
        yield


def _that_drops_the_primary() -> AbstractContextManager[None]:
    excludable = property(lambda case: case.event.hosts & {*case.roster.active, *case.roster.reserve})
    return _replaced((Case, "excludable", excludable))


def _that_relaunches_in_vain() -> AbstractContextManager[None]:
    left = {
        event: [rule for rule in of_event if not rule.when.startswith(("of the accused", "no accused"))]
        for event, of_event in rules.RULES.items()
    }
    return _replaced((policy, "RULES", left))


def _that_never_ends() -> AbstractContextManager[None]:
    return _replaced((policy, "LIMITS", ()), (rules, "_pause_s", lambda _: 0.0))


def _that_forgets() -> AbstractContextManager[None]:
    without = Roster.without

    def only_moving(roster: Roster, hosts: frozenset[str], *rest: Any, **more: Any) -> Roster:
        after = without(roster, hosts, *rest, **more)
        moved = [exclusion.host for exclusion in after.excluded if exclusion not in roster.excluded]
        return replace(after, reserve=(*after.reserve, *moved), excluded=roster.excluded)

    return _replaced((Roster, "without", only_moving))


def _that_remembers_nothing() -> AbstractContextManager[None]:
    return _replaced((Records, "write_exclusions", lambda *_: None))


def _that_does_not_read_what_it_remembers() -> AbstractContextManager[None]:
    def begin(settings: Settings, hosts: Sequence[str], _: object, *rest: Any, **more: Any) -> Any:
        return beginning.begin(settings, hosts, (), *rest, **more)

    return _replaced((controller, "begin", begin))


def _without_fence() -> AbstractContextManager[None]:
    next_launch = Records.next_launch

    def only_counts(records: Any) -> int:
        if records.launch < 0:
            return next_launch(records)
        records.launch += 1
        return int(records.launch)

    return _replaced((Records, "next_launch", only_counts))


def _without_sweep() -> AbstractContextManager[None]:
    return _replaced((Launches, "_end_leftovers", lambda _: 0), (Cluster, "_end_leftovers", lambda *_: 0))


def _that_believes_in_silent_nodes() -> AbstractContextManager[None]:
    return _replaced((Cluster, "_is_lost", lambda _, node: node.agent.gone))


def _that_cleans_up_nothing() -> AbstractContextManager[None]:
    return _replaced(
        (agent, "end_descendants", lambda *_, **__: 0),
        (agent, "end_marked", lambda *_: True),
        (controller, "end_descendants", lambda *_, **__: 0),
    )


def _that_leaves_lost_nodes_alone() -> AbstractContextManager[None]:
    return _replaced((Allocation, "clear", lambda *_: None))


def _that_waits_for_ever() -> AbstractContextManager[None]:
    def wait(ranks: Any, deadline_s: float) -> bool:
        del deadline_s
        with ranks._changed:
            return bool(ranks._changed.wait_for(lambda: ranks.ended))

    return _replaced((Ranks, "wait", wait))


def _that_repeats_commits() -> AbstractContextManager[None]:
    increment = State.increment

    def increment_somehow(state: State, key: str) -> None:
        while True:
            try:
                return increment(state, key)
            except StateUnavailableError:
                continue

    once = RetryPolicy.call
    return _replaced(
        (State, "increment", increment_somehow),
        (RetryPolicy, "call", lambda retry, operation: once(RetryPolicy(retry._endpoint, 0.0), operation)),
    )


_ASKS = {"asks": 0.5, "steps": 8, "saving_s": 0.1}

MUTANTS = {
    "that drops the primary": Mutant(
        _that_drops_the_primary, simple_schedule(**_ASKS), "the primary was dropped|relaunch for the primary"
    ),
    "that relaunches in vain": Mutant(_that_relaunches_in_vain, simple_schedule(**_ASKS), "relaunch for the primary"),
    "that never ends": Mutant(_that_never_ends, simple_schedule(in_vain=True), "launch follows launch|does not end"),
    "that forgets its exclusions": Mutant(_that_forgets, simple_schedule(**_ASKS), "before its quarantine is over"),
    "that acts before it remembers": Mutant(
        _that_remembers_nothing,
        simple_schedule(("the controller is killed", 3.0, 1.0), **_ASKS),
        "before its quarantine is over",
    ),
    "that does not read what it remembers": Mutant(
        _that_does_not_read_what_it_remembers,
        simple_schedule(("the controller is killed", 3.0, 1.0), **_ASKS),
        "before its quarantine is over",
    ),
    "that does not fence": Mutant(_without_fence, simple_schedule(**_ASKS), "[Ff]ence|had begun"),
    "that does not sweep": Mutant(_without_sweep, simple_schedule(leaves=True, **_ASKS), "begins beside"),
    "that believes in silent nodes": Mutant(
        _that_believes_in_silent_nodes, simple_schedule(("a machine freezes", 1.0, None), steps=20), "nobody notices"
    ),
    "that cleans up nothing": Mutant(_that_cleans_up_nothing, simple_schedule(leaves=True), "left running"),
    "that leaves lost nodes alone": Mutant(
        _that_leaves_lost_nodes_alone,
        simple_schedule(("an agent is killed", 1.0, None), leaves=True, resilient=False),
        "left running",
    ),
    "that waits for ever": Mutant(
        _that_waits_for_ever,
        simple_schedule(chance_of_hang=0.2, saving_s=None, hang_timeout_s=5.0),
        "does not end",
    ),
    "that repeats commits": Mutant(
        _that_repeats_commits, simple_schedule(("answers get lost", 1.0, None), steps=12), "applied twice"
    ),
}

"""At most one healthy node in a hundred failures is put out, whatever the program does."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.resilience.decision.events import JobStatus, ProgramFailed, Relaunch, Settings
from laggard.resilience.decision.failure import Failure
from laggard.resilience.decision.ledger import Incident, evidence_against
from laggard.resilience.decision.placement import SCHEDULERS, Below, Placement, draw
from laggard.resilience.decision.policy import decide
from laggard.resilience.decision.roster import Roster

Adversary = Callable[[random.Random, Sequence[int]], int]
"""Says at which rank a program of so many nodes fails next, given where it has failed so far."""

ADVERSARIES: Mapping[str, Adversary] = {
    "rank 0 always": lambda *_: 0,
    "the last rank always": lambda *_: -1,
    "any rank": lambda chance, _: chance.randrange(1000),
    "bursts": lambda chance, before: before[-1] if before and chance.random() < 0.9 else chance.randrange(1000),
    "two in turn": lambda _, before: len(before) % 2,
    "each in turn": lambda _, before: len(before),
}
FAILURES = 40
JOBS = 30


def always(choice: int) -> Below:
    return lambda _: choice


def failure_on(host: str) -> ProgramFailed:
    return ProgramFailed(Failure(host, 0, 1, 1, 1, 0.0, 60.0, "", "", "unknown", "", hosts=(host,)))


def put_out(seed: int, n_nodes: int, adversary: Adversary, bad: str = "") -> tuple[int, int, bool]:
    """Return how many failures a job had, and how many healthy nodes and whether the bad one were put out."""
    chance = random.Random(seed)
    settings = Settings(n_nodes, resilient=True, exhaust_resources=True, places_ranks=True, max_restarts_per_hour=10**6)
    status = JobStatus(Roster(tuple(f"n{number}" for number in range(n_nodes))), 0.0)
    ranks: list[int] = []
    for number in range(1, FAILURES + 1):
        placed = status.placed.active
        ranks.append(adversary(chance, ranks))
        is_bad = bad in placed and chance.random() < 0.9
        host = bad if is_bad else placed[ranks[-1] % len(placed) if ranks[-1] >= 0 else -1]
        decision = decide(
            settings, status, failure_on(host), now_s=float(number), progressed=True, below=chance.randrange
        )
        assert isinstance(decision, Relaunch)
        status = decision.status
    out = {exclusion.host for exclusion in status.roster.excluded}
    return FAILURES, len(out - {bad}), bad in out


@pytest.mark.parametrize("n_nodes", [2, 3, 8])
@pytest.mark.parametrize("adversary", ADVERSARIES.values(), ids=ADVERSARIES)
def test_healthy_nodes_are_put_out_in_at_most_one_of_a_hundred_failures(n_nodes: int, adversary: Adversary) -> None:
    found = [put_out(seed, n_nodes, adversary) for seed in range(JOBS)]
    assert sum(healthy for _, healthy, _ in found) <= 0.01 * sum(failures for failures, _, _ in found)


@pytest.mark.parametrize("n_nodes", [2, 3, 8])
def test_a_bad_node_is_put_out_whatever_the_program_does(n_nodes: int) -> None:
    found = [put_out(seed, n_nodes, ADVERSARIES["bursts"], "n1") for seed in range(JOBS)]
    assert sum(bad for _, _, bad in found) >= 0.95 * JOBS


@given(
    st.integers(2, 6),
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=8),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_the_mean_of_the_evidence_after_a_draw_is_at_most_what_it_was(
    n_nodes: int, course: list[tuple[int, bool]], seed: int, has_moved: bool
) -> None:
    """Over all draws, each as likely: for every node, and whatever rank fails next."""
    hosts = [f"n{number}" for number in range(n_nodes)]
    chance = random.Random(seed)
    ledger = tuple(
        Incident(hosts[number % n_nodes], 0.0, 1.0, drawn={hosts[number % n_nodes]: n_nodes} if drawn else {})
        for number, drawn in course
    )
    suspect, rank = chance.choice(hosts), chance.randrange(n_nodes)
    before = Placement(drawn={suspect: 1}) if has_moved else SCHEDULERS
    n_choices = n_nodes if has_moved or n_nodes == 2 else n_nodes - 1
    means = dict.fromkeys(hosts, 0.0)
    for choice in range(n_choices):
        _, placement = draw(Roster(tuple(hosts)), before, [suspect], {}, always(choice))
        after = (*ledger, Incident(placement.order[rank], 0.0, 0.0, drawn=placement.drawn))
        for host in hosts:
            means[host] += evidence_against(host, after, 0.0).value / n_choices
    for host in hosts:
        assert means[host] <= evidence_against(host, ledger, 0.0).value * (1 + 1e-9)

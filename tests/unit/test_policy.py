"""The restart policy as a table: what happened, and what is done about it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from resilience.policy import (
    LIMITS,
    RULES,
    Decision,
    End,
    Event,
    NodeLost,
    NodesAccused,
    ProgramDied,
    ProgramEnded,
    ProgramHung,
    Relaunch,
    Report,
    Settings,
    Standing,
    WorkerDied,
    begin,
    decide,
)
from resilience.roster import Exclusion, Roster

PLAIN = Settings(nodes=2)
RESILIENT = Settings(nodes=2, resilient=True)
EXHAUSTING = Settings(nodes=2, resilient=True, exhaust_resources=True)

NOW_S = 1e9
LATER_S = NOW_S + PLAIN.quarantine_s


def out(*hosts: str, lost: bool = False) -> tuple[Exclusion, ...]:
    return tuple(Exclusion(host, NOW_S, lost) for host in hosts)


THREE = Roster(("n1", "n2"), ("n3",))
TWO = Roster(("n1", "n3"), (), out("n2"))
ALONE = Roster(("n1",), (), out("n2", "n3"))


def accused(*hosts: str) -> NodesAccused:
    return NodesAccused(frozenset(hosts))


@dataclass(frozen=True)
class Go:
    """Relaunch on this roster."""

    roster: Roster
    reason: str
    anew: bool = False


@dataclass(frozen=True)
class Stay:
    """Report, and go on with this roster."""

    roster: Roster
    reason: str


TABLE: list[tuple[str, Settings, Roster, Event, End | Go | Stay]] = [
    (
        "a program that ends by itself ends the job with its exit code",
        EXHAUSTING,
        THREE,
        ProgramEnded(3),
        End(3, "the program ended with exit code 3"),
    ),
    (
        "a slow node is replaced by the reserve",
        RESILIENT,
        THREE,
        accused("n2"),
        Go(Roster(("n1", "n3"), (), out("n2")), "without n2; n3 comes in from the reserve"),
    ),
    (
        "without --exhaust-resources too few nodes end the job",
        RESILIENT,
        TWO,
        accused("n3"),
        End(69, "1 good nodes are left and --nodes is 2; --exhaust-resources would go on"),
    ),
    (
        "with --exhaust-resources the primary goes on alone",
        EXHAUSTING,
        TWO,
        accused("n3"),
        Go(ALONE, "without n3; the primary goes on alone"),
    ),
    (
        "a slow primary is reported and kept",
        EXHAUSTING,
        THREE,
        accused("n1"),
        Stay(THREE, "the primary is never excluded"),
    ),
    (
        "a slow primary does not save the other slow node",
        EXHAUSTING,
        THREE,
        accused("n1", "n2"),
        Go(Roster(("n1", "n3"), (), out("n2")), "without n2; n3 comes in from the reserve"),
    ),
    (
        "without --resilient a slow node is only reported",
        PLAIN,
        THREE,
        accused("n2"),
        Stay(THREE, "without --resilient nothing is relaunched"),
    ),
    (
        "a node that is excluded already cannot be accused again",
        EXHAUSTING,
        TWO,
        accused("n2"),
        Stay(TWO, "it is not in use"),
    ),
    (
        "an accused node of the reserve is not taken later",
        EXHAUSTING,
        THREE,
        accused("n3"),
        Stay(Roster(("n1", "n2"), (), out("n3")), "taken from the reserve"),
    ),
    (
        "a program that asks for a relaunch without naming a node gets the same nodes",
        RESILIENT,
        THREE,
        accused(),
        Go(THREE, "on the same nodes"),
    ),
    (
        "a lost active node is replaced",
        RESILIENT,
        THREE,
        NodeLost("n2"),
        Go(Roster(("n1", "n3"), (), out("n2", lost=True)), "without n2; n3 comes in from the reserve"),
    ),
    (
        "a lost head of Ray's is replaced, with all of Ray, on the same nodes",
        EXHAUSTING,
        THREE,
        NodeLost("n1"),
        Go(THREE, "Ray's head on n1 is lost; a new cluster comes up", anew=True),
    ),
    (
        "a lost head of Ray's without --resilient ends the job",
        PLAIN,
        THREE,
        NodeLost("n1"),
        End(69, "node n1 is lost; --resilient would relaunch without it"),
    ),
    (
        "a lost node of the reserve does not disturb the program",
        RESILIENT,
        THREE,
        NodeLost("n3"),
        Stay(Roster(("n1", "n2"), (), ()), "n3 is lost and was not in use"),
    ),
    (
        "a node that is lost while it is excluded does not come back",
        RESILIENT,
        TWO,
        NodeLost("n2"),
        Stay(Roster(("n1", "n3"), (), out("n2", lost=True)), "n2 is lost and was not in use"),
    ),
    (
        "a lost node without --resilient ends the job",
        PLAIN,
        THREE,
        NodeLost("n2"),
        End(69, "node n2 is lost; --resilient would relaunch without it"),
    ),
    (
        "a program that died by a signal is relaunched on the same nodes",
        RESILIENT,
        THREE,
        ProgramDied(9),
        Go(THREE, "the program died by signal 9"),
    ),
    (
        "a program that failed for want of a killed worker is relaunched on the same nodes",
        RESILIENT,
        THREE,
        WorkerDied(1),
        Go(THREE, "a worker was killed and the program failed with exit code 1"),
    ),
    (
        "a program that failed for want of a killed worker ends the job without --resilient",
        PLAIN,
        THREE,
        WorkerDied(1),
        End(1, "a worker was killed and the program failed; --resilient would relaunch it"),
    ),
    (
        "a program that hangs is relaunched on the same nodes",
        RESILIENT,
        THREE,
        ProgramHung(61.2),
        Go(THREE, "the program hangs: no progress for 61 s"),
    ),
    (
        "a program that hangs is reported without --resilient",
        PLAIN,
        THREE,
        ProgramHung(61.2),
        Stay(THREE, "no progress for 61 s; --resilient would relaunch it"),
    ),
    (
        "a program that died by a signal ends the job without --resilient",
        PLAIN,
        THREE,
        ProgramDied(11),
        End(139, "the program died by signal 11; --resilient would relaunch it"),
    ),
]


@pytest.mark.parametrize(
    ("settings", "roster", "event", "expected"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_policy(settings: Settings, roster: Roster, event: Event, expected: End | Go | Stay) -> None:
    decision = after(settings, Standing(roster, NOW_S), event)
    if isinstance(decision, Relaunch):
        assert Go(decision.standing.roster, decision.reason, decision.anew) == expected
    elif isinstance(decision, Report):
        assert Stay(decision.standing.roster, decision.reason) == expected
    else:
        assert decision == expected


def after(
    settings: Settings, standing: Standing, event: Event, *, now_s: float = NOW_S, progressed: bool = True
) -> Decision:
    return decide(settings, standing, event, now_s=now_s, progressed=progressed)


def relaunched(settings: Settings, standing: Standing, *moments_s: float, progressed: bool = True) -> Decision:
    """Let the program die at each of these moments; return the last decision."""
    for now_s in moments_s:
        decision = after(settings, standing, ProgramDied(9), now_s=now_s, progressed=progressed)
        if isinstance(decision, Relaunch):
            standing = decision.standing
    return decision


def test_the_main_job_takes_three_launches_and_two_exclusions() -> None:
    """Slow node after slow node, down to the primary: the story that the README shows."""
    standing = Standing(THREE, NOW_S)
    for host in ("n2", "n3"):
        decision = after(EXHAUSTING, standing, accused(host))
        assert isinstance(decision, Relaunch)
        standing = decision.standing
    assert (len(standing.relaunched_s), standing.roster) == (2, ALONE)
    assert after(EXHAUSTING, standing, ProgramEnded(0)) == End(0, "the program ended with exit code 0")


@pytest.mark.parametrize("event", [ProgramDied(9), WorkerDied(1), ProgramHung(60), accused(), NodeLost("n1")])
def test_three_launches_in_a_row_without_progress_end_the_job_whatever_ended_them(event: Event) -> None:
    standing = Standing(THREE, NOW_S, barren=2)
    assert after(RESILIENT, standing, event, progressed=False) == End(
        93, "3 launches in a row committed nothing to State"
    )
    fruitful = after(RESILIENT, standing, event, progressed=True)
    assert isinstance(fruitful, Relaunch)
    assert fruitful.standing.barren == 0


def test_a_launch_that_ran_for_an_hour_was_not_in_vain() -> None:
    standing = Standing(THREE, NOW_S, barren=2)
    assert isinstance(after(RESILIENT, standing, accused(), now_s=NOW_S + 3599, progressed=False), End)
    assert isinstance(after(RESILIENT, standing, accused(), now_s=NOW_S + 3600, progressed=False), Relaunch)


def test_the_budget_of_restarts_ends_the_job() -> None:
    two = replace(RESILIENT, max_restarts=2)
    begun = Standing(THREE, NOW_S)
    assert isinstance(relaunched(two, begun, NOW_S, NOW_S), Relaunch)
    assert relaunched(two, begun, NOW_S, NOW_S, NOW_S) == End(93, "--max-restarts=2 are used up")


def test_a_storm_of_restarts_ends_the_job_and_the_same_number_over_hours_does_not() -> None:
    calm = replace(RESILIENT, max_restarts_per_hour=2)
    begun = Standing(THREE, NOW_S)
    storm = relaunched(calm, begun, NOW_S, NOW_S + 1000, NOW_S + 3599)
    assert storm == End(93, "--max-restarts-per-hour=2 are used up")
    assert isinstance(relaunched(calm, begun, NOW_S, NOW_S + 1000, NOW_S + 3600), Relaunch)


def test_a_node_comes_back_to_the_reserve_when_its_quarantine_is_over_and_not_before() -> None:
    standing = Standing(Roster(("n1", "n3"), ("n4",), out("n2")), NOW_S)
    early = after(RESILIENT, standing, ProgramDied(9), now_s=LATER_S - 1)
    assert isinstance(early, Relaunch)
    assert early.standing.roster == standing.roster
    late = after(RESILIENT, standing, ProgramDied(9), now_s=LATER_S)
    assert isinstance(late, Relaunch)
    assert late.standing.roster == Roster(("n1", "n3"), ("n4", "n2"))


def test_a_lost_node_does_not_come_back_in_this_job() -> None:
    standing = Standing(Roster(("n1", "n3"), (), out("n2", lost=True)), NOW_S)
    decision = after(RESILIENT, standing, ProgramDied(9), now_s=LATER_S)
    assert isinstance(decision, Relaunch)
    assert decision.standing.roster == standing.roster


def test_a_job_begins_without_the_nodes_that_the_jobs_before_it_excluded() -> None:
    hosts = ("n1", "n2", "n3")
    assert begin(RESILIENT, hosts, [], NOW_S) == Standing(THREE, NOW_S)
    assert begin(RESILIENT, hosts, out("n2"), NOW_S) == Standing(TWO, NOW_S)
    assert begin(RESILIENT, hosts, out("n2"), LATER_S) == Standing(THREE, LATER_S)
    assert begin(RESILIENT, hosts, out("n2", "elsewhere"), NOW_S) == Standing(TWO, NOW_S)
    assert begin(EXHAUSTING, hosts, out("n2", "n3"), NOW_S) == Standing(ALONE, NOW_S)


def test_a_job_begins_on_its_primary_whatever_is_remembered_of_it() -> None:
    assert begin(RESILIENT, ("n1", "n2", "n3"), out("n1"), NOW_S) == Standing(THREE, NOW_S)


def test_a_job_that_would_begin_on_too_few_nodes_ends_with_69() -> None:
    assert begin(RESILIENT, ("n1", "n2", "n3"), out("n2", "n3"), NOW_S) == End(
        69,
        "1 good nodes are left and --nodes is 2; --exhaust-resources would go on, "
        "and --quarantine=1 would take back n2, n3",
    )


def test_who_is_excluded_when_too_few_are_left_is_to_be_remembered() -> None:
    end = after(RESILIENT, Standing(TWO, NOW_S), accused("n3"))
    assert isinstance(end, End)
    assert end.standing is not None
    assert end.standing.roster.excluded_hosts == ("n2", "n3")


def drawn() -> str:
    """Draw the policy's two tables from its code."""
    lines = ["| event | when | decision |", "|---|---|---|"]
    told: set[type] = set()
    for rule in RULES:
        event = "" if rule.event in told else (inspect.getdoc(rule.event) or "").splitlines()[0]
        otherwise = "otherwise" if rule.event in told else "always"
        told.add(rule.event)
        lines.append(f"| {event} | {rule.when or otherwise} | {rule.then} |")
    lines += ["", "| a relaunch ends the job when | with |", "|---|---|"]
    lines += [f"| {limit.when} | {limit.exit_code} |" for limit in LIMITS]
    return "\n".join(lines)


def test_the_documentation_shows_the_policy_as_it_is() -> None:
    text = (Path(__file__).parents[2] / "docs" / "restart.md").read_text()
    assert drawn() in text, f"docs/restart.md should contain:\n\n{drawn()}"

"""The restart policy as a table: what happened, and what is done about it."""

from __future__ import annotations

import pytest

from resilience.policy import (
    Decision,
    End,
    Event,
    NodeLost,
    NodesAccused,
    ProgramDied,
    ProgramEnded,
    Relaunch,
    Report,
    Roster,
    Settings,
    decide,
)

PLAIN = Settings(nodes=2)
RESILIENT = Settings(nodes=2, resilient=True)
EXHAUSTING = Settings(nodes=2, resilient=True, exhaust_resources=True)

THREE = Roster(("n1", "n2"), ("n3",))
TWO = Roster(("n1", "n3"), (), ("n2",))
ALONE = Roster(("n1",), (), ("n2", "n3"))


def accused(*hosts: str) -> NodesAccused:
    return NodesAccused(frozenset(hosts))


TABLE: list[tuple[str, Settings, Roster, Event, Decision]] = [
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
        Relaunch(Roster(("n1", "n3"), (), ("n2",)), "without n2; n3 comes in from the reserve"),
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
        Relaunch(ALONE, "without n3; the primary goes on alone"),
    ),
    (
        "a slow primary is reported and kept",
        EXHAUSTING,
        THREE,
        accused("n1"),
        Report(THREE, "the primary is never excluded"),
    ),
    (
        "a slow primary does not save the other slow node",
        EXHAUSTING,
        THREE,
        accused("n1", "n2"),
        Relaunch(Roster(("n1", "n3"), (), ("n2",)), "without n2; n3 comes in from the reserve"),
    ),
    (
        "without --resilient a slow node is only reported",
        PLAIN,
        THREE,
        accused("n2"),
        Report(THREE, "without --resilient nothing is relaunched"),
    ),
    (
        "a node that is excluded already cannot be accused again",
        EXHAUSTING,
        TWO,
        accused("n2"),
        Report(TWO, "it is not in use"),
    ),
    (
        "an accused node of the reserve is not taken later",
        EXHAUSTING,
        THREE,
        accused("n3"),
        Report(Roster(("n1", "n2"), (), ("n3",)), "taken from the reserve"),
    ),
    (
        "a program that asks for a relaunch without naming a node gets the same nodes",
        RESILIENT,
        THREE,
        accused(),
        Relaunch(THREE, "on the same nodes"),
    ),
    (
        "a lost active node is replaced",
        RESILIENT,
        THREE,
        NodeLost("n2"),
        Relaunch(Roster(("n1", "n3"), (), ("n2",)), "without n2; n3 comes in from the reserve"),
    ),
    (
        "a lost primary ends the job",
        EXHAUSTING,
        THREE,
        NodeLost("n1"),
        End(69, "the primary node n1 is lost"),
    ),
    (
        "a lost node of the reserve does not disturb the program",
        RESILIENT,
        THREE,
        NodeLost("n3"),
        Report(Roster(("n1", "n2"), (), ()), "n3 was not in use"),
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
        ProgramDied(9, 0),
        Relaunch(THREE, "the program died by signal 9"),
    ),
    (
        "three launches without progress end the job",
        RESILIENT,
        THREE,
        ProgramDied(11, 3),
        End(93, "3 launches in a row committed nothing to State"),
    ),
    (
        "a program that died by a signal ends the job without --resilient",
        PLAIN,
        THREE,
        ProgramDied(11, 0),
        End(139, "the program died by signal 11; --resilient would relaunch it"),
    ),
]


@pytest.mark.parametrize(
    ("settings", "roster", "event", "expected"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_policy(settings: Settings, roster: Roster, event: Event, expected: Decision) -> None:
    assert decide(settings, roster, event) == expected


def test_the_main_job_takes_three_launches_and_two_exclusions() -> None:
    """Slow node after slow node, down to the primary: the story that the README shows."""
    roster, launches = THREE, 1
    for host in ("n2", "n3"):
        decision = decide(EXHAUSTING, roster, accused(host))
        assert isinstance(decision, Relaunch)
        roster, launches = decision.roster, launches + 1
    assert (launches, roster) == (3, ALONE)
    assert decide(EXHAUSTING, roster, ProgramEnded(0)) == End(0, "the program ended with exit code 0")

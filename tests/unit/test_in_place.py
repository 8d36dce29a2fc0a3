"""Whether lost ranks are replaced while the others keep their processes, and from which step all go on."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from laggard.kvstore.membership import Formation, Ready
from laggard.resilience.decision.events import JobStatus, ProgramHung
from laggard.resilience.decision.in_place import (
    MOST_TRIES,
    Loss,
    formation,
    hung_rank,
    in_place,
    moves,
    obstacle,
    with_spare,
)
from laggard.resilience.decision.placement import Placement
from laggard.resilience.decision.roster import Roster
from laggard.resilience.decision.stacks import Standing, Standstill

KILLED = {1: -signal.SIGKILL}
ALL_CAN_STAY = Loss(4, KILLED, frozenset(range(4)))


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        (ALL_CAN_STAY, None),
        (replace(ALL_CAN_STAY, lost={**KILLED, 3: 1}), None),
        (replace(ALL_CAN_STAY, lost={1: None, 3: None}), None),
        (replace(ALL_CAN_STAY, offered=frozenset({0, 2, 3})), None),
        (replace(ALL_CAN_STAY, offered=frozenset()), "not asked for"),
        (replace(ALL_CAN_STAY, offered=frozenset(), why_not="its model is split"), "cannot stay"),
        (replace(ALL_CAN_STAY, offered=frozenset({0, 1, 2})), "not begun"),
        (replace(ALL_CAN_STAY, lost={**KILLED, 3: 0}), "has ended"),
        (replace(ALL_CAN_STAY, lost=dict.fromkeys(range(3), -9)), "too many lost"),
        (replace(ALL_CAN_STAY, n_tries=1), None),
        (replace(ALL_CAN_STAY, n_tries=MOST_TRIES), "tried enough"),
        (replace(ALL_CAN_STAY, n_last_hour=60), "too often"),
        (replace(ALL_CAN_STAY, most_per_hour=0), "not asked for"),
        (replace(ALL_CAN_STAY, offered=frozenset(), why_not="its model is split", most_per_hour=0), "not asked for"),
        (replace(ALL_CAN_STAY, n_last_hour=60, most_per_hour=61), None),
    ],
)
def test_ranks_are_replaced_in_place_unless_something_speaks_for_a_relaunch(loss: Loss, found: str | None) -> None:
    assert obstacle(loss) == found


def ready(**ranks: tuple[tuple[int, ...], tuple[int, ...]]) -> dict[int, Ready]:
    """Return what each rank has: the steps with their whole state, and those with what is its own alone."""
    return {int(name[1:]): Ready(int(name[1:]), f"handle {name}", *steps) for name, steps in ranks.items()}


@pytest.mark.parametrize(
    ("has", "step", "sources"),
    [
        (ready(r0=((7, 8), (7, 8)), r1=((), (7, 8)), r2=((7, 8), (7, 8))), 8, {"1": 0}),
        (ready(r0=((), (8, 9)), r1=((7, 8), (7, 8)), r2=((8, 9), (8, 9))), 8, {"0": 1}),  # rank 2 is a step ahead
        (ready(r0=((7, 8), (7, 8)), r1=((), (6, 7)), r2=((7, 8), (7, 8))), 7, {"1": 0}),  # the lost one was behind
        (ready(r0=((), (3,)), r1=((), (3,)), r2=((3,), (3,))), 3, {"0": 2, "1": 2}),
    ],
)
def test_all_go_on_from_the_newest_step_that_all_have(
    has: dict[int, Ready], step: int, sources: dict[str, int]
) -> None:
    handles = ("handle r0", "handle r1", "handle r2")
    assert formation(5, has, None, ()) == Formation(5, handles, step, sources)


@pytest.mark.parametrize(
    ("lost", "found"), [((1,), {"1": 3}), ((1, 2), {"1": 3, "2": 0}), ((0, 1), {"0": 2, "1": 3}), ((0, 2), None)]
)
def test_who_is_behind_takes_over_the_state_of_a_rank_with_the_same_part(
    lost: tuple[int, ...], found: dict[str, int] | None
) -> None:
    alike = {0: (0, 2), 1: (1, 3), 2: (0, 2), 3: (1, 3)}
    has = {rank: Ready(rank, "", () if rank in lost else (7,), (7,), alike=alike[rank]) for rank in alike}
    formed = formation(5, has, None, ())
    assert (dict(formed.sources) if isinstance(formed, Formation) else None) == found


@pytest.mark.parametrize(
    "has",
    [
        ready(r0=((7, 8), (7, 8)), r1=((), (5, 6))),
        ready(r0=((7, 8), (7, 8)), r1=((), ())),  # what was the lost rank's own is lost with it
        ready(r0=((), (8,)), r1=((), (8,))),  # nobody has a whole state
    ],
)
def test_without_a_step_that_all_have_there_is_none(has: dict[int, Ready]) -> None:
    assert formation(5, has, None, ()) == "no common step"


def test_a_step_that_has_ended_ranks_before_is_not_run_again() -> None:
    has = ready(r0=((7, 8), (7, 8)), r1=((), (7, 8)))
    assert formation(5, has, 8, ()) == "same step"
    assert isinstance(formation(5, has, 7, ()), Formation)


@pytest.mark.parametrize(("steps", "found"), [((9,), 9), ((8,), 8), ((7,), None)])
def test_what_ranks_have_handed_over_those_that_take_their_places_have(
    steps: tuple[int, ...], found: int | None
) -> None:
    has = ready(r0=((8, 9), (8, 9)), r1=((), ()), r2=((8, 9), (8, 9)))
    stored = tuple((1, each) for each in steps)
    said = {**has, 2: replace(has[2], handed_over=stored)}
    for formed in (formation(5, has, None, stored), formation(5, said, None, ())):
        assert (formed.step if isinstance(formed, Formation) else None) == found


NODES = Roster(("a", "b", "c"), reserve=("r", "small", "s"))
DEVICES = {**dict.fromkeys("abcrs", ("0", "1")), "small": ("0",)}


@pytest.mark.parametrize(
    ("order", "without", "places", "found"),
    [
        ((), {"b"}, 3, {"b": "r"}),
        ((), {"a"}, 3, {"a": "r"}),
        (("c", "a", "b"), {"b"}, 3, {"b": "r"}),
        ((), {"b", "r", "small"}, 3, {"b": "s"}),
        ((), {"b", "r"}, 3, {}),  # the next node of the reserve has another number of devices
        ((), {"b"}, 2, {}),  # nobody comes in
        ((), {"b"}, 4, {}),  # the job grows at the same time
        ((), set(), 3, {}),
    ],
)
def test_a_node_comes_in_at_the_place_of_one_that_leaves_and_all_others_keep_theirs(
    order: tuple[str, ...], without: set[str], places: int, found: dict[str, str]
) -> None:
    before = JobStatus(NODES, 0.0, placement=Placement(order))
    after = in_place(before, replace(before, roster=NODES.without(frozenset(without), places, 0.0)))
    assert moves(before, after, DEVICES) == found
    if found:
        [(out, into)] = found.items()
        assert after.placed.active == tuple(into if host == out else host for host in before.placed.active)


@pytest.mark.parametrize(
    ("lost", "spare", "active"),
    [
        ({"b"}, "r", ("a", "r", "c")),
        ({"c"}, "r", ("a", "b", "r")),
        ({"b"}, "", NODES.active),
        ({"b"}, "s", NODES.active),  # others would come in before it
        ({"a"}, "r", NODES.active),  # the primary stays in use
        ({"b", "c"}, "r", NODES.active),
    ],
)
def test_a_node_on_which_processes_stand_by_takes_the_place_of_one_that_has_lost_ranks(
    lost: set[str], spare: str, active: tuple[str, ...]
) -> None:
    after = with_spare(JobStatus(NODES, 0.0), lost, spare)
    assert after.placed.active == active
    assert {*after.roster.reserve} == {*NODES.active, *NODES.reserve} - {*active}


WAITING, STOPPED = Standing("waits for others", "", 3, "node1", 0), Standing("stopped", "", 1, "node2", 2)


@pytest.mark.parametrize(
    ("suspect", "standings", "rank"),
    [
        ("node2", (WAITING, STOPPED), 2),
        ("", (WAITING, STOPPED), None),  # others on other nodes stand out, too
        ("node2", (WAITING, replace(STOPPED, n_ranks=2)), None),
        ("node2", (WAITING, replace(STOPPED, rank=None)), None),
        ("node2", (), None),
    ],
)
def test_of_a_hang_one_rank_is_ended_if_all_others_wait_for_it(
    suspect: str, standings: tuple[Standing, ...], rank: int | None
) -> None:
    assert hung_rank(ProgramHung(12.0, None, Standstill(standings), suspect)) == rank
    assert hung_rank(ProgramHung(12.0)) is None

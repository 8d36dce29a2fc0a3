"""What the job loses by slow devices, and for which of them a restart is asked for, round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from laggard.collectors.device import DeviceId
from laggard.detectors import Verdict
from laggard.detectors.economics.episode import Episode
from laggard.detectors.economics.restart_cost import RestartCost
from laggard.detectors.economics.restarts import Grounds, Restarts
from laggard.detectors.evidence import Reason, Slow, Subject, WellAgain
from laggard.detectors.verdict import Evidence
from laggard.kvstore.control import LaunchRecord, NodeRecord

NODES = tuple(NodeRecord(f"node{number}", "", ("0", "1", "2")) for number in range(4))
RESERVE = (NodeRecord("node9", "", ("0", "1", "2")),) * 4
DEVICES: list[DeviceId] = [(node.hostname, gpu) for node in NODES for gpu in node.devices]
ONE, OTHER = DEVICES[0], DEVICES[3]


def restarts(cost_s: float, **record: float) -> Restarts:
    found = Restarts(RestartCost(cost_s))
    found.begin(LaunchRecord(0, NODES, RESERVE, **record))  # type: ignore[arg-type]
    return found


def verdict(host: str, gpu: str | None, slowdown: float = 1.5, share: float | None = None) -> Verdict:
    """Return a verdict that asks for a restart, or, with a share, that a device is slow at times."""
    evidence = Evidence(host, gpu, Slow(slowdown, "peers", share=share))
    return Verdict(host, gpu, slowdown, "slow", evidence, action="restart" if share is None else "report")


def grounds(slowdowns: Mapping[DeviceId, float], since_s: float = 0.0, min_slowdown: float = 1.0) -> Grounds:
    """Return what is known of devices that have been as slow ever since."""
    episodes = {device: Episode(since_s, ratio, 1 - 1 / ratio) for device, ratio in slowdowns.items()}
    return Grounds(episodes.get, min_slowdown=min_slowdown)


def lost_s(found: Sequence[Verdict]) -> list[float]:
    return [each.evidence.weighed.lost_s for each in found if each.evidence.weighed is not None]


@pytest.mark.parametrize(
    ("slowdowns", "n_devices", "counts"),
    [
        ([1.5, 1.2, 1.1], 3, 1.5),
        ([1.5], 3, 1.5),
        ([1.07], 3, 1.07),
        ([1.065, 1.03, 1.02], 3, 1.03),  # none is slower than a healthy one may be: the one in the middle counts
        ([1.065], 3, 1.0),
        ([1.065], 2, 1.065),
    ],
)
def test_a_node_is_as_slow_as_its_slowest_device_if_that_is_not_within_what_chips_differ(
    slowdowns: list[float], n_devices: int, counts: float
) -> None:
    devices = dict(zip(DEVICES[:3], slowdowns, strict=False))
    found = restarts(1e6).weigh([verdict("node0", None)], grounds(devices), DEVICES[:n_devices], 100.0)
    assert lost_s(found) == [pytest.approx(100 * (1 - 1 / counts))]


@pytest.mark.parametrize(("slowdown", "costs"), [(1.25, True), (1.24, False)])
def test_a_slowdown_that_does_not_matter_costs_nothing(slowdown: float, costs: bool) -> None:
    weighing = restarts(1e6)
    known = grounds({ONE: slowdown}, min_slowdown=1.25)
    first, second = (lost_s(weighing.weigh([verdict(*ONE)], known, DEVICES, now_s)) for now_s in (100.0, 200.0))
    assert first == [pytest.approx(100 * (1 - 1 / slowdown))]
    assert second[0] - first[0] == pytest.approx(20.0 if costs else 0.0)


@pytest.mark.parametrize(("cost_s", "actions"), [(0.0, ["restart"] * 3), (1.0, ["restart", "report", "report"])])
def test_a_restart_that_costs_nothing_is_asked_for_again_with_each_new_verdict(
    cost_s: float, actions: list[str]
) -> None:
    weighing, known = restarts(cost_s), grounds({ONE: 1.5})
    rounds = [weighing.weigh([verdict(*ONE)], known, DEVICES, now_s) for now_s in (100.0, 110.0, 120.0)]
    assert [each.action for found in rounds for each in found] == actions
    assert weighing.weigh([], known, DEVICES, 130.0) == []


@pytest.mark.parametrize(("holds_up", "lost"), [(None, 0.0), (True, 0.0), (False, 20.0)])
def test_a_device_loses_nothing_while_a_slower_one_that_stays_holds_up_the_job(
    holds_up: bool | None, lost: float
) -> None:
    weighing, known = restarts(1e6), grounds({ONE: 2.0, OTHER: 1.25})
    given = replace(known, why_not=lambda each: Reason("busier") if each.host == ONE[0] else None)
    if holds_up is not None:
        given = replace(given, holds_up=holds_up)
    both = [verdict(*ONE, 2.0), verdict(*OTHER, 1.25)]
    first, second = (lost_s(weighing.weigh(both, given, DEVICES, now_s)) for now_s in (0.0, 100.0))
    assert first == [0.0, 0.0]
    assert second == [pytest.approx(50.0), pytest.approx(lost)]


@pytest.mark.parametrize("holds_up", [True, False])
def test_a_device_for_which_a_restart_was_asked_holds_up_the_job_until_it_is_made(*, holds_up: bool) -> None:
    weighing, known = restarts(222.0), grounds({ONE: 2.0, OTHER: 1.25})
    both = [verdict(*ONE, 2.0), verdict(*OTHER, 1.25)]
    rounds = [weighing.weigh(both, replace(known, holds_up=holds_up), DEVICES, now_s) for now_s in (100, 110, 120)]
    assert [[each.action for each in found] for found in rounds] == [["restart", "report"], *[["report"] * 2] * 2]
    assert lost_s(rounds[2])[1] == lost_s(rounds[1])[1]


@pytest.mark.parametrize(
    ("episode", "in_s"),
    [
        (None, 60 / 0.5),  # as slow as its verdict says
        (Episode(100.0, 1.5, 0.2), 60 / 0.2),  # what its last rounds cost on average
        (Episode(50.0, 1.5, 0.2), (60 - 10) / 0.2),
    ],
)
def test_a_restart_is_due_once_half_of_45_percent_of_its_stated_cost_are_lost_at_the_pace_of_the_last_rounds(
    episode: Episode | None, in_s: float
) -> None:
    [found] = restarts(800 / 3).weigh([verdict(*ONE, 2.0)], Grounds(lambda _: episode), DEVICES, 100.0)
    assert found.evidence.weighed is not None
    assert found.evidence.weighed.in_s == pytest.approx(in_s)


def test_the_incidents_of_a_device_that_moves_go_with_its_name() -> None:
    weighing, counts = restarts(1e6), []
    for number, device in enumerate((ONE, OTHER, ONE)):
        name = {device: "GPU-a"} if number < 2 else {}
        at_s = 1e5 * number  # a day later it is told of again
        for slowdowns in ({device: 1.5}, {}):
            given = replace(grounds(slowdowns, at_s), identities=name)
            new = [verdict(*device)] if slowdowns else []
            found = weighing.weigh(new, given, DEVICES, at_s + 50 * (not slowdowns))
        counts += [each.evidence.found.count for each in found if isinstance(each.evidence.found, WellAgain)]
    assert counts == [1, 2, 1]


@pytest.mark.parametrize(
    ("first", "second", "in_vain"),
    [
        (("node0", "1"), ("node8", "1"), True),
        (("node0", "1"), ("node8", "2"), False),
        (("node0", "1"), ("node1", "1"), False),
        (("node2", "1"), ("node3", "1"), False),
        (("node0", None), ("node8", None), True),
        (("node0", None), ("node1", None), False),
        (("node0", "7"), ("node8", "7"), True),  # which the launch does not know
        (("node0", "rank 3"), ("node2", "rank 3"), True),  # wherever it is
        (("node0", "rank 3"), ("node8", "rank 4"), False),
    ],
)
def test_a_restart_was_in_vain_if_another_device_is_slow_in_the_same_place(
    first: Subject, second: Subject, in_vain: bool
) -> None:
    devices = [*DEVICES, ("node8", "1"), ("node8", "2"), *((host, gpu or "1") for host, gpu in (first, second))]
    known = grounds(dict.fromkeys(devices, 1.5))
    before, after = restarts(1.0), Restarts(RestartCost(1.0))
    [asked] = before.weigh([verdict(*first)], known, devices, 100.0)
    assert asked.action == "restart"
    after.begin(LaunchRecord(1, (NodeRecord("node8", "", ("0", "1", "2")), *NODES[1:]), RESERVE))
    after.restore(before.to_state(), 200.0, same_run=True)
    found = next(each for each in after.weigh([verdict(*second)], known, devices, 200.0) if each.host == second[0])
    assert found.evidence.weighed is not None
    assert found.evidence.weighed.why == Reason("last one in vain" if in_vain else "likely to lose more")


@pytest.mark.parametrize(
    ("others", "slowdown", "launch", "actions"),
    [
        ([("node0", "1")], 1.5, LaunchRecord(0, NODES, RESERVE[:1]), ["restart"] * 2),  # on the same node
        ([OTHER], 1.5, LaunchRecord(0, NODES, RESERVE[:1]), ["restart", "report"]),
        ([OTHER], 1.5, LaunchRecord(0, NODES, RESERVE[:2]), ["restart"] * 2),
        ([OTHER, ("node1", "1")], 1.5, LaunchRecord(0, NODES, RESERVE[:2]), ["restart"] * 3),
        ([OTHER, ("node2", "0")], 1.5, LaunchRecord(0, NODES, RESERVE[:2]), ["restart", "restart", "report"]),
        ([OTHER], 1.5, LaunchRecord(0, (), ()), ["restart"] * 2),  # how many there are is not known
        ([OTHER], 1.3, LaunchRecord(0, NODES, RESERVE[:2]), ["restart", "report"]),  # not half-way to its own restart
    ],
)
def test_a_restart_leaves_out_what_is_half_way_to_its_own_as_far_as_there_are_reserves(
    others: list[DeviceId], slowdown: float, launch: LaunchRecord, actions: list[str]
) -> None:
    weighing, known = Restarts(RestartCost(222.0)), grounds({ONE: 2.0, **dict.fromkeys(others, slowdown)})
    weighing.begin(launch)
    found = weighing.weigh([verdict(*ONE, 2.0), *(verdict(*each, slowdown) for each in others)], known, DEVICES, 100.0)
    assert [each.action for each in found] == actions


@pytest.mark.parametrize(("now_s", "why"), [(100.0, Reason("too little time left", (0.0,))), (100.1, None)])
def test_a_job_that_goes_on_after_its_end_has_no_known_end(now_s: float, why: Reason | None) -> None:
    weighing = Restarts()
    weighing.begin(LaunchRecord(0, NODES, RESERVE, ends_s=100.0))
    [found] = weighing.weigh([verdict(*ONE)], grounds({ONE: 1.5}, since_s=99.0), DEVICES, now_s)
    assert found.evidence.weighed is not None
    assert found.evidence.weighed.why == why


@pytest.mark.parametrize(
    ("given", "in_s"), [(RestartCost(200.0), (0.225 * 200 - 20) / 0.2), (None, (0.45 * 660 - 20) / 0.2)]
)
def test_a_device_that_is_slow_at_times_must_lose_more_while_the_work_that_would_be_lost_is_only_assumed(
    given: RestartCost | None, in_s: float
) -> None:
    weighing = Restarts(given)
    weighing.begin(LaunchRecord(0, NODES, RESERVE))
    [found] = weighing.weigh([verdict(*ONE, share=0.3)], grounds({ONE: 1.25}), DEVICES, 100.0)
    assert found.evidence.weighed is not None
    assert found.evidence.weighed.in_s == pytest.approx(in_s)

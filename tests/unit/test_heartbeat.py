"""A clock that does not count the time in which this process was not scheduled."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from laggard.kvstore.control import NodeRecord
from laggard.resilience.agent.awake import LONGEST_TICK_S, AwakeClock, Deadline
from laggard.resilience.allocation import Allocation
from laggard.resilience.allocation.base import AgentProcess
from laggard.resilience.decision import wording
from laggard.resilience.nodes.cluster import N_SILENT, Cluster, NodeFiles
from laggard.resilience.nodes.node import Node
from laggard.resilience.wire import decode
from laggard.resilience.wire.node import SetUp


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def counted_s(*ticks_s: float) -> float:
    clock = Clock()
    clock_awake = AwakeClock(clock)
    for elapsed_s in ticks_s:
        clock.now_s += elapsed_s
        clock_awake.tick()
    return round(clock_awake.now_s(), 6)


def test_a_process_that_is_awake_counts_every_second() -> None:
    assert counted_s(*[0.2] * 50) == 10


def test_a_process_that_is_scheduled_a_little_late_counts_every_second_too() -> None:
    assert counted_s(*[0.45] * 10) == 4.5


def test_the_time_in_which_it_was_stopped_is_not_counted() -> None:
    assert counted_s(0.2, 3600, 0.2) == 0.4 + LONGEST_TICK_S


def test_it_counts_in_a_thread_until_it_is_stopped() -> None:
    clock_awake = AwakeClock()
    clock_awake.start()
    while clock_awake.now_s() == 0:
        pass
    clock_awake.stop()


@pytest.mark.parametrize(("timeout_s", "lost"), [(None, ["n2"]), (3.6, ["n2"]), (5.0, [])])
def test_a_node_is_lost_when_it_was_silent_for_longer_than_it_may_be(timeout_s: float | None, lost: list[str]) -> None:
    records = [NodeRecord(host, "127.0.0.1", ()) for host in ("n1", "n2")]
    allocation = cast("Allocation", SimpleNamespace(nodes=records))
    cluster = Cluster(allocation, Path(), NodeFiles({}, {}), threading.Condition())
    if timeout_s is not None:
        cluster.heartbeat_timeout_s = timeout_s
    cluster._awake_clock._awake_s = 10.0
    for record, last_heard_s in zip(records, (9.0, 6.0), strict=True):
        agent = SimpleNamespace(gone=False, has_started=True, last_heard_s=last_heard_s)
        ray, tasks = SimpleNamespace(state="down"), SimpleNamespace(stuck="")
        node = SimpleNamespace(record=record, told_to_end=False, agent=agent, ray=ray, tasks=tasks)
        cluster.nodes[record.hostname] = cast("Node", node)
    assert cluster.lost() == lost
    assert wording.why_lost(cluster.why_lost("n2")) == "no heartbeat for 4.0 s"


@pytest.mark.parametrize(("n_late", "lost"), [(N_SILENT, ["n0"]), (N_SILENT + 1, [])])
def test_no_node_is_lost_while_very_many_agents_dial_again_and_the_last_of_them_still_wait(
    n_late: int, lost: list[str]
) -> None:
    records = [NodeRecord(f"n{number}", "127.0.0.1", ()) for number in range(2 * N_SILENT)]
    cluster = Cluster(
        cast("Allocation", SimpleNamespace(nodes=records)), Path(), NodeFiles({}, {}), threading.Condition()
    )
    agents = [SimpleNamespace(gone=False, has_started=True, last_heard_s=20.0) for _ in records]
    for record, agent in zip(records, agents, strict=True):
        node = SimpleNamespace(record=record, told_to_end=False, agent=agent, tasks=SimpleNamespace(stuck=""))
        cluster.nodes[record.hostname] = cast("Node", node)

    def lost_at(now_s: float) -> list[str]:
        cluster._awake_clock._awake_s = now_s
        return cluster.lost()

    for agent in agents[1:n_late]:
        agent.last_heard_s = 20.0 - cluster._timing.replace_s - 0.1
    agents[0].last_heard_s = 20.0 - cluster.heartbeat_timeout_s - 0.1
    assert lost_at(20.0) == lost
    for agent in agents[1:]:
        agent.last_heard_s = 22.0
    assert lost_at(22.0) == lost, "the last one may still wait for its turn"
    assert lost_at(20.2 + cluster.heartbeat_timeout_s) == ["n0"]


def test_in_a_large_job_the_agents_are_told_to_send_fewer_heartbeats_and_may_be_silent_for_longer() -> None:
    records = [NodeRecord(f"n{number}", "127.0.0.1", ()) for number in range(1000)]
    allocation = cast("Allocation", SimpleNamespace(nodes=records, environment=lambda *_: {}))
    cluster = Cluster(allocation, Path(), NodeFiles({}, {}), threading.Condition())
    written = io.BytesIO()
    agent = SimpleNamespace(write=written.write, read=lambda *_: None)
    cluster.connect(records[0], cast("AgentProcess", agent))
    assert decode(written.getvalue().splitlines()[0], SetUp).n_nodes == 1000
    assert cluster.heartbeat_timeout_s == 5.0


def test_a_deadline_is_over_when_its_time_is() -> None:
    clock = Clock()
    deadline = Deadline(1.0, clock)
    left_s = []
    for _ in range(5):
        clock.now_s += 0.25
        left_s.append(deadline.left_s())
    assert left_s == [0.75, 0.5, 0.25, 0.0, -0.25]


def test_a_process_that_was_stopped_has_time_for_another_look_before_its_deadline_is_over() -> None:
    clock = Clock()
    deadline = Deadline(8.0, clock)
    clock.now_s += 3600
    assert deadline.left_s() == 7.5
    deadline = Deadline(0.2, clock)
    clock.now_s += 3600
    assert deadline.left_s() == LONGEST_TICK_S
    clock.now_s += LONGEST_TICK_S
    assert deadline.left_s() == 0

"""A machine that is too busy for a while loses no node, and many nodes need no limit raised by hand."""

from __future__ import annotations

import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from laggard.resilience.agent.awake import AwakeClock
from laggard.resilience.allocation import LocalAllocation
from laggard.resilience.decision.roster import Roster
from laggard.resilience.nodes.cluster import Cluster, NodeFiles
from tests.integration.jobs import RunningJob
from tests.waiting import wait_until

Start = Callable[..., RunningJob]


@pytest.mark.parametrize("n_nodes", [1, 2])
def test_the_only_node_may_be_silent_while_its_agent_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_nodes: int
) -> None:
    allocation = LocalAllocation(n_nodes, 1)
    hosts = [node.hostname for node in allocation.nodes]
    cluster = Cluster(allocation, tmp_path / "nodes", NodeFiles({}, {}), threading.Condition())
    cluster.start(Roster(tuple(hosts)))
    wait_until(lambda: all(node.agent.has_started for node in cluster.nodes.values()))
    for node in cluster.nodes.values():
        psutil.Process(node.agent.pid).send_signal(signal.SIGSTOP)
    now_s = cluster._awake_clock.now_s()
    monkeypatch.setattr(AwakeClock, "now_s", lambda _: now_s + 1000)
    wait_until(lambda: cluster.lost() == ([] if n_nodes == 1 else hosts))
    for node in cluster.nodes.values():
        psutil.Process(node.agent.pid).kill()
    wait_until(lambda: cluster.lost() == hosts)
    cluster.stop()


def test_a_job_may_open_as_many_files_as_its_nodes_need(start_job: Start) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        job = start_job("--local-nodes=3", "--per-node", "sh", "-c", "echo began; sleep 1000")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    job.wait_for("began")
    may_open, _ = psutil.Process(job.process.pid).rlimit(psutil.RLIMIT_NOFILE)
    assert may_open >= min(hard, 512)

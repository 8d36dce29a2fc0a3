"""How long an agent may be silent, in jobs of any size."""

from __future__ import annotations

import pytest

from laggard.resilience.nodes.cluster import N_SILENT
from laggard.resilience.wire.heartbeat_timing import HeartbeatTiming


@pytest.mark.parametrize(
    ("n_nodes", "interval_s", "timeout_s"), [(1, 0.5, 3.5), (250, 0.5, 3.5), (1000, 1.0, 5.0), (10_000, 2.0, 8.0)]
)
def test_in_a_large_job_heartbeats_are_rarer_and_silence_is_judged_later(
    n_nodes: int, interval_s: float, timeout_s: float
) -> None:
    timing = HeartbeatTiming(n_nodes)
    assert (timing.interval_s, timing.timeout_s) == (interval_s, timeout_s)


SIZES = pytest.mark.parametrize("n_nodes", [1, 250, 500, 1000, 3000, 10_000, 100_000])


@SIZES
def test_a_connection_that_is_held_up_is_replaced_before_the_node_is_lost(n_nodes: int) -> None:
    timing = HeartbeatTiming(n_nodes)
    assert timing.replace_s > 3 * timing.interval_s, "a connection is not replaced because one heartbeat was late"
    assert timing.replace_s + 1.0 < timing.timeout_s < timing.longest_s < timing.lease_s


# What the controller takes for each agent that dials on a core of its own, and on one that it shares with another.
@SIZES
@pytest.mark.parametrize("dials_s", [0.0015, 0.003])
def test_no_agent_is_taken_for_lost_nor_gives_up_because_all_of_a_job_dial_at_once(
    n_nodes: int, dials_s: float
) -> None:
    timing = HeartbeatTiming(n_nodes)
    last_s = n_nodes * dials_s
    silent_s = timing.replace_s + last_s + timing.interval_s  # the connection was noticed to be of no use before
    assert last_s < timing.answer_s, "it would lose its turn"
    assert last_s + timing.interval_s < timing.first_heartbeat_s
    assert silent_s < timing.lease_s
    assert silent_s < (timing.longest_s if n_nodes > N_SILENT else timing.timeout_s)

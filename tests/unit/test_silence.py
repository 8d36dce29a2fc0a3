"""A silent agent's node is lost only if its count in the state server stands still, too."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from laggard.kvstore.errors import EndpointFileError
from laggard.resilience.agent.out_of_band import INTERVAL_S, OutOfBandHeartbeat
from laggard.resilience.decision.heartbeat_timing import LONGEST_S, HeartbeatTiming
from laggard.resilience.decision.silence import CONFIRMED_S, Silence, is_lost
from laggard.resilience.nodes.out_of_band import N_SILENT, Count, seen, seen_of_all


@pytest.mark.parametrize(
    ("silent_s", "unchanged_s", "lost"),
    [
        (0.4, None, False),
        (3.5, None, False),
        (3.5, 3.5, False),
        (3.6, CONFIRMED_S, True),
        (3.6, 2.0, True),
        (3.6, 0.5, False),  # it raises its count
        (20.0, 0.0, False),
        (20.0, None, False),  # the state server does not answer: nothing is confirmed
        (LONGEST_S, None, False),
        (LONGEST_S + 0.1, None, True),
        (LONGEST_S + 0.1, 0.0, True),  # it is there, but cannot be told anything
    ],
)
def test_a_silent_node_is_lost_once_the_out_of_band_heartbeat_confirms_it_or_after_a_while(
    silent_s: float, unchanged_s: float | None, lost: bool
) -> None:
    assert is_lost(Silence(silent_s, unchanged_s), 3.5, LONGEST_S) is lost


def test_a_longer_limit_for_silence_is_kept() -> None:
    assert not is_lost(Silence(LONGEST_S + 1, CONFIRMED_S), LONGEST_S + 2, LONGEST_S)
    assert is_lost(Silence(LONGEST_S + 3, None), LONGEST_S + 2, LONGEST_S)


def test_a_count_stands_still_from_when_its_value_was_first_read_to_when_it_was_last_read() -> None:
    count = seen(None, None, 1.0)
    assert count == Count(None, 1.0, 1.0)
    count = seen(seen(count, None, 1.5), None, 2.0)
    assert count == Count(None, 1.0, 2.0)
    assert seen(count, b"1", 2.5) == Count(b"1", 2.5, 2.5)


def test_no_count_stands_still_while_very_many_agents_are_silent_at_once() -> None:
    """All of a large job dial again: neither the controller nor the state server has time for each at once."""
    few: dict[str, Count | None] = {f"n{number}": None for number in range(N_SILENT)}
    many = {**few, "one more": None}
    for now_s in (1.0, 2.0, 3.0):
        few, many = seen_of_all(few, {b"n1": b"7"}, now_s), seen_of_all(many, {b"n1": b"7"}, now_s)
    assert few == {host: Count(b"7" if host == "n1" else None, 1.0, 3.0) for host in few}
    assert many == {host: Count(b"7" if host == "n1" else None, 3.0, 3.0) for host in many}
    assert seen_of_all({"n0": many["n0"]}, {}, 4.0) == {"n0": Count(None, 3.0, 4.0)}, "counted from then on"


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
def test_what_a_frozen_agent_does_not_do_is_known_before_its_silence_is_too_long(n_nodes: int) -> None:
    timing = HeartbeatTiming(n_nodes)
    assert timing.unheard_s + INTERVAL_S < timing.look_after_s + CONFIRMED_S < timing.timeout_s < timing.longest_s
    assert CONFIRMED_S > 2 * INTERVAL_S
    assert timing.unheard_s > 2 * timing.interval_s
    assert timing.replace_s > 3 * timing.interval_s, "a connection is not replaced because one heartbeat was late"
    assert timing.longest_s < timing.lease_s


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
    assert not is_lost(Silence(silent_s, 0.0), timing.timeout_s, timing.longest_s), "its count says that it is there"


def test_an_agent_that_ends_while_the_out_of_band_heartbeat_is_loading_has_no_folder_any_more(tmp_path: Path) -> None:
    OutOfBandHeartbeat(lambda: None)._run(tmp_path / "ended/endpoint.json", "node1", HeartbeatTiming())
    damaged = tmp_path / "endpoint.json"
    damaged.write_text("{")
    damaged.chmod(0o600)
    with pytest.raises(EndpointFileError):
        OutOfBandHeartbeat(lambda: None)._run(damaged, "node1", HeartbeatTiming())


def test_an_agent_that_ends_while_the_out_of_band_heartbeat_is_loading_prints_no_traceback() -> None:
    """Python refuses to load a library with threads once its main thread has ended."""
    late = """
        import threading
        from pathlib import Path
        from laggard.resilience.agent.out_of_band import OutOfBandHeartbeat
        from laggard.resilience.decision.heartbeat_timing import HeartbeatTiming

        def begin():
            threading.main_thread().join()
            OutOfBandHeartbeat(lambda: None)._run(Path("/nowhere"), "node1", HeartbeatTiming())

        threading.Thread(target=begin).start()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(late)], capture_output=True, text=True, check=True)
    assert done.stderr == ""

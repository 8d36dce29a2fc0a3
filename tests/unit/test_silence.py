"""A silent agent's node is lost only if its count in the state server stands still, too."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from laggard.resilience.agent.dialling import SILENT_S
from laggard.resilience.agent.handshake import LEASE_S
from laggard.resilience.agent.second_path import INTERVAL_S
from laggard.resilience.decision.pace import Pace
from laggard.resilience.decision.silence import CONFIRMED_S, LONGEST_S, Silence, is_lost
from laggard.resilience.nodes.second_path import Count, seen


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
def test_a_silent_node_is_lost_once_the_second_path_confirms_it_or_after_a_while(
    silent_s: float, unchanged_s: float | None, lost: bool
) -> None:
    assert is_lost(Silence(silent_s, unchanged_s), 3.5) is lost


def test_a_longer_limit_for_silence_is_kept() -> None:
    assert not is_lost(Silence(LONGEST_S + 1, CONFIRMED_S), LONGEST_S + 2)
    assert is_lost(Silence(LONGEST_S + 3, None), LONGEST_S + 2)


def test_a_count_stands_still_from_when_its_value_was_first_read_to_when_it_was_last_read() -> None:
    count = seen(None, None, 1.0)
    assert count == Count(None, 1.0, 1.0)
    count = seen(seen(count, None, 1.5), None, 2.0)
    assert count == Count(None, 1.0, 2.0)
    assert seen(count, b"1", 2.5) == Count(b"1", 2.5, 2.5)


@pytest.mark.parametrize(
    ("n_nodes", "interval_s", "timeout_s"), [(1, 0.5, 3.5), (250, 0.5, 3.5), (1000, 1.0, 5.0), (10_000, 2.0, 8.0)]
)
def test_in_a_large_job_heartbeats_are_rarer_and_silence_is_judged_later(
    n_nodes: int, interval_s: float, timeout_s: float
) -> None:
    pace = Pace.of_job(n_nodes)
    assert (pace.interval_s, pace.timeout_s) == (interval_s, timeout_s)


@pytest.mark.parametrize("n_nodes", [1, 500, 1000, 3000, 100_000])
def test_what_a_frozen_agent_does_not_do_is_known_before_its_silence_is_too_long(n_nodes: int) -> None:
    pace = Pace.of_job(n_nodes)
    assert pace.unheard_s + INTERVAL_S < pace.look_after_s + CONFIRMED_S < pace.timeout_s < LONGEST_S
    assert CONFIRMED_S > 2 * INTERVAL_S
    assert pace.unheard_s > 2 * pace.interval_s
    assert 2 * pace.interval_s < SILENT_S, "a connection is not replaced because one heartbeat was late"
    assert LONGEST_S < LEASE_S


def test_an_agent_that_ends_while_the_second_path_is_loading_prints_no_traceback() -> None:
    """Python refuses to load a library with threads once its main thread has ended."""
    late = """
        import threading
        from pathlib import Path
        from laggard.resilience.agent.second_path import SecondPath

        def begin():
            threading.main_thread().join()
            SecondPath(lambda: None)._run(Path("/nowhere"), "node1", 0.0)

        threading.Thread(target=begin).start()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(late)], capture_output=True, text=True, check=True)
    assert done.stderr == ""

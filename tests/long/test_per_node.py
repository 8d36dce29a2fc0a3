"""More of what may happen to a copy on every node; the first of it is in tests/integration/test_per_node.py."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.integration.test_per_node import PER_NODE, Start, assert_nothing_is_left, counting


def test_a_lost_agent_of_the_primary_is_replaced(start_job: Start) -> None:
    job = counting(start_job)
    agent = job.process_of("node1", "program.py").parent()
    assert agent is not None
    agent.kill()
    assert job.finish() == 0, job.everything()
    assert "[node1] launch 1 rank 0 of 2 on node1\n" in job.output
    assert "[node2] launch 1 rank 1 of 2 on node2\n" in job.output
    assert_nothing_is_left(job)


def test_a_copy_killed_by_a_signal_causes_a_relaunch_of_all_on_the_same_nodes(start_job: Start) -> None:
    job = counting(start_job)
    job.process_of("node2", "program.py").kill()
    assert job.finish() == 0, job.everything()
    assert re.search("the copy on node2 was killed by SIGKILL after .*; strike 1 for node2", job.account)
    assert "[node1] launch 1 rank 0 of 2 on node1\n" in job.output
    assert "[node2] launch 1 rank 1 of 2 on node2\n" in job.output
    assert_nothing_is_left(job)


def test_the_first_failure_wins_and_the_others_get_their_grace(start_job: Start, tmp_path: Path) -> None:
    program = """
        import os, signal, sys
        from laggard.kvstore import State

        if os.environ["NODE_RANK"] == "1":
            open("ready").readline()
            sys.exit(7)

        def save(*_):
            State.current()["saved"] = True
            print("saved")
            sys.exit(5)

        signal.signal(signal.SIGTERM, save)
        open("ready", "w").close()
        signal.pause()
    """
    os.mkfifo(tmp_path / "ready")
    job = start_job(*PER_NODE, "--on-failure=end", program=program, directory=tmp_path)
    assert job.finish() == 7, job.everything()
    assert job.output == "[node1] saved\n"
    assert "the copy on node2 exited with 7 after" in job.account
    assert_nothing_is_left(job)


@pytest.mark.parametrize(("signum", "grace_s"), [(signal.SIGUSR1, 30), (signal.SIGTERM, 5)])
def test_a_warning_gives_the_program_its_whole_grace_and_an_order_to_end_a_part(
    start_job: Start, signum: signal.Signals, grace_s: int
) -> None:
    job = counting(start_job, "--grace=30")
    job.process.send_signal(signum)
    assert job.finish() == 128 + signum, job.everything()
    assert f"stopped by {signum.name}: ending everything" in job.account
    assert f"s into its {grace_s} s grace period" in job.account
    assert_nothing_is_left(job)

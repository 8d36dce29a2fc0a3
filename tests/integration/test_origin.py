"""Who was first among ranks that are connected by plain sockets. Real processes on virtual nodes."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.integration.jobs import RunningJob
from tests.integration.ring import HANGS, run_hanging_ring, run_ring

Start = Callable[..., RunningJob]


# All pairs, on busy processors, are in tests/long/test_origin.py.
@pytest.mark.parametrize(("fault", "peers"), [("segfault", "raise"), ("silence", "quiet"), ("exception", "print")])
def test_the_rank_that_failed_is_named_and_none_that_lost_its_peer(start_job: Start, fault: str, peers: str) -> None:
    run_ring(start_job, fault, peers)


@pytest.mark.parametrize("fault", HANGS)
def test_the_rank_that_the_others_wait_for_at_their_sockets_is_named(start_job: Start, fault: str) -> None:
    run_hanging_ring(start_job, fault)


def test_the_others_that_have_ended_are_named_in_the_same_sentence(start_job: Start) -> None:
    program = """
        import os, signal, time

        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.3)
        raise ConnectionResetError(104, "Connection reset by peer")
    """
    job = start_job("--local-nodes=1", "--virtual-gpus=2", "--per-device", "--preload=none", program=program)
    assert job.finish() == 137, job.everything()
    job.wait_for(r"rank 1 on node1 was killed by SIGKILL after [\d.]+ s; also ended: rank 0 on node1 \(lost its peer\)")


def test_a_signal_that_comes_when_the_program_has_ended_well_does_not_change_the_exit_code(start_job: Start) -> None:
    job = start_job("--local-nodes=1", "--per-node", "--report", "--report-dir=.", program="")
    job.wait_for(r"end +the program ended with exit code 0")
    job.process.send_signal(signal.SIGTERM)
    assert job.finish() == 0, job.everything()
    job.wait_for(r"report +\S+/report\.html")

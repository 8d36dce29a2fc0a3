"""A rank that raises an error and does not end."""

from __future__ import annotations

import re

from tests.integration.test_per_device import COUNT, PER_DEVICE, Start
from tests.processes import command_lines

RAISES_AND_STAYS = """
    import signal, threading
    from laggard import Job, State

    job, state = Job.current(), State.current()
    if job.restarted:
        raise SystemExit(0)
    if __import__("os").environ["RANK"] == "3":
        threading.Thread(target=threading.Event().wait).start()  # an upload that never ends
        raise KeyError("labels")
    signal.pause()
"""


def test_a_rank_that_raises_and_does_not_end_has_failed_of_its_error_and_costs_its_node_nothing(
    start_job: Start,
) -> None:
    job = start_job(*PER_DEVICE, "--hang-timeout=15", program=RAISES_AND_STAYS)
    assert job.finish() == 0, job.everything()
    assert re.search(
        r"relaunch +rank 3 on node2 raised an error and has hung for .* since: KeyError: 'labels' "
        r"\(program: an error in its code\); on the same nodes",
        job.account,
    ), job.everything()
    assert command_lines(job.processes()) == []


def test_a_rank_that_is_killed_is_named_and_all_are_relaunched(start_job: Start) -> None:
    job = start_job(*PER_DEVICE, program=COUNT.replace("HOW", "'waits'"))
    for rank in range(4):
        found = job.wait_for(rf"launch 0 rank {rank} pid (\d+) from 0")
        if rank == 3:
            pid = int(found.group(1))
    next(process for process in job.processes() if process.pid == pid).kill()
    assert job.finish() == 0, job.everything()
    assert re.search("rank 3 on node2 was killed by SIGKILL after .*; ", job.account)
    assert len(re.findall(r"launch 1 rank \d pid \d+ from", job.output)) == 4
    assert command_lines(job.processes()) == []

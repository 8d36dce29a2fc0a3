"""Who is to blame is found by experiment: the real command, which understands no word of what programs print."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable

import pytest

from laggard.system.ports import port_for_later
from tests.integration.jobs import RunningJob
from tests.integration.test_outages import LOCAL, assert_it_went_on

Start = Callable[..., RunningJob]

WORDLESS = """
import sys
from laggard.resilience.reading import signatures

signatures._COMPILED = ()
from laggard.__main__ import main

sys.exit(main())
"""
COMMAND = ("-c", WORDLESS)
FOUR_NODES = ("--local-nodes=4", "--resilient", "--exhaust-resources", "--backoff=0")
STEPS = """
    import os
    import signal
    import time

    from laggard import Job

    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    job = Job.current()
    rank = int(os.environ.get("RANK", os.environ["NODE_RANK"]))
    if rank == 0:
        job.progress(job.launch + 1)
"""
BAD_NODE = """
    if os.environ["LAGGARD_NODE"] == "node3":
        time.sleep(1.0)  # a step is sent within a quarter of a second
        os._exit(5)
    if any(node.hostname == "node3" for node in job.nodes):
        signal.pause()
"""
BAD_RANK = """
    job.progress(7)
    if rank == 1:
        raise RuntimeError("odd")
    signal.pause()
"""


@pytest.mark.parametrize("ranks", [("--per-node",), ("--per-device", "--virtual-gpus=2")])
def test_a_node_that_always_fails_is_left_out_and_no_other(start_job: Start, ranks: tuple[str, ...]) -> None:
    job = start_job(*FOUR_NODES, *ranks, program=STEPS + BAD_NODE, command=COMMAND)
    assert job.finish() == 0, job.everything()
    assert re.search(
        r"node3( gpu \d)?: \d+ failures followed it over \d+ placements, evidence \d+; .*without node3", job.account
    )
    assert re.search(r"\d+ launches, 1 node excluded \(node3\)", job.account), job.everything()


def test_a_rank_that_always_fails_ends_the_job_and_no_node_is_blamed(start_job: Start) -> None:
    job = start_job(*FOUR_NODES, "--per-node", program=STEPS.replace("job.launch + 1", "7") + BAD_RANK, command=COMMAND)
    assert job.finish() == 1, job.everything()
    assert re.search(r"the program: \d failures without progress, the last two at the same place", job.account)
    assert "0 nodes excluded" in job.account


def test_a_name_or_a_service_that_is_away_is_waited_for(start_job: Start) -> None:
    port = port_for_later()
    program = f"""
        import socket

        socket.create_connection(("{LOCAL}", {port}))
    """
    job = start_job("--local-nodes=2", "--resilient", "--per-node", program=program, command=COMMAND)
    job.wait_for(rf"waits for {LOCAL}:{port}, refused since")
    with socket.create_server((LOCAL, port)):
        assert_it_went_on(job, 3)

"""Who was first among ranks that are connected by plain sockets, while all processors are busy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.integration.jobs import RunningJob
from tests.integration.ring import FAULTS, PEERS, run_ring


@pytest.fixture(scope="module", autouse=True)
def _busy_processors() -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.parametrize("peers", PEERS)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_rank_that_failed_is_named_and_none_that_lost_its_peer(
    start_job: Callable[..., RunningJob], fault: str, peers: str
) -> None:
    run_ring(start_job, fault, peers)

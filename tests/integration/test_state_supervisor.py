"""The state server of a job is restarted, however often it is killed."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis

from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.errors import StateFullError
from laggard.kvstore.state.mapping import State
from laggard.resilience.controller.state_server_supervisor import StateSupervisor
from tests.processes import is_alive
from tests.waiting import wait_until

DEADLINE_S = 60.0
KILLS = 6


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[StateSupervisor]:
    with StateSupervisor(tmp_path / "state", job="test", host="127.0.0.1") as running:
        yield running


def servers() -> list[psutil.Process]:
    """Return the servers of this process, including those that are only starting."""
    return [child for child in psutil.Process().children() if is_alive(child)]


def test_a_server_that_is_killed_again_while_starting_is_restarted(keeper: StateSupervisor) -> None:
    with keeper.endpoint.connect() as client:
        begin_launch(client, keeper.endpoint, 0)
        state = State(client, keeper.endpoint, 0, retry_for_s=DEADLINE_S)
        state["kept"] = 1
        until_s = time.monotonic() + DEADLINE_S
        killed: set[int] = set()
        while len(killed) < KILLS:
            assert time.monotonic() < until_s, f"{len(killed)} servers were there to be killed"
            for server in servers():
                with contextlib.suppress(psutil.NoSuchProcess):
                    server.kill()
                    killed.add(server.pid)
        wait_until(lambda: keeper.pid not in killed, lambda: f"it did not come back: {keeper.failure}")
        assert state["kept"] == 1
        assert keeper.failure is None


def test_a_server_that_hangs_is_killed_and_restarted_with_everything_that_was_committed(
    keeper: StateSupervisor,
) -> None:
    with keeper.endpoint.connect() as client:
        begin_launch(client, keeper.endpoint, 0)
        state = State(client, keeper.endpoint, 0, retry_for_s=DEADLINE_S)
        state["kept"] = 1
        hung = psutil.Process(keeper.pid)
        hung.suspend()
        state["later"] = 2
        assert (state["kept"], state["later"]) == (1, 2)
        assert keeper.pid != hung.pid
        assert keeper.failure is None
        told = list(keeper.messages)
        assert [text.partition(" for ")[0] for text in told[:1]] == ["the server did not answer"]
        assert "was restarted with all of its log" in told[1]


def test_a_server_that_is_only_busy_is_left_alone(tmp_path: Path) -> None:
    """It answers that it is busy, for longer than a server that hangs is given."""
    with (
        StateSupervisor(tmp_path / "state", job="test", host="127.0.0.1", hang_timeout_s=0.5) as keeper,
        keeper.endpoint.connect(timeout_s=DEADLINE_S) as client,
    ):
        client.config_set("lua-time-limit", 10)
        pid = keeper.pid
        client.eval("local n = 0; while n < 2e8 do n = n + 1 end", 0)
        assert keeper.pid == pid
        assert not keeper.messages


def test_a_commit_waits_for_a_server_that_is_busy(keeper: StateSupervisor) -> None:
    with keeper.endpoint.connect() as client, keeper.endpoint.connect(timeout_s=DEADLINE_S) as other:
        begin_launch(client, keeper.endpoint, 0)
        state = State(client, keeper.endpoint, 0, retry_for_s=DEADLINE_S)
        client.config_set("lua-time-limit", 10)
        script = threading.Thread(target=other.eval, args=("local n = 0; while n < 1e8 do n = n + 1 end", 0))
        script.start()
        wait_until(lambda: is_busy(client))
        state["n"] = 1
        script.join(DEADLINE_S)
        assert state["n"] == 1


def test_a_server_that_the_kernel_kills_for_want_of_memory_is_restarted_once(tmp_path: Path) -> None:
    kills = [7]
    with StateSupervisor(tmp_path / "state", job="test", host="127.0.0.1", kills=lambda: kills[0]) as keeper:
        for _ in range(2):
            killed = keeper.pid
            kills[0] += 1  # as the kernel counts
            psutil.Process(killed).kill()
            wait_until(lambda: keeper.failure or (keeper.pid != killed and len(keeper.messages) == 2))  # noqa: B023
        assert keeper.messages[0] == "the kernel killed the server because memory ran out; it is restarted once"
        assert isinstance(keeper.failure, StateFullError)
        assert re.search(r"again because memory ran out\); .* give the primary node more memory$", str(keeper.failure))


def test_a_server_that_somebody_kills_is_not_taken_for_one_without_memory(keeper: StateSupervisor) -> None:
    for _ in range(2):
        killed = keeper.pid
        psutil.Process(killed).kill()
        wait_until(lambda: keeper.pid != killed)  # noqa: B023
    assert keeper.failure is None


def is_busy(client: redis.Redis) -> bool:
    try:
        client.ping()
    except redis.ResponseError as error:
        return str(error).startswith("BUSY")
    return False

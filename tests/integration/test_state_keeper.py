"""The state server of a job comes back, however often it is killed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kvstore.fence import begin_launch
from kvstore.state import State
from resilience.keeper import StateKeeper

DEADLINE_S = 60.0
KILLS = 6


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[StateKeeper]:
    with StateKeeper(tmp_path / "state", job="test", host="127.0.0.1", fsync="everysec") as running:
        yield running


def servers() -> list[psutil.Process]:
    """Return this process's servers, those that are only starting included."""
    return [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]


def test_a_server_that_is_killed_again_while_it_starts_is_started_again(keeper: StateKeeper) -> None:
    with keeper.endpoint.connect() as client:
        begin_launch(client, keeper.endpoint, 0)
        state = State(client, keeper.endpoint, 0, patience_s=DEADLINE_S)
        state["kept"] = 1
        keeper.flush_to_disk(DEADLINE_S)
        until_s = time.monotonic() + DEADLINE_S
        killed: set[int] = set()
        while len(killed) < KILLS:
            assert time.monotonic() < until_s, f"{len(killed)} servers were there to be killed"
            for server in servers():
                with contextlib.suppress(psutil.NoSuchProcess):
                    server.kill()
                    killed.add(server.pid)
        while keeper.pid in killed:  # until one is ready
            assert time.monotonic() < until_s, f"it did not come back: {keeper.failure}"
            time.sleep(0.02)
        assert state["kept"] == 1
        assert keeper.failure is None
        assert client.config_get("appendfsync") == {"appendfsync": "everysec"}

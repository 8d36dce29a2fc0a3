"""A server that takes long to load its log is waited for as long as it gets on."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import psutil
import pytest
import redis

from laggard.kvstore.client.fence import begin_launch
from laggard.kvstore.errors import ServerStartError
from laggard.kvstore.server.process import StateServer
from laggard.kvstore.server.program import choose_program
from laggard.kvstore.state.mapping import State
from tests.waiting import DEADLINE_S, wait_until

# The slow server looks after its connections once in 1024 commands, each of which takes 100 microseconds at least.
COMMANDS = 10_000
MANY_COMMANDS = 40_000
PATIENCE_S = 3.0  # less than the many take


@pytest.fixture
def full(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A directory whose log takes some seconds to load, with the slow server below."""
    with StateServer.start(tmp_path / "state", job="a") as server, server.endpoint.connect() as client:
        begin_launch(client, server.endpoint, 0)
        State(client, server.endpoint, 0)["kept"] = 1
        with client.pipeline(transaction=False) as pipe:
            for n in range(getattr(request, "param", COMMANDS)):
                pipe.set("n", n)
            pipe.execute()
    return tmp_path / "state"


@pytest.fixture
def slow(full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers to come are slow."""
    del full  # which was made by a fast one
    program = tmp_path / "slow-server"
    fast = choose_program(encrypt=False).path
    program.write_text(f'#!/bin/sh\nexec {fast} "$@" --key-load-delay 100\n')
    program.chmod(0o700)
    monkeypatch.setenv("LAGGARD_STATE_SERVER", str(program))


@pytest.mark.parametrize("full", [MANY_COMMANDS], indirect=True)
@pytest.mark.usefixtures("slow")
def test_loading_may_take_longer_than_the_deadline_if_it_gets_on_and_the_user_hears_of_it(
    full: Path,
) -> None:
    told: list[str] = []
    began_s = time.monotonic()
    with (
        StateServer.start(
            full, job="a", deadline_s=PATIENCE_S, on_loading=told.append, message_interval_s=0.5
        ) as server,
        server.endpoint.connect() as client,
    ):
        assert State(client, server.endpoint, 0)["kept"] == 1
    assert time.monotonic() - began_s > PATIENCE_S
    assert told
    assert all(
        re.fullmatch(r"the server is loading its log: \d+% of 0\.00 GB, about \d+ s left", text) for text in told
    )


@pytest.mark.usefixtures("slow")
def test_a_client_waits_for_a_server_that_loads_for_longer_than_the_client_retries(full: Path) -> None:
    servers: list[StateServer] = []
    first = StateServer.start(full, job="a", deadline_s=DEADLINE_S)
    first.stop()
    thread = threading.Thread(target=lambda: servers.append(first.start_again(DEADLINE_S)))
    thread.start()
    with first.endpoint.connect(timeout_s=DEADLINE_S) as client:
        wait_until(lambda: is_loading(client))
        state = State(client, first.endpoint, 0, retry_for_s=0.1)
        assert state["kept"] == 1
    thread.join(DEADLINE_S)
    servers[0].stop()


def is_loading(client: redis.Redis) -> bool:
    try:
        client.get("n")
    except redis.BusyLoadingError:
        return True
    except redis.ConnectionError:
        return False
    return False


@pytest.mark.parametrize("full", [MANY_COMMANDS], indirect=True)
@pytest.mark.usefixtures("slow")
def test_a_server_that_stops_while_it_loads_is_given_up(full: Path) -> None:
    outcome: list[BaseException | StateServer] = []

    def start() -> None:
        try:
            outcome.append(StateServer.start(full, job="a", deadline_s=1.0))
        except ServerStartError as error:
            outcome.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    wait_until(lambda: "Reading RDB base" in (full / "server.log").read_text().rpartition("Server initialized")[2])
    for child in psutil.Process().children():
        child.suspend()
    thread.join(DEADLINE_S)
    assert isinstance(outcome[0], ServerStartError)
    assert "got no further in its log" in str(outcome[0])

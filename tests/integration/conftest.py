"""Real servers for the tests that need one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from laggard.kvstore.connection import Endpoint
from laggard.kvstore.server import StateServer


@pytest.fixture(scope="module")
def state_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateServer]:
    with (
        StateServer.start(tmp_path_factory.mktemp("state"), job="test") as server,
        pytest.MonkeyPatch.context() as monkeypatch,
        contextlib.ExitStack() as open_clients,
    ):
        connect = Endpoint.connect

        def connect_until_the_end(endpoint: Endpoint, **options: Any) -> redis.Redis:
            client = connect(endpoint, **options)
            # A client that is garbage in a cycle may be collected after its sockets, which then warn: a failed test.
            open_clients.callback(client.close)
            return client

        monkeypatch.setattr(Endpoint, "connect", connect_until_the_end)
        yield server

"""Real servers for the tests that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from laggard.kvstore.server import StateServer


@pytest.fixture(scope="module")
def state_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateServer]:
    with StateServer.start(tmp_path_factory.mktemp("state"), job="test") as server:
        yield server

"""How the controller hears of requests."""

from __future__ import annotations

import json
import threading

import pytest

from laggard.kvstore.client.fence import begin_launch, current_launch
from laggard.kvstore.control import Control
from laggard.kvstore.errors import UnknownRequestError
from laggard.kvstore.server.process import StateServer
from laggard.resilience.controller.records import RequestReader
from tests.waiting import wait_until


@pytest.mark.parametrize(
    "entry",
    [
        {"dance": json.dumps({"launch": 0, "body": []})},
        {"reboot": "not JSON"},
        {"reboot": json.dumps({"body": []})},
        {"reboot": "{}", "notices": "{}"},
    ],
)
def test_a_request_that_cannot_be_read_ends_the_reading_with_its_reason(
    state_server: StateServer, entry: dict[str, str]
) -> None:
    endpoint = state_server.endpoint
    client = endpoint.connect()
    launch = (current_launch(client, endpoint) or 0) + 1
    begin_launch(client, endpoint, launch)
    control = Control(client, endpoint, launch)
    changed = threading.Condition()
    reader = RequestReader(endpoint, changed, control.last_request_id())
    control.ask("reboot", ["n2"])
    client.xadd(endpoint.key("requests"), entry)  # type: ignore[arg-type]
    wait_until(lambda: reader.failure)
    assert isinstance(reader.failure, UnknownRequestError)
    assert next(iter(entry)) in str(reader.failure)
    assert [request.body for request in reader.waiting] == [["n2"]]
    reader.stop()

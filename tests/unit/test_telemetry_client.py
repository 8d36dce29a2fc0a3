"""What AnalysisClient raises when there is no server to ask."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.errors import NotInJobError, StateUnavailableError
from laggard.telemetry import AnalysisClient
from laggard.telemetry.errors import NotConnectedError
from tests.local import in_job

CALLS: dict[str, Callable[[AnalysisClient], object]] = {
    "get_metrics": lambda client: client.get_metrics(),
    "get_data": lambda client: client.get_data("m"),
    "reboot": lambda client: client.reboot(),
    "db_dump": lambda client: client.db_dump(),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_call_before_connect_is_refused(call: str) -> None:
    with pytest.raises(NotConnectedError, match=r"call connect\(\) first"):
        CALLS[call](AnalysisClient())


def test_outside_a_job_there_is_nothing_to_connect_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAGGARD_ENDPOINT_FILE", raising=False)
    with pytest.raises(NotInJobError, match="LAGGARD_ENDPOINT_FILE is not set"):
        AnalysisClient().connect()


@pytest.fixture
def silent_server(tmp_path: Path) -> Iterator[Endpoint]:
    """The endpoint of a job whose state server does not run."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = Endpoint("127.0.0.1", probe.getsockname()[1], "job", "secret")
    with in_job(tmp_path, endpoint):
        yield endpoint


def test_a_server_that_is_down_is_named_with_its_address(silent_server: Endpoint) -> None:
    with pytest.raises(StateUnavailableError, match=silent_server.address) as refusal:
        AnalysisClient().connect()
    assert (refusal.value.host, refusal.value.port) == (silent_server.host, silent_server.port)


@pytest.mark.parametrize("call", ["get_metrics", "get_data", "db_dump"])
def test_a_server_that_goes_down_later_is_named_too(
    silent_server: Endpoint, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    client = AnalysisClient()
    monkeypatch.setattr("redis.Redis.ping", lambda _: True)
    client.connect()
    with pytest.raises(StateUnavailableError, match=silent_server.address):
        CALLS[call](client)

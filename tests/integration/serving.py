"""A telemetry server on a real node's store, for the tests that ask it."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laggard.kvstore.client.connection import Session
from laggard.kvstore.client.environment import ENDPOINT_FILE, JOB_BEGAN, LAUNCH, NODE, TELEMETRY_LEVEL, JobEnvironment
from laggard.kvstore.server.process import StateServer
from laggard.telemetry.node import NodeTelemetry
from laggard.telemetry.settings import TelemetrySettings

__all__ = ["DEADLINE_S", "SECOND_US", "Served", "free_port", "go_strict", "serve", "strict"]

DEADLINE_S = 30.0
WINDOW_S = 3600
SECOND_US = 1_000_000


@dataclass(frozen=True)
class Served:
    """A server, and the node whose store it answers from."""

    port: int
    token: str
    directory: Path
    node: NodeTelemetry

    def request(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None, method: str | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers by lower-case name, and body of an answer."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers or {}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:  # noqa: S310
                return answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, {k.lower(): v for k, v in error.headers.items()}, error.read()

    def json(self, path: str, body: Any = None) -> Any:
        """Return the body of an answer with status 200."""
        status, _, content = self.request(path, body)
        assert status == 200, content
        return strict(content)


def strict(content: bytes) -> Any:
    """Read JSON that must be strict."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(content, parse_constant=refuse)


def go_strict(content: bytes, *, arrays: bool = False) -> list[dict[str, Any]]:
    """Decode as Grafana's Go back end does: refuse whatever its typed decoder would refuse."""
    elements = strict(content)
    assert isinstance(elements, list)
    for element in elements:
        assert isinstance(element["metric"], str)
        assert isinstance(element["tags"], dict)
        assert isinstance(element["aggregateTags"], list)
        assert all(isinstance(part, str) for pair in element["tags"].items() for part in pair)
        assert all(isinstance(tag, str) for tag in element["aggregateTags"])
        if arrays:
            assert isinstance(element["dps"], list)
            points = [tuple(point) for point in element["dps"]]
            assert all(len(point) == 2 for point in points)
        else:
            assert isinstance(element["dps"], dict)
            points = [(int(key), value) for key, value in element["dps"].items()]
            assert list(element["dps"]) == sorted(element["dps"]), "Go sorts keys as text"
        for time_s, value in points:
            assert isinstance(time_s, int)
            assert abs(time_s - time.time()) < 1e7, "not in seconds"
            assert isinstance(value, int | float)
            assert not isinstance(value, bool)
        for note in element.get("globalAnnotations", []):
            assert isinstance(note["description"], str)
            assert isinstance(note["startTime"], int)
            assert note["startTime"] < 1e11
    return elements


def free_port() -> int:
    """Return a port that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serve(
    state_server: StateServer, directory: Path, *, port: int = 0, settings: str = "", has_node: bool = True
) -> Iterator[Served]:
    """Run one node's telemetry and the server; both end with the block. Without ``has_node`` the node is not there."""
    directory.chmod(0o700)
    endpoint = state_server.endpoint
    endpoint.save(directory / "endpoint.json")
    window = f"default_tmdb_window: {WINDOW_S}\n"
    (directory / "telemetry.yaml").write_text(f"{window}{settings}")
    variables = {ENDPOINT_FILE: str(directory / "endpoint.json"), LAUNCH: "0", NODE: "node1", TELEMETRY_LEVEL: "4"}
    variables[JOB_BEGAN] = str(time.time())
    with endpoint.connect() as client, contextlib.ExitStack() as stack:
        session = Session(JobEnvironment.current(variables), endpoint, client)
        node = NodeTelemetry(session, TelemetrySettings(default_tmdb_window=WINDOW_S))
        if has_node:
            stack.enter_context(node)
        server = stack.enter_context(server_process(variables, port))
        assert server.stdout is not None
        port = int(server.stdout.readline().rsplit(":", 1)[1])
        assert f"ssh command: ssh -NL localhost:{port}:localhost:{port}" in server.stdout.readline()
        token = (directory / "telemetry-token").read_text()
        yield Served(port, token, directory, node)


@contextlib.contextmanager
def server_process(variables: dict[str, str], port: int, *more: str) -> Iterator[subprocess.Popen[str]]:
    """Run the server; it ends with the block, by itself."""
    server = subprocess.Popen(
        [sys.executable, "-m", "laggard.telemetry.server", "--port", str(port), *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=variables,
        cwd=Path(__file__).parents[2],
        text=True,
    )
    assert server.stdout is not None
    assert server.stdin is not None
    yield server
    server.stdin.close()
    assert server.wait(DEADLINE_S) == 0
    server.stdout.close()

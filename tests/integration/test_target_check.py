"""Asking what a failure named, on real servers and files."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from laggard.resilience.agent import target_check
from laggard.resilience.agent.mounts import is_network_mount, network_mounts
from laggard.resilience.agent.target_check import no_answer
from laggard.resilience.reading.targets import NoAnswer, Target

LOCAL = "127.0.0.1"


@contextmanager
def http_server(*statuses: int) -> Iterator[int]:
    """Serve these statuses one after the other, and then the last for ever; yield the port."""
    left = list(statuses)

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(left.pop(0) if len(left) > 1 else left[0])
            self.end_headers()

        do_GET = do_HEAD  # noqa: N815 - the name that the server looks for

        def log_message(self, *_: object) -> None: ...

    with HTTPServer((LOCAL, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def url(port: int) -> Target:
    return Target("url", LOCAL, port, f"http://{LOCAL}:{port}/")


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_check, "CONNECT_S", 0.3)
    monkeypatch.setenv("no_proxy", LOCAL)


def test_a_port_that_refuses_does_not_answer_and_one_that_listens_does() -> None:
    with socket.create_server((LOCAL, 0)) as server:
        port = server.getsockname()[1]
        assert no_answer(Target("port", LOCAL, port)) is None
    assert no_answer(Target("port", LOCAL, port)) == NoAnswer("refused")
    assert no_answer(url(port)) == NoAnswer("refused")


def test_a_node_of_the_job_counts_as_answering_under_whatever_name() -> None:
    with socket.create_server((LOCAL, 0)) as server:
        port = server.getsockname()[1]
    assert no_answer(Target("port", "localhost", port), own=[LOCAL, "::1"]) is None


def test_a_server_that_accepts_and_says_nothing_does_not_answer_http() -> None:
    with socket.create_server((LOCAL, 0)) as server:
        assert no_answer(url(server.getsockname()[1])) == NoAnswer("timed out")


def test_a_server_that_hangs_up_does_not_answer() -> None:
    def hang_up(server: socket.socket) -> None:
        server.accept()[0].close()

    with socket.create_server((LOCAL, 0)) as server:
        thread = threading.Thread(target=hang_up, args=(server,))
        thread.start()
        assert no_answer(url(server.getsockname()[1])) == NoAnswer("closed")
        thread.join()


def test_busy_servers_do_not_answer_until_they_say_anything_else() -> None:
    with http_server(503, 429, 502, 504, 404) as port:
        assert [no_answer(url(port)) for _ in range(4)] == [NoAnswer("HTTP", each) for each in (503, 429, 502, 504)]
        assert no_answer(url(port)) is None
    with http_server(401) as port:
        assert no_answer(url(port)) is None


def test_a_server_that_does_not_know_head_is_asked_for_the_page() -> None:
    with http_server(405, 503) as port:
        assert no_answer(url(port)) == NoAnswer("HTTP", 503)


def test_names_are_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    assert no_answer(Target("name", "localhost")) is None
    assert no_answer(Target("port", "nothing.invalid", 80)) == NoAnswer("not resolved")

    def resolve(error: int, *_: object) -> list[object]:
        raise socket.gaierror(error, "")

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: resolve(socket.EAI_AGAIN))
    assert no_answer(Target("name")) == NoAnswer("not resolved")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: resolve(socket.EAI_NONAME))
    assert no_answer(Target("name")) is None  # the name server says that there is no such name


def test_a_file_below_an_empty_folder_is_missing_and_one_among_others_is_the_programs_matter(tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    file = Target("path", of=str(mount / "set" / "part-0"))
    mount.mkdir()
    assert no_answer(file) == NoAnswer("missing")
    (mount / "set").mkdir()
    (mount / "set" / "part-1").touch()
    assert no_answer(file) is None
    (mount / "set" / "part-0").write_text("x")
    assert no_answer(file) is None
    assert no_answer(Target("path", of=str(mount))) is None


def test_a_mount_that_is_away_leaves_a_folder_that_answers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = Target("mount", of=str(tmp_path))
    assert no_answer(mount) == NoAnswer("missing")
    monkeypatch.setattr(target_check, "network_mounts", lambda: [str(tmp_path)])
    assert no_answer(mount) is None


def test_mounts_of_the_network_are_known_without_touching_them(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
        "40 21 0:40 / /data\\040sets rw shared:2 - nfs4 server:/x rw\n"
        "41 21 0:41 / /data\\040sets/fast rw - lustre x@tcp:/y rw\n"
        "42 21 0:42 / /run rw - tmpfs tmpfs rw\n"
    )
    assert network_mounts(table) == ["/data sets/fast", "/data sets"]
    assert not is_network_mount("/proc/self")

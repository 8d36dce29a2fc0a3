"""A job whose program needs something that is away: it waits, goes on, and blames nobody. The real command."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from laggard.system.ports import port_for_later
from tests.integration.jobs import RunningJob
from tests.processes import command_lines
from tests.waiting import Gate

Start = Callable[..., RunningJob]

NODES = ("--local-nodes=2", "--nodes=2", "--resilient", "--per-node")
LOCAL = "127.0.0.1"


def assert_it_went_on(job: RunningJob, launches: int) -> None:
    assert job.finish() == 0, job.everything()
    assert len(re.findall(r"^\S+ outage +waits for ", job.account, re.MULTILINE)) == 1
    assert "answers again after" in job.account
    assert "followed it" not in job.account
    assert f"{launches} launches, 0 nodes excluded" in job.account


def test_a_service_that_refuses_is_waited_for(start_job: Start) -> None:
    port = port_for_later()
    program = f"""
        import asyncio

        async def connect():
            await asyncio.open_connection("{LOCAL}", {port})

        asyncio.run(connect())
    """
    job = start_job(*NODES, program=program)
    job.wait_for(rf"waits for {LOCAL}:{port}, refused since")
    with socket.create_server((LOCAL, port)):
        assert_it_went_on(job, 3)  # what is on the node itself is waited for from the second time on


def test_a_server_that_is_busy_is_waited_for(start_job: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", LOCAL)
    status = 503

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815 - the name that the server looks for

        def log_message(self, *_: object) -> None: ...

    with HTTPServer((LOCAL, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            program = f"""
                import urllib.error
                import urllib.request

                url = "http://{LOCAL}:{server.server_port}/model?token=abc"
                try:
                    urllib.request.urlopen(url)
                except urllib.error.HTTPError as error:
                    raise RuntimeError(f"{{error.code}} Server Error for url: {{url}}")
            """
            job = start_job(*NODES, program=program)
            job.wait_for(rf"waits for http://{LOCAL}:{server.server_port}/model, HTTP 503 since")
            status = 200
            assert_it_went_on(job, 3)
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def store(port: int, word: bytes) -> Iterator[None]:
    """Serve at a port: say a word to each that connects, and hang up at the end."""
    callers: list[socket.socket] = []

    def serve(server: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                callers.append(server.accept()[0])
                callers[-1].sendall(word)

    with socket.create_server((LOCAL, port)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for caller in callers:
                caller.close()


def test_what_a_launch_was_connected_to_is_waited_for_although_its_error_names_nothing(start_job: Start) -> None:
    port = port_for_later()
    program = f"""
        import socket

        where = ("127.0.0.1", {port})
        connection = socket.create_connection(where)
        while (word := connection.recv(1)) != b"x":
            if not word:
                raise ConnectionResetError("the store has hung up")
    """
    with store(port, b"-"):
        job = start_job(*NODES, "--verbose", program=program)
        job.wait_for(r"Connections\(found=\(Target")
    job.wait_for(rf"waits for {LOCAL}:{port}, refused since .* the store has hung up")
    with store(port, b"x"):
        assert_it_went_on(job, 2)


def test_a_mount_that_is_away_after_a_launch_had_passed_is_waited_for(start_job: Start, tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    program = f"""
        import pathlib
        from laggard import Job

        file = pathlib.Path({str(mount / "set" / "part-0")!r})
        job = Job.current()
        if not job.restarted:
            job.progress(10)
        file.read_text()
    """
    job = start_job("--local-nodes=1", "--resilient", "--per-node", program=program)
    job.wait_for(r"waits for .*/mount/set/part-0, missing since")
    (mount / "set").mkdir()
    (mount / "set" / "part-0").write_text("data")
    assert_it_went_on(job, 2)


NEEDS_WHAT_IS_NOWHERE = """
    raise OSError("cannot connect to host nothing.invalid:443")
"""


def test_a_wait_can_be_interrupted(start_job: Start) -> None:
    job = start_job(*NODES, program=NEEDS_WHAT_IS_NOWHERE)
    job.wait_for("waits for nothing.invalid:443, not resolved since")
    job.process.send_signal(signal.SIGINT)
    assert job.finish() == 130, job.everything()
    assert command_lines(job.processes()) == []


def test_a_job_is_given_up_when_nothing_answers_for_long(start_job: Start) -> None:
    job = start_job(*NODES, "--give-up-after=3", program=NEEDS_WHAT_IS_NOWHERE)
    assert job.finish() == 93, job.everything()
    assert "(--give-up-after): waits for nothing.invalid:443, not resolved since" in job.account


def test_a_node_that_is_lost_meanwhile_is_replaced_and_the_wait_goes_on(start_job: Start, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    program = f"""
        print("ready", flush=True)
        open({str(tmp_path / "gate")!r}).readline()
        raise OSError("cannot connect to host service.invalid:5432")
    """
    options = ("--local-nodes=3", "--nodes=2", "--resilient", "--per-node", "--give-up-after=15")
    job = start_job(*options, program=program)
    job.wait_for(r"\[node2\] ready")
    agent = job.process_of("node2", "program.py").parent()
    assert agent is not None
    gate.open()
    job.wait_for("outage +waits for service.invalid:5432")
    agent.kill()
    job.wait_for("waits +node2 is lost .*without node2; node3 comes in from the reserve")
    assert job.finish() == 93, job.everything()
    assert "1 launch, " in job.account

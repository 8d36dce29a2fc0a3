"""What another user of the same machine can do to a job: ``python -m tests.integration.other_user``, as root.

It loads what it needs, becomes another user for good, and tries. It reads what it is to try it on as JSON on standard
input, and writes what became of each attempt as JSON: ``refused``, or how far it got. With ``--as-owner`` it stays who
it is, which shows that the attempts work where they are allowed.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401 - else loaded when it is too late
import json
import os
import socket
import ssl
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import redis

from laggard.system.certificates import Authority

REFUSED = "refused"
NOBODY = 65534
TIMEOUT_S = 10.0
# How a client of gRPC begins, with an empty list of settings; a server answers with its own.
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


def main() -> None:
    job = json.load(sys.stdin)
    certified = _certified_by_itself()
    redis.Redis()  # loads what the first client needs: another user may not read it
    if "--as-owner" not in sys.argv:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    attempts = by_permission(job) if job["by"] == "permission" else by_secret(job, certified)
    json.dump({name: attempt() for name, attempt in attempts.items()}, sys.stdout)


def by_permission(job: dict[str, Any]) -> dict[str, Callable[[], str]]:
    """What the system allows only the owner to do."""
    pids = job["pids"]
    folders, files, sockets = job["folders"], job["files"], job["sockets"]

    def on_each(items: Iterable[Any], attempt: Callable[[Any], object]) -> Callable[[], str]:
        return lambda: _outcome(items, attempt, PermissionError)

    return {
        "list a folder": on_each(folders, lambda path: list(Path(path).iterdir())),
        "leave a file in a folder": on_each(folders, _leave_a_file),
        "read a file": on_each(files, lambda path: Path(path).open("rb").close()),
        "change a file": on_each(files, lambda path: Path(path).open("r+b").close()),
        "connect to a socket": on_each(sockets, _connect),
        "read a process's environment": on_each(pids, lambda pid: Path(f"/proc/{pid}/environ").read_bytes()),
        "read a process's memory": on_each(pids, lambda pid: Path(f"/proc/{pid}/mem").open("rb").close()),
        "see a process's open files": on_each(pids, lambda pid: list(Path(f"/proc/{pid}/fd").iterdir())),
        "signal a process": on_each(pids, lambda pid: os.kill(pid, 0)),
        "read what is in /dev/shm": on_each(job["shared_memory"], lambda path: Path(path).open("rb").close()),
    }


def by_secret(job: dict[str, Any], certified: ssl.SSLContext) -> dict[str, Callable[[], str]]:
    """What needs a password, a token or a certificate of the job."""
    host, port, key = job["state"]
    telemetry = f"http://127.0.0.1:{job['telemetry']}"
    sample = {"metric": "m", "timestamp": 1, "value": 1, "tags": {"host": "node1"}}
    wrong = {"Authorization": "Bearer " + 64 * "0"}

    def command(*words: str, password: str | None = None) -> Callable[[], str]:
        client = redis.Redis(host=host, port=port, password=password, socket_timeout=TIMEOUT_S)
        execute: Callable[..., object] = client.execute_command
        return lambda: _outcome([words], lambda each: execute(*each), redis.AuthenticationError)

    def post(url: str, body: Any, headers: dict[str, str]) -> Callable[[], str]:
        return lambda: _outcome([url], lambda each: _post(each, body, headers), UnauthorizedError)

    def call(context: ssl.SSLContext | None) -> Callable[[], str]:
        return lambda: _outcome(job["ray_ports"], lambda each: greet(each, context), RejectedError)

    return {
        "read State": command("HGETALL", key + ":state:index"),
        "read State with a guessed password": command("HGETALL", key + ":state:index", password="guessed"),
        "add a verdict": command("XADD", key + ":requests", "*", "verdicts", "{}"),
        "ask for a relaunch": command("XADD", key + ":requests", "*", "reboot", "{}"),
        "listen to the telemetry's answers": command("PSUBSCRIBE", "*"),
        "change the state server's settings": command("CONFIG", "SET", "appendonly", "no"),
        "end the state server": command("SHUTDOWN", "NOSAVE"),
        "put a sample": post(telemetry + "/api/put", sample, {}),
        "put a sample with a guessed token": post(telemetry + "/api/put", sample, wrong),
        "call Ray without TLS": call(None),
        "call Ray with TLS and no certificate": call(trusting_anybody()),
        "call Ray with a self-made certificate": call(certified),
        "have Ray's agent make an environment": lambda: _outcome(
            [f"http://{host}:{port}/get_or_create_runtime_env" for host, port in job["ray_http_ports"]],
            lambda url: _post(url, {}, {}),
            UnauthorizedError,
        ),
    }


class UnauthorizedError(Exception):
    """Answered with 401 or 403."""


class RejectedError(Exception):
    """The connection was closed before the server said anything."""


def _outcome(items: Iterable[Any], attempt: Callable[[Any], object], *refusals: type[BaseException]) -> str:
    """Return ``refused`` if every attempt was, for a given reason; otherwise the outcome of the first other one."""
    for item in items:
        try:
            attempt(item)
        except refusals:
            continue
        except Exception as error:  # noqa: BLE001 - whatever it is, it is no refusal
            return f"{item}: {error!r}"
        return f"got in: {item}"
    return REFUSED


def _leave_a_file(folder: str) -> None:
    with tempfile.TemporaryFile(dir=folder):
        pass


def _connect(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def _post(url: str, body: Any, headers: dict[str, str]) -> None:
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310
    try:
        urllib.request.urlopen(request, timeout=TIMEOUT_S).close()  # noqa: S310
    except urllib.error.HTTPError as error:
        with error:
            if error.code in {401, 403}:
                raise UnauthorizedError from error
            raise


def greet(address: tuple[str, int], context: ssl.SSLContext | None) -> None:
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection((address[0], address[1]), TIMEOUT_S))
        try:
            if context is not None:
                connection = stack.enter_context(context.wrap_socket(connection))
            connection.sendall(HTTP2_GREETING)
            answer = connection.recv(100)
        except (ssl.SSLError, ConnectionError) as error:
            raise RejectedError from error
    if not answer:
        raise RejectedError


def trusting_anybody() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


def _certified_by_itself() -> ssl.SSLContext:
    own, context = Authority().issue(), trusting_anybody()
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder, "certificate"), Path(folder, "key")
        names[0].write_text(own.certificate)
        names[1].write_text(own.key)
        context.load_cert_chain(*names)
    return context


if __name__ == "__main__":
    main()

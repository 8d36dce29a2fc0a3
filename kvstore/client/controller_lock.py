"""The lock that makes one controller at a time act for a job whose State is on a server that many can reach.

It is a hash in the server: the holder's ``id``, ``who`` that is in words, and when it was last there, by the server's
clock. A lock that nobody has renewed for the lease is free. It alone protects nothing: the launch number does, which
only the holder can raise (`begin_launch`), and with which the server checks every write of a controller and its ranks.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import cast

import redis

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.client.fence import lock_key
from laggard.kvstore.client.replicas import ReplicatedScript
from laggard.kvstore.client.retry import RetryPolicy
from laggard.kvstore.errors import StateHeldError

LEASE_S = 10.0
_POLL_S = 0.2  # whether who has the lock is still there

# A replica refuses PERSIST, which changes nothing here.
_NOW_LUA = """
redis.call('PERSIST', KEYS[1])
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
"""
# KEYS: the lock. ARGV: own id, who that is, lease in ms. A clock may also have been set back.
_TAKE_LUA = (
    _NOW_LUA
    + """
local id, who, seen = unpack(redis.call('HMGET', KEYS[1], 'id', 'who', 'seen_ms'))
if id and id ~= ARGV[1] and math.abs(now - seen) < tonumber(ARGV[3]) then return {id .. ' ' .. seen, who} end
redis.call('HSET', KEYS[1], 'id', ARGV[1], 'who', ARGV[2], 'seen_ms', now)
return {}
"""
)
# KEYS: the lock. ARGV: own id, 1 to give it back.
_RENEW_LUA = (
    _NOW_LUA
    + """
if redis.call('HGET', KEYS[1], 'id') ~= ARGV[1] then return 0 end
if ARGV[2] == '1' then redis.call('DEL', KEYS[1]) else redis.call('HSET', KEYS[1], 'seen_ms', now) end
return 1
"""
)


class ControllerLock:
    """One controller's side of the lock."""

    def __init__(self, client: redis.Redis, endpoint: Endpoint, who: str, lease_s: float = LEASE_S) -> None:
        self.id = secrets.token_hex(8)
        self._endpoint = endpoint
        self._who = who
        self._lease_s = lease_s
        self._keys = [lock_key(endpoint)]
        self._take = ReplicatedScript(client, endpoint, _TAKE_LUA)
        self._renew = client.register_script(_RENEW_LUA)

    def take(self, retry: RetryPolicy, on_wait: Callable[[str], None] = lambda _: None) -> None:
        """Take the lock, once its holder has not been there for the lease; an error if the holder lives."""
        first: bytes | None = None
        until_s = time.monotonic() + 3 * self._lease_s
        while held := retry.call(self._ask):
            seen, who = held
            # It was renewed, or another one was first.
            if (first is not None and seen != first) or time.monotonic() > until_s:
                raise StateHeldError(self._endpoint.job, self._endpoint.address, who.decode(errors="replace"))
            if first is None:
                on_wait(who.decode(errors="replace"))
            first = seen
            time.sleep(_POLL_S)

    def _ask(self) -> list[bytes]:
        return cast("list[bytes]", self._take(keys=self._keys, args=[self.id, self._who, int(self._lease_s * 1000)]))

    def renew(self) -> bool:
        """Say that this controller is still there; return whether it still has the lock."""
        return bool(self._renew(keys=self._keys, args=[self.id, 0]))

    def give_back(self) -> None:
        """Let the next controller begin at once."""
        self._renew(keys=self._keys, args=[self.id, 1])

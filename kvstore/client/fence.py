"""The launch number as a fencing token: a write counts only while its launch is the current one.

The number is stored in the server and only rises.  Every script that writes compares it with the caller's, in the same
atomic step as the write, so a process of an old launch cannot write after the check.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import redis

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.client.replicas import ReplicatedScript
from laggard.kvstore.errors import FencedError, LockLostError, StaleLaunchError

Argument = str | bytes | bytearray | memoryview | int | float
Command = tuple[str, str, *tuple[Argument, ...]]
"""Name of a command, its one key, then its other arguments."""

FENCE_LUA = """
-- A replica refuses any write, even one that changes nothing: what it lacks must not be taken for what is so.
local function on_primary(...) redis.call('PERSIST', KEYS[1]); return {...} end
local current = redis.call('GET', KEYS[1])
if current ~= ARGV[1] then return on_primary('fenced', current or '') end
"""
"""First lines of every script that writes: ``KEYS[1]`` is `launch_key`, ``ARGV[1]`` the caller's launch.

Where a script writes nothing, it returns what it has found by ``on_primary``.
"""

# KEYS: launch, the controllers' lock. ARGV: launch, the caller's id in the lock, or nothing where there is no lock; who
# holds it may repeat itself.
# PERSIST needs no memory, so a server that is full of State lets the script do the rest, too; a replica refuses it.
_BEGIN_LUA = """
redis.call('PERSIST', KEYS[1])
local current, wanted, id = tonumber(redis.call('GET', KEYS[1]) or '-1'), tonumber(ARGV[1]), ARGV[2]
if id ~= '' and redis.call('HGET', KEYS[2], 'id') ~= id then return 'lost' end
if wanted < current or (wanted == current and id == '') then return tostring(current) end
redis.call('SET', KEYS[1], ARGV[1])
return false
"""

# ARGV after the launch: for each command its name, the number of its arguments after the key, and those arguments.
EXECUTE_LUA = (
    FENCE_LUA
    + """
local replies, at = {'ok'}, 2
for i = 2, #KEYS do
    local count = tonumber(ARGV[at + 1])
    replies[i] = redis.call(ARGV[at], KEYS[i], unpack(ARGV, at + 2, at + 1 + count))
    at = at + 2 + count
end
return replies
"""
)


def launch_key(endpoint: Endpoint) -> str:
    """Return the key of the current launch number."""
    return endpoint.key("launch")


def current_launch(client: redis.Redis, endpoint: Endpoint) -> int | None:
    """Return the launch that may write, or None before the first one."""
    value = cast("bytes | None", client.get(launch_key(endpoint)))
    return None if value is None else int(value)


def lock_key(endpoint: Endpoint) -> str:
    """Return the key of the lock that one controller at a time has (:mod:`laggard.kvstore.client.controller_lock`)."""
    return endpoint.key("controller")


def begin_launch(client: redis.Redis, endpoint: Endpoint, launch: int, lock_id: str = "") -> None:
    """Make `launch` the current one; from now on every write of an earlier launch is refused.

    ``lock_id``: the caller's id in the controllers' lock, if the server has one.
    """
    if launch < 0:
        raise ValueError(f"launch {launch} is negative; launches are numbered from 0")
    begin = ReplicatedScript(client, endpoint, _BEGIN_LUA)
    current = cast("bytes | None", begin(keys=[launch_key(endpoint), lock_key(endpoint)], args=[launch, lock_id]))
    if current == b"lost":
        raise LockLostError(endpoint.job, endpoint.address)
    if current is not None:
        raise StaleLaunchError(launch, int(current))


def raise_if_fenced(reply: Sequence[object], launch: int) -> None:
    """Raise FencedError if a script that starts with `FENCE_LUA` was refused."""
    if reply[0] == b"fenced":
        current = cast(bytes, reply[1])
        raise FencedError(launch, int(current) if current else None)


# The launches that this process has belonged to, one after another: ranks may be replaced without a relaunch.
_own_launches = range(0)


def adopt_launch(before: int, launch: int) -> None:
    """Have whatever this process has made for launch ``before``, or an earlier one of its own, belong to ``launch``."""
    global _own_launches
    _own_launches = range(_own_launches.start if before in _own_launches else before, launch + 1)


def as_adopted(launch: int) -> int:
    """Return the launch that something which was made for a launch in this process belongs to now."""
    return _own_launches[-1] if launch in _own_launches else launch


class FencedWriter:
    """Plain commands (``XADD``, ``SET``, ``HSET``, ...) that are refused once a later launch has begun."""

    def __init__(self, client: redis.Redis, endpoint: Endpoint, launch: int) -> None:
        self._launch_key = launch_key(endpoint)
        self._launch = launch  # the caller's launch
        self._script = client.register_script(EXECUTE_LUA)

    def execute(self, commands: Sequence[Command]) -> list[object]:
        """Run commands on the server in one atomic step, and return their replies in order."""
        # Each command is a name, one key, and further arguments. A malformed command stops the rest, and those before
        # it are not undone: never pass a user's input as a command.
        keys, arguments = self.call(commands)
        reply = cast("list[object]", self._script(keys=keys, args=arguments))
        raise_if_fenced(reply, as_adopted(self._launch))
        return reply[1:]

    def call(self, commands: Sequence[Command]) -> tuple[list[str], list[Argument]]:
        """Return the keys and arguments with which `execute` calls its script."""
        keys: list[str] = [self._launch_key]
        arguments: list[Argument] = [as_adopted(self._launch)]
        for name, key, *rest in commands:
            keys.append(key)
            arguments += [name, len(rest), *rest]
        return keys, arguments

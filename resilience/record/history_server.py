"""What jobs have noted about a site's nodes, in the site's own Valkey or Redis: two keys for each week.

Nobody can tell who wrote to a key, so the server's access list takes the place of a folder's permissions: whoever may
write to the jobs' keys is believed, and whoever may write to the operators' keys is an operator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from laggard.kvstore.client.connection import Endpoint
from laggard.resilience.decision.roster import MEMORY_S
from laggard.resilience.record.node_history import Lines

MAX_BYTES = 4 << 20  # of a key; of a longer one the end is read
TIMEOUT_S = 2.0  # a job goes on without
_WEEK_S = 7 * 86_400
_WEEKS = int(MEMORY_S / _WEEK_S) + 1  # in which something can lie that counts

# KEYS: where to add. ARGV: the text, how long the key lives in s, most bytes to keep.
_ADD_LUA = """
local size = redis.call('APPEND', KEYS[1], ARGV[1])
if size > 2 * ARGV[3] then redis.call('SET', KEYS[1], redis.call('GETRANGE', KEYS[1], -ARGV[3], -1)) end
return redis.call('EXPIRE', KEYS[1], ARGV[2])
"""


class HistoryServer:
    """Reads the keys of the last weeks, and adds to this week's."""

    def __init__(self, endpoint: Endpoint, clock: Callable[[], float] = time.time) -> None:
        self._endpoint = endpoint
        self._clock = clock  # returns Unix time in seconds

    def read(self) -> Iterator[Lines]:
        """Yield the lines that count."""
        this_week = int(self._clock() // _WEEK_S)
        with self._endpoint.connect(timeout_s=TIMEOUT_S) as client:
            for by_operator in (False, True):
                for week in range(this_week - _WEEKS + 1, this_week + 1):
                    key = _key(week, by_operator=by_operator)
                    found = client.getrange(key, -MAX_BYTES, -1)
                    if len(found) == MAX_BYTES:  # it may begin within a line
                        found = found.partition(b"\n")[2]
                    yield Lines(found.decode(errors="replace"), key, by_operator)

    def add(self, name: str, text: str, *, by_operator: bool) -> None:  # noqa: ARG002 - which each line says
        """Add to the key of this week."""
        key = _key(int(self._clock() // _WEEK_S), by_operator=by_operator)
        with self._endpoint.connect(timeout_s=TIMEOUT_S) as client:
            client.eval(_ADD_LUA, 1, key, text, _WEEKS * _WEEK_S, MAX_BYTES)


def _key(week: int, *, by_operator: bool) -> str:
    # Without braces: no job's key begins like this.
    return f"laggard:nodes:{'operators' if by_operator else 'jobs'}:{week}"

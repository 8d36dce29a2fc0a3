"""The out-of-band heartbeat of an agent: a count in the state server, raised while nobody replies.

The controller reads it before it takes a silent node for lost (:mod:`laggard.resilience.decision.silence`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from laggard.resilience.decision.heartbeat_timing import HeartbeatTiming

_log = logging.getLogger("laggard.resilience.agent")

COUNTS = "agents"
"""The key of the counts, by host name."""

INTERVAL_S = 0.5
ANSWER_S = 1.0


class OutOfBandHeartbeat:
    """Raises this node's count in the state server, from a thread of its own."""

    def __init__(self, unheard_s: Callable[[], float | None]) -> None:
        # Returns for how many seconds the controller has not replied; None: the agent itself is stuck, so that nobody
        # is to take it for well
        self._unheard_s = unheard_s
        self._started = False

    def start(self, endpoint_file: Path, host: str, timing: HeartbeatTiming) -> None:
        """Begin, unless it has begun already."""
        if not self._started:
            self._started = True
            threading.Thread(
                target=self._run, args=(endpoint_file, host, timing), name="out-of-band", daemon=True
            ).start()

    def _run(self, endpoint_file: Path, host: str, timing: HeartbeatTiming) -> None:
        # Now, not when it is urgent: the libraries may be on a file system that is slow just then.
        try:
            import redis

            from laggard.kvstore.client.connection import Endpoint
            from laggard.kvstore.errors import EndpointFileError
        except RuntimeError:  # the agent is ending: Python no longer loads what works with threads
            return

        try:
            endpoint = Endpoint.load(endpoint_file)
        except EndpointFileError:
            if endpoint_file.exists():
                raise
            return  # the agent is ending: its folder is gone
        with endpoint.connect(timeout_s=ANSWER_S) as client:
            while True:
                time.sleep(INTERVAL_S)
                unheard_s = self._unheard_s()
                if unheard_s is None or not timing.unheard_s < unheard_s < timing.longest_s:
                    continue
                try:
                    client.hincrby(endpoint.key(COUNTS), host, 1)
                except redis.RedisError as error:
                    _log.debug("the state server does not take our count: %s", error)

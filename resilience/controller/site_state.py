"""State on a server of the site's, which we neither start nor stop, and which other controllers can reach."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable

import redis

from laggard.kvstore.client.connection import Endpoint
from laggard.kvstore.client.controller_lock import LEASE_S, ControllerLock
from laggard.kvstore.client.retry import RetryPolicy
from laggard.kvstore.errors import LockLostError, SiteServerError, StateUnavailableError
from laggard.kvstore.server.site import unfit
from laggard.resilience.controller.state_keeper import StateKeeper
from laggard.system.user import user_name

FIRST_ANSWER_S = 10.0  # it runs already, or its address is wrong
RENEW_S = 1.0
SILENCE_S = 6.0  # when the user hears that it does not answer
# Then the job ends: its program may write to other places, while another controller has taken over.
GIVE_UP_S = 300.0


class SiteState(StateKeeper):
    """A job's State on such a server, and the lock by which no other controller acts for the job."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        in_memory: bool = False,
        lease_s: float = LEASE_S,
        on_wait: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(endpoint)
        self._client = endpoint.connect()
        retry = RetryPolicy(endpoint, FIRST_ANSWER_S)
        who = f"process {os.getpid()} of {user_name()} on {socket.gethostname()}"
        self._lock = ControllerLock(self._client, endpoint, who, lease_s)
        self.lock_id = self._lock.id
        try:
            self._check(retry, in_memory=in_memory)
            self._lock.take(retry, on_wait)
        except BaseException:
            self._client.close()
            raise
        self._renews_s = min(RENEW_S, lease_s / 4)
        self._thread = threading.Thread(target=self._renew, name="state-lock", daemon=True)
        self._thread.start()

    def _check(self, retry: RetryPolicy, *, in_memory: bool) -> None:
        try:
            info = retry.call(self._client.info)
        except redis.ResponseError as error:  # as NOPERM
            raise SiteServerError(self.endpoint.address, f"{error}; allow the user INFO") from error
        if reason := unfit(info, self.endpoint.replicas, in_memory=in_memory):
            raise SiteServerError(self.endpoint.address, reason)
        with contextlib.suppress(redis.ResponseError):  # most users may not ask, since it also tells passwords
            when = retry.call(lambda: self._client.config_get("appendfsync"))["appendfsync"]
            if when != "always":
                self._say(f"commits count before they are on its disk (appendfsync {when}): some are lost if it dies")

    def _renew(self) -> None:
        answered_s, silent = time.monotonic(), False
        while not self._is_stopping_after(self._renews_s):
            try:
                if not self._lock.renew():
                    self._fail(LockLostError(self.endpoint.job, self.endpoint.address))
            except redis.RedisError as error:
                silent_s = time.monotonic() - answered_s
                if silent_s > GIVE_UP_S:
                    self._fail(StateUnavailableError(self.endpoint.host, self.endpoint.port, str(error)))
                elif silent_s > SILENCE_S and not silent:
                    silent = True
                    self._say(f"no answer from {self.endpoint.address} for {silent_s:.0f} s: {error}")
            else:
                if silent:
                    silent = False
                    self._say(f"{self.endpoint.address} answers again after {time.monotonic() - answered_s:.0f} s")
                answered_s = time.monotonic()

    def stop(self) -> None:
        """Give the lock back, so that the next controller begins at once."""
        with self.changed:
            if self._stopping:
                return
            self._stopping = True
            self.changed.notify_all()
        self._thread.join()
        with contextlib.suppress(redis.RedisError), self._client:
            self._lock.give_back()

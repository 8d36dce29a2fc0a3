"""Keeps the state server running: when it ends by itself, it is started again from its log, on the same port."""

from __future__ import annotations

import threading
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Self

from kvstore.endpoint import Endpoint
from kvstore.errors import KVStoreError, PortTakenError, ServerError, ServerStartError, StateUnavailableError
from kvstore.server import Fsync, StateServer

__all__ = ["StateKeeper"]

LOAD_DEADLINE_S = 60.0
FLUSH_TRY_S = 2.0
POLL_S = 0.05
# More deaths than this within a minute, or vain starts, are no accident.
MAX_STARTS_PER_MINUTE = 60


class StateKeeper:
    """A state server that comes back.

    Clients see a pause: they connect again, and what was committed is there.

    Parameters
    ----------
    directory, job, host, port, fsync
        As for `StateServer.start`.

    Attributes
    ----------
    news : threading.Condition
        Announced at each change.
    tidings : collections.deque of str
        What happened to the server, for the user to read.
    failure : KVStoreError or None
        Why it could not be started again.
    """

    def __init__(
        self, directory: Path, *, job: str, host: str, port: int | None = None, fsync: Fsync = "always"
    ) -> None:
        self._server = StateServer.start(
            directory, job=job, host=host, port=port, fsync=fsync, deadline_s=LOAD_DEADLINE_S
        )
        self.news = threading.Condition()
        self.tidings: deque[str] = deque()
        self.failure: KVStoreError | None = None
        self._starts_s: deque[float] = deque(maxlen=MAX_STARTS_PER_MINUTE)
        self._stopping = False
        self._thread = threading.Thread(target=self._keep, name="state-keeper", daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> Endpoint:
        """Where it listens; the same for its whole life."""
        return self._server.endpoint

    @property
    def pid(self) -> int:
        """The server process that runs now, or ran last."""
        return self._server.pid

    def flush_to_disk(self, deadline_s: float) -> None:
        """Return once everything that was acknowledged is on disk, waiting for a server that is being restarted.

        Raises
        ------
        StateUnavailableError
            If that took longer than ``deadline_s`` seconds.
        """
        until_s = time.monotonic() + deadline_s
        while True:
            try:
                return self._server.flush_to_disk(FLUSH_TRY_S)
            except StateUnavailableError:
                if time.monotonic() > until_s or self.failure is not None:
                    raise
            with self.news:
                self.news.wait(POLL_S)

    def stop(self) -> None:
        """End the server, and leave it ended. Stopping twice does nothing."""
        with self.news:
            self._stopping = True
            server = self._server
        server.stop()
        self._thread.join(LOAD_DEADLINE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _keep(self) -> None:
        while (exit_code := self._server.wait_exit(None)) is not None and not self._stopping:
            try:
                self._revive(exit_code)
            except KVStoreError as failure:
                with self.news:
                    self.failure = failure
                    self.news.notify_all()
                return

    def _revive(self, exit_code: int) -> None:
        died = self._server
        if full := died.full_disk():
            raise full
        began_s = time.monotonic()
        server = self._started_again(died)
        with self.news:
            self._server = server
            took_s = time.monotonic() - began_s
            self.tidings.append(f"the server ended ({exit_code}) and is back with all of its log after {took_s:.1f} s")
            self.news.notify_all()
            stopping = self._stopping
        if stopping:
            server.stop()

    def _started_again(self, died: StateServer) -> StateServer:
        vain: ServerError | None = None
        while not self._too_often(time.monotonic()):
            try:
                return died.start_again(LOAD_DEADLINE_S)
            except (ServerStartError, PortTakenError) as error:  # it may have been killed in the middle of its start
                vain = error
            with self.news:
                if self.news.wait_for(lambda: self._stopping, POLL_S):
                    break
        raise vain or ServerError(f"the state server ended {MAX_STARTS_PER_MINUTE} times within a minute")

    def _too_often(self, now_s: float) -> bool:
        starts_s = self._starts_s
        starts_s.append(now_s)
        return len(starts_s) == MAX_STARTS_PER_MINUTE and now_s - starts_s[0] < 60
